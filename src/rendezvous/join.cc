#include "src/rendezvous/join.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/rendezvous/addresses.h"

namespace netsum {
namespace {

// What the ranks exchange: plain bytes, of the same size on all ranks. Texts end with a NUL and are cut if too long.
constexpr size_t kTextBytes = 480;

struct Invitation {  // from rank 0
  char settings[4096];
  char job[192];
  char token[80];
};
struct Answer {
  char problem[kTextBytes];  // "": the rank can take part
  char host[128];
  char addresses[512];  // separated by spaces
};
struct Root {
  char address[128];
  char problem[kTextBytes];
};
struct Outcome {
  int32_t code;
  char text[kTextBytes];
};
static_assert(std::is_trivially_copyable_v<Invitation> && std::is_trivially_copyable_v<Answer>);

template <size_t kBytes>
void put(char (&field)[kBytes], const std::string& text) {
  const size_t length = std::min(text.size(), kBytes - 1);
  std::memcpy(field, text.data(), length);
  field[length] = '\0';
}

std::string random_word(size_t bytes) {
  std::array<unsigned char, 32> random = {};
  if (getentropy(random.data(), bytes) != 0) return "";
  constexpr char kDigits[] = "0123456789abcdef";
  std::string word;
  for (size_t i = 0; i < bytes; ++i) {
    word += kDigits[random[i] >> 4];
    word += kDigits[random[i] & 15];
  }
  return word;
}

bool contains(const std::string& list, const std::string& word) {
  return (" " + list + " ").find(" " + word + " ") != std::string::npos;
}

class Agreement {
 public:
  Agreement(Rendezvous& rendezvous, const JoinOptions& options)
      : rendezvous_(rendezvous), options_(options) {}

  Joined join() {
    if (!invite() || !answer()) return {nullptr, kApart};
    for (size_t r = 0; r < answers_.size(); ++r) {
      if (answers_[r].problem[0] != '\0') return {nullptr, text_of(r, answers_[r].problem)};
    }
    return connect();
  }

 private:
  static constexpr const char* kApart = "the ranks could not reach each other to agree on a job";

  bool first() const { return rendezvous_.rank() == 0; }
  static std::string text_of(size_t rank, const std::string& text) {
    return "rank " + std::to_string(rank) + ": " + text;
  }

  bool invite() {
    if (auto read = Settings::read(options_.lookup, options_.local_rank); read.ok()) {
      settings_ = std::move(read).value();
    } else {
      problem_ = read.status().message();
    }
    shared_ = settings_.shared() + options_.plugin_settings;
    if (first()) {
      const std::string word = random_word(8);
      const std::string token = random_word(32);
      if (word.empty()) problem_ = "the kernel gives no random numbers";
      const std::string& prefix = settings_.job_prefix();
      put(invitation_.settings, shared_);
      put(invitation_.job, (prefix.empty() ? options_.default_prefix : prefix).substr(0, 128) + "-" + word);
      put(invitation_.token, token);
      if (shared_.size() >= sizeof(invitation_.settings) && problem_.empty())
        problem_ = "the settings are too long: NETSUM_AGGREGATOR and NETSUM_FALLBACK_AGGREGATORS";
    }
    return rendezvous_.broadcast(&invitation_, sizeof(invitation_));
  }

  bool answer() {
    Answer mine = {};
    const int most = settings_.most_ranks();
    if (problem_.empty() && rendezvous_.size() > most)
      problem_ = "netsum sums over at most " + std::to_string(most) + " ranks" +
                 (most < 512 ? ", and up to 512 below a hierarchy of aggregators (NETSUM_HIERARCHY)" : "") +
                 "; there are " + std::to_string(rendezvous_.size());
    if (problem_.empty()) problem_ = Settings::difference(shared_, invitation_.settings, "here");
    put(mine.problem, problem_);
    put(mine.host, host_identity());
    std::string addresses;
    for (const InterfaceAddress& each : interface_addresses()) {
      if (addresses.size() + each.address.size() + 1 < sizeof(mine.addresses))
        addresses += (addresses.empty() ? "" : " ") + each.address;
    }
    put(mine.addresses, addresses);
    answers_.resize(static_cast<size_t>(rendezvous_.size()));
    return rendezvous_.gather(&mine, answers_.data(), sizeof(mine));
  }

  // Rank 0's address that the others can reach: that of the route to the first rank on another host. Addresses that
  // both hosts have, such as those of container bridges, are not on a route between them.
  std::string own_address() const {
    if (!settings_.options().bind_address.empty()) return settings_.options().bind_address;
    const Answer& mine = answers_[static_cast<size_t>(rendezvous_.rank())];
    for (size_t r = 0; r < answers_.size(); ++r) {
      if (std::string(answers_[r].host) == mine.host) continue;
      std::string left = answers_[r].addresses;
      while (!left.empty()) {
        const size_t end = std::min(left.find(' '), left.size());
        const std::string remote = left.substr(0, end);
        left.erase(0, std::min(end + 1, left.size()));
        if (contains(mine.addresses, remote)) continue;
        const std::string local = address_towards(remote);
        if (!local.empty()) return local;
      }
    }
    return "127.0.0.1";
  }

