#include "src/plugin/environment.h"

#include <strings.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>

namespace netsum {
namespace {

constexpr double kLongestS = 86400;
constexpr int64_t kUsualSpin = -1;

std::string trimmed(std::string text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  text.erase(std::find_if_not(text.rbegin(), text.rend(), is_space).base(), text.end());
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

template <typename Number>
bool parse(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// Whether `text` is "host:port", with brackets around an IPv6 address.
bool is_address(const std::string& text, int least_port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string host = text.substr(0, colon);
  if (host.find(':') != std::string::npos && !(host.front() == '[' && host.back() == ']')) return false;
  int port = 0;
  return parse(std::string_view(text).substr(colon + 1), &port) && port >= least_port && port < 65536;
}

// "/path/trace.json" is "/path/trace-{job}-rank{rank}.json", so that every communicator of each rank has its own file.
std::string trace_path(const std::string& path) {
  if (path.empty() || (path.find("{rank}") != std::string::npos && path.find("{job}") != std::string::npos))
    return path;
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= name) dot = path.size();
  return path.substr(0, dot) + "-{job}-rank{rank}" + path.substr(dot);
}

}  // namespace

std::string process_environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value != nullptr ? value : "";
}

// Reads variables one by one. The first invalid one sets the problem; the values of later ones do not matter.
class Environment::Reader {
 public:
  explicit Reader(const Lookup& lookup) : lookup_(lookup) {}

  const std::string& problem() const { return problem_; }

  std::string text(const std::string& name) const { return trimmed(lookup_(name)); }