  Joined connect() {
    netsum_comm_options options = {};
    options.struct_size = sizeof(options);
    settings_.write(&options);
    options.rank = rendezvous_.rank();
    options.world_size = rendezvous_.size();
    options.job = invitation_.job;
    options.token = invitation_.token;
    options.timeout_ms = options_.timeout_ms;
    std::string address, root;
    if (settings_.needs_root()) {
      address = own_address();
      options.bind_address = address.c_str();
      if (first()) {
        root = with_port(address, 0);
        options.on_root_bound = [](void* self, const char* bound) {
          static_cast<Agreement*>(self)->announce_root(bound, "");
        };
        options.on_root_bound_data = this;
      } else {
        if (!rendezvous_.broadcast(&root_, sizeof(root_))) return {nullptr, kApart};
        root = root_.address;
      }
      options.root = root.c_str();
    }
    netsum_comm* comm = nullptr;
    int code = NETSUM_UNREACHABLE;
    std::string text = "rank 0 does not listen";
    if (root_.problem[0] == '\0') {
      code = connect_with_what_there_is(options, &comm);
      text = code == NETSUM_OK ? netsum_comm_describe(comm) : netsum_last_error();
    }
    if (first() && settings_.needs_root() && !announced_) announce_root("", text);
    return finish(comm, code, text);
  }

  // Without the trace or the metrics, if these cannot be had. The port may belong to another process of this host, which has the
  // same settings: not every program tells its processes their numbers there.
  int connect_with_what_there_is(netsum_comm_options& options, netsum_comm** comm) {
    constexpr int kMostPorts = 64;
    std::string metrics = options.metrics_address;
    const size_t colon = metrics.rfind(':');
    for (int port = 1; true; ++port) {
      options.metrics_address = metrics.c_str();
      const int code = netsum_comm_connect(&options, comm);
      const std::string problem = netsum_last_error();
      if (code == NETSUM_ADDRESS_IN_USE && problem.starts_with("metrics: ") && port < kMostPorts) {
        const int last = std::atoi(metrics.c_str() + colon + 1);
        metrics = metrics.substr(0, colon + 1) + std::to_string(last < 65535 ? last + 1 : 0);
      } else if (!metrics.empty() && problem.starts_with("metrics: ")) {
        warn("NETSUM_METRICS: " + problem + "; this rank serves none");
        metrics.clear();
      } else if (options.trace_path[0] != '\0' && problem.starts_with("trace: ")) {
        warn("NETSUM_TRACE: " + problem + "; this rank writes none");
        options.trace_path = "";
      } else {
        return code;
      }
    }
  }

  void warn(const std::string& text) const {
    if (options_.on_warning) options_.on_warning(text);
  }

  void announce_root(const std::string& address, const std::string& problem) {
    put(root_.address, address);
    put(root_.problem, problem);
    announced_ = true;
    rendezvous_.broadcast(&root_, sizeof(root_));
  }

  // All ranks tell how it ended. Of several failures, one that others only suffer from comes last.
  Joined finish(netsum_comm* comm, int code, const std::string& text) {
    Outcome mine = {};
    mine.code = code;
    put(mine.text, text);
    std::vector<Outcome> all(answers_.size());
    if (!rendezvous_.gather(&mine, all.data(), sizeof(mine))) {
      netsum_comm_close(comm);
      return {nullptr, kApart};
    }
    const auto failed = [](const Outcome& outcome) { return outcome.code != NETSUM_OK; };
    const auto caused = [&](const Outcome& outcome) {
      return failed(outcome) && outcome.code != NETSUM_TIMEOUT && outcome.code != NETSUM_PEER_LOST &&
             outcome.code != NETSUM_ABORTED;
    };
    auto worst = std::find_if(all.begin(), all.end(), caused);
    if (worst == all.end()) worst = std::find_if(all.begin(), all.end(), failed);
    if (worst == all.end()) return {comm, all[0].text};
    netsum_comm_close(comm);
    return {nullptr, text_of(static_cast<size_t>(worst - all.begin()), worst->text)};
  }

  Rendezvous& rendezvous_;
  const JoinOptions& options_;
  Settings settings_;
  std::string problem_, shared_;
  Invitation invitation_ = {};
  std::vector<Answer> answers_;
  Root root_ = {};
  bool announced_ = false;
};

}  // namespace

std::string process_environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value != nullptr ? value : "";
}

Joined join(Rendezvous& rendezvous, const JoinOptions& options) {
  return Agreement(rendezvous, options).join();
}

}  // namespace netsum