  int64_t integer(const std::string& name, int64_t otherwise, int64_t least, int64_t most) {
    const std::string value = text(name);
    if (value.empty()) return otherwise;
    int64_t number = 0;
    if (!parse(value, &number) || number < least || number > most)
      refuse(name, value,
             "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return number;
  }

  double seconds(const std::string& name, double otherwise, bool or_zero = false) {
    const std::string value = text(name);
    if (value.empty()) return otherwise;
    double number = -1;
    if (parse(value, &number) && or_zero && number == 0) return 0;
    if (!(number > 0 && number <= kLongestS))
      refuse(name, value, "must be a number of seconds, above 0 and at most 86400");
    return number;
  }

  // Microseconds, 0 for never, or kUsualSpin; the same forms as the command's --spin.
  int64_t spin(const std::string& name) {
    const std::string value = text(name);
    if (value.empty() || value == "1" || value == "true") return kUsualSpin;
    if (value == "0" || value == "false") return 0;
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const std::string unit(end, value.data() + value.size());
    const double us = number * (unit == "us" ? 1 : unit == "ms" ? 1e3 : unit == "s" ? 1e6 : NAN);
    if (error == std::errc() && (us == 0 || (us >= 1 && us <= 60e6))) return static_cast<int64_t>(us);
    refuse(name, value, "must be 0, 1, or a time from 1us to 60s, such as 10ms");
    return 0;
  }

  // The index of the value among `choices`, of which the first is the default.
  int choice(const std::string& name, std::initializer_list<const char*> choices) {
    const std::string value = text(name);
    if (value.empty()) return 0;
    std::string allowed;
    int index = 0;
    for (const char* const each : choices) {
      if (value == each) return index;
      allowed += (index++ > 0 ? " or " : "") + std::string(each);
    }
    refuse(name, value, "must be " + allowed);
    return 0;
  }

  // Comma-separated addresses; the word "hosts" may stand among them if `or_hosts`.
  std::string addresses(const std::string& name, bool or_hosts = false) {
    std::string list;
    for (const std::string& part : split(lookup_(name), ',')) {
      const std::string address = trimmed(part);
      if (address.empty()) continue;
      if (!(or_hosts && address == "hosts") && !is_address(address, 1))
        refuse(name, address, "is not \"host:port\" (IPv6: \"[::1]:5151\")");
      list += (list.empty() ? "" : ",") + address;
    }
    return list;
  }

  // Bits per second from "100mbit" or "25gbit"; the same forms as the command's --link-rate.
  double rate(const std::string& name) {
    const std::string value = text(name);
    if (value.empty()) return 0;
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    std::string unit = trimmed(std::string(end, value.data() + value.size()));
    for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const size_t power = unit.empty() ? std::string::npos : std::string("kmgt").find(unit[0]);
    const std::string suffix = unit.empty() ? "" : unit.substr(1);
    const bool known = suffix.empty() || suffix == "bit" || suffix == "bit/s" || suffix == "bps";
    const double bits = power == std::string::npos || error != std::errc() || !known
                            ? 0
                            : number * std::pow(1000.0, static_cast<double>(power + 1));
    if (!(bits >= 1e3 && bits <= 1e14))
      refuse(name, value, "must be a rate from 1kbit to 100tbit, such as 100mbit or 25gbit");
    return bits;
  }

  double probability(const std::string& name) {
    const std::string value = text(name);
    if (value.empty()) return 0;
    const bool percent = value.back() == '%';
    double number = -1;
    if (!parse(std::string_view(value).substr(0, value.size() - (percent ? 1 : 0)), &number)) number = -1;
    if (percent) number /= 100;
    if (!(number >= 0 && number <= 1))
      refuse(name, value, "must be a probability from 0 to 1, such as 0.01 or 1%");
    return number;
  }

  // "host:port" with `local_rank` added to the port, unless that is 0.
  std::string metrics(const std::string& name, int local_rank) {
    const std::string value = text(name);
    if (value.empty()) return value;
    const size_t colon = value.rfind(':');
    int port = 0;
    if (is_address(value, 0)) parse(std::string_view(value).substr(colon + 1), &port);
    if (!is_address(value, 0) || port + local_rank > 65535) {
      refuse(name, value, "must be \"host:port\", such as 127.0.0.1:9470");
      return value;
    }
    return value.substr(0, colon + 1) + std::to_string(port == 0 ? 0 : port + local_rank);
  }

  std::string file(const std::string& name) {
    const std::string path = text(name);
    if (path.empty()) return path;
    std::ifstream stream(path, std::ios::binary);
    std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    if (!stream.good() && !stream.eof()) refuse(name, path, "cannot read the file");
    return content;
  }

  void refuse(const std::string& name, const std::string& value, const std::string& why) {
    set_problem(name + "=\"" + value + "\": " + why);
  }
  void set_problem(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

 private:
  const Lookup& lookup_;
  std::string problem_;
};

std::string Environment::read(const Lookup& lookup, int local_rank) {
  Reader in(lookup);
  const auto milliseconds = [](double seconds) { return static_cast<int64_t>(std::llround(seconds * 1e3)); };
  aggregators_ = in.addresses("NETSUM_AGGREGATOR");
  hierarchy_ = in.integer("NETSUM_HIERARCHY", 0, 0, 1) == 1;
  aggregator_token_ = lookup("NETSUM_AGGREGATOR_TOKEN");
  job_ = in.text("NETSUM_JOB");
  host_ = in.text("NETSUM_HOST");
  bind_address_ = in.text("NETSUM_BIND_ADDRESS");
  tls_ca_ = in.file("NETSUM_TLS_CA");
  tls_cert_ = in.file("NETSUM_TLS_CERT");
  tls_key_ = in.file("NETSUM_TLS_KEY");
  fallback_aggregators_ = in.addresses("NETSUM_FALLBACK_AGGREGATORS", true);
  metrics_ = in.metrics("NETSUM_METRICS", local_rank);
  trace_ = trace_path(in.text("NETSUM_TRACE"));

  netsum_comm_options& o = numbers_;
  o = {};
  o.mtu = static_cast<int>(in.integer("NETSUM_MTU", 1500, 144, 9000));
  o.slots = static_cast<int>(in.integer("NETSUM_SLOTS", 256, 1, 1024));
  o.packet_io = static_cast<netsum_packet_io>(in.choice("NETSUM_PACKET_IO", {"udp", "af_xdp"}));
  const auto threads = static_cast<int>(in.integer("NETSUM_ENGINE_THREADS", 1, 0, 64));
  o.engine_threads = threads == 0 ? -1 : threads;
  const int64_t spin_us = in.spin("NETSUM_SPIN");
  o.no_spin = spin_us == 0 ? 1 : 0;
  o.spin_us = spin_us == kUsualSpin ? 0 : spin_us;
  o.no_predict_scales = in.integer("NETSUM_PREDICT_SCALES", 1, 0, 1) == 0 ? 1 : 0;
  o.no_shared_memory = in.integer("NETSUM_SHARED_MEMORY", 1, 0, 1) == 0 ? 1 : 0;
  o.lane_bits = static_cast<int>(in.integer("NETSUM_LANE_BITS", 0, 0, 32));
  const int shares = in.choice("NETSUM_SHARES", {"auto", "planned", "off"});
  constexpr netsum_shares kShares[] = {NETSUM_SHARES_AUTO, NETSUM_SHARES_PLANNED, NETSUM_SHARES_OFF};
  o.shares = kShares[shares];
  o.verify = static_cast<netsum_verify>(in.choice("NETSUM_VERIFY", {"packet", "both", "sum"}));
  o.numerics = static_cast<netsum_numerics>(in.choice("NETSUM_NUMERICS", {"auto", "fixed"}));
  o.link_rate_bps = in.rate("NETSUM_LINK_RATE");
  o.connect_timeout_ms = milliseconds(in.seconds("NETSUM_CONNECT_TIMEOUT", 30));
  const int64_t liveness = milliseconds(in.seconds("NETSUM_LIVENESS_TIMEOUT", 5, true));
  o.liveness_timeout_ms = liveness == 0 ? -1 : liveness;
  o.failover = in.choice("NETSUM_ON_FAILURE", {"fail", "failover"});
  o.failover_timeout_ms = milliseconds(in.seconds("NETSUM_FAILOVER_TIMEOUT", 30));
  o.when_full = static_cast<netsum_when_full>(in.choice("NETSUM_WHEN_FULL", {"fail", "wait", "hosts"}));
  o.inject_loss = in.probability("NETSUM_INJECT_LOSS");
  o.inject_seed = static_cast<uint64_t>(in.integer("NETSUM_INJECT_SEED", 1, 0, INT64_MAX));

  if ((o.slots & (o.slots - 1)) != 0)
    in.refuse("NETSUM_SLOTS", std::to_string(o.slots), "must be a power of two, such as 256");
  if (o.lane_bits != 0 && o.lane_bits != 8 && o.lane_bits != 16 && o.lane_bits != 32)
    in.refuse("NETSUM_LANE_BITS", std::to_string(o.lane_bits), "must be 8, 16, 32, or 0 for automatic");
  if (hierarchy_ && aggregators_.empty())
    in.set_problem("NETSUM_HIERARCHY=1: set NETSUM_AGGREGATOR to the aggregator of this rank's rack");
  if (o.failover != 0 && aggregators_.empty())
    in.set_problem("NETSUM_ON_FAILURE=failover: there is no aggregator to lose, set NETSUM_AGGREGATOR");
  if (!fallback_aggregators_.empty() && o.failover == 0)
    in.set_problem("NETSUM_FALLBACK_AGGREGATORS has no effect without NETSUM_ON_FAILURE=failover");
  if (tls_cert_.empty() != tls_key_.empty())
    in.set_problem("NETSUM_TLS_CERT and NETSUM_TLS_KEY belong together: set both or neither");

  const auto count = std::to_string(split(aggregators_, ',').size());
  shared_ = {{"NETSUM_AGGREGATOR", hierarchy_ ? count + " in this rank's rack" : aggregators_},
             {"NETSUM_HIERARCHY", std::to_string(static_cast<int>(hierarchy_))},
             {"NETSUM_JOB", job_},
             {"NETSUM_MTU", std::to_string(o.mtu)},
             {"NETSUM_SLOTS", std::to_string(o.slots)},
             {"NETSUM_LANE_BITS", std::to_string(o.lane_bits)},
             {"NETSUM_ON_FAILURE", o.failover != 0 ? "failover" : "fail"},
             {"NETSUM_FALLBACK_AGGREGATORS", fallback_aggregators_},
             {"NETSUM_WHEN_FULL", std::to_string(static_cast<int>(o.when_full))},
             {"NETSUM_SHARES", std::to_string(shares)},
             {"NETSUM_VERIFY", std::to_string(static_cast<int>(o.verify))},
             {"NETSUM_NUMERICS", std::to_string(static_cast<int>(o.numerics))},
             {"NETSUM_PREDICT_SCALES", std::to_string(1 - o.no_predict_scales)}};
  return in.problem();
}

netsum_comm_options Environment::options() const {
  netsum_comm_options options = numbers_;
  options.struct_size = sizeof(options);
  options.aggregators = aggregators_.c_str();
  options.aggregator_token = aggregator_token_.c_str();
  options.fallback_aggregators = fallback_aggregators_.c_str();
  options.bind_address = bind_address_.c_str();
  options.host = host_.c_str();
  options.metrics_address = metrics_.c_str();
  options.trace_path = trace_.c_str();
  options.tls_ca_cert = tls_ca_.c_str();
  options.tls_cert = tls_cert_.c_str();
  options.tls_private_key = tls_key_.c_str();
  return options;
}

bool Environment::needs_root() const {
  const auto fallbacks = split(fallback_aggregators_, ',');
  return aggregators_.empty() || numbers_.when_full == NETSUM_FULL_HOSTS ||
         std::find(fallbacks.begin(), fallbacks.end(), "hosts") != fallbacks.end();
}

std::string to_text(const std::vector<std::pair<std::string, std::string>>& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += name + "=" + value + "\n";
  return text;
}

std::string first_difference(std::string_view mine, std::string_view first) {
  const auto my_lines = split(mine, '\n');
  const auto first_lines = split(first, '\n');
  for (size_t i = 0; i < std::max(my_lines.size(), first_lines.size()); ++i) {
    const std::string my_line = i < my_lines.size() ? my_lines[i] : "";
    const std::string first_line = i < first_lines.size() ? first_lines[i] : "";
    if (my_line == first_line) continue;
    const size_t equals = std::min(my_line.find('='), my_line.size());
    if (my_line.empty() || first_line.substr(0, equals) != my_line.substr(0, equals))
      return "the ranks use different versions of netsum: install the same on all of them";
    return my_line.substr(0, equals) + " is \"" + my_line.substr(equals + 1) + "\" here but \"" +
           first_line.substr(equals + 1) + "\" on rank 0; set it to the same on every rank";
  }
  return "";
}

}  // namespace netsum
