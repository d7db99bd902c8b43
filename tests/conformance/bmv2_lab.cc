// BMv2's simple_switch_grpc in place of VethLab's bridge, with the program that p4c makes of aggregator/p4/v1model.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "aggregator/p4/driver/p4runtime_driver.h"
#include "src/base/assert.h"
#include "tests/conformance/ip_batch.h"
#include "tests/conformance/network_run.h"
#include "tests/conformance/switch_lab.h"
#include "tests/conformance/veth_lab.h"

namespace netsum::conformance {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kHosts = 4;
constexpr uint64_t kOwnMac = 0x020000000001;
// A packet of four passes that completes a round takes eight; each fence takes at least one.
constexpr int kTurns = 10;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

pid_t start(const std::vector<std::string>& arguments, const std::filesystem::path& log) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

bool is_on_path(const std::string& program) {
  std::stringstream folders(getenv("PATH") == nullptr ? "" : getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

class Bmv2Lab final : public SwitchLab {
 public:
  ~Bmv2Lab() override {
    stop_switch();
    for (const int fd : sockets_) close(fd);
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  Status make() {
    char folder[] = "/tmp/netsum-bmv2-XXXXXX";
    if (mkdtemp(folder) == nullptr) return {ErrorCode::kUnsupported, "cannot make a temporary folder"};
    folder_ = folder;
    if (Status status = compile(); !status.ok()) return status;
    auto lab = VethLab::make(kHosts, {});
    if (!lab.ok()) return {ErrorCode::kUnsupported, lab.status().message()};
    lab_ = std::move(lab).value();
    {
      const VethLab::Inside inside = lab_->in_switch();
      std::string lines;
      for (const std::string& port : lab_->ports())
        lines += "link set dev " + port + " nomaster promisc on\n";
      if (Status status = ip_batch(lines); !status.ok()) return status;
    }
    start_switch();
    for (Peer peer = 0; peer < kNetworkPeers; ++peer) {
      const VethLab::Inside inside = lab_->in_host(peer % kHosts);
      Address remote = own_address();
      remote.port = NETSUM_P4_DATA_PORT;
      sockets_.push_back(open_peer(VethLab::host_address(peer % kHosts), remote));
      if (sockets_.back() < 0) return {ErrorCode::kUnsupported, "cannot open a peer's socket"};
    }
    return {};
  }

  Address own_address() const override { return *Address::parse("10.99.1.1:0"); }

  Result<std::unique_ptr<p4::SwitchDriver>> connect() override {
    p4::P4RuntimeOptions options;
    options.server = "unix:" + (folder_ / "grpc").string();
    options.p4info = p4info_;
    options.config = config_;
    options.own_ip = 0x0A630101;
    options.own_mac = kOwnMac;
    for (uint16_t host = 0; host < kHosts; ++host) options.ports.push_back(host);
    auto driver = p4::connect_p4runtime(options);
    driver_ = driver.ok() ? driver->get() : nullptr;
    return driver;
  }
  void send(Peer from, const Bytes& datagram) override {
    NETSUM_ASSERT(::send(sockets_[static_cast<size_t>(from)], datagram.data(), datagram.size(), 0) ==
                  static_cast<ssize_t>(datagram.size()));
  }
  std::vector<Reply> take_replies(size_t expected) override;
  p4::MemberEntry place_of(Peer peer) override;
  void restart() override {
    stop_switch();
    start_switch();
  }
  std::unique_ptr<DataplaneUnderTest> run(Dataplane* dataplane) override;
  const std::vector<int>& sockets() const { return sockets_; }
  p4::SwitchDriver& driver() { return *driver_; }

 private:
  Status compile() {
    const std::string p4info = folder_ / "netsum.p4info.bin", config = folder_ / "netsum.json";
    const std::filesystem::path log = folder_ / "p4c.log";
    const pid_t pid = start({"p4c-bm2-ss", "-I", ".", "--p4runtime-files", p4info, "-o", config,
                             "aggregator/p4/v1model/netsum.p4"},
                            log);
    int status = -1;
    if (pid > 0) waitpid(pid, &status, 0);
    p4info_ = read_file(p4info);
    config_ = read_file(config);
    if (status != 0 || p4info_.empty() || config_.empty())
      return {ErrorCode::kInternal, "p4c does not compile the program:\n" + read_file(log)};
    return {};
  }
  void start_switch() {
    std::vector<std::string> arguments = {"simple_switch_grpc", "--no-p4"};
    const std::vector<std::string> ports = lab_->ports();
    for (size_t i = 0; i < ports.size(); ++i) {
      arguments.insert(arguments.end(), {"-i", std::to_string(i) + "@" + ports[i]});
    }
    arguments.insert(arguments.end(), {"--", "--grpc-server-addr", "unix:" + (folder_ / "grpc").string(),
                                       "--cpu-port", std::to_string(NETSUM_P4_CONTROL_PORT)});
    const VethLab::Inside inside = lab_->in_switch();
    switch_ = start(arguments, folder_ / "switch.log");
  }
  void stop_switch() {
    if (switch_ <= 0) return;
    kill(switch_, SIGKILL);
    waitpid(switch_, nullptr, 0);
    switch_ = -1;
  }

  std::filesystem::path folder_;
  std::string p4info_, config_;
  std::unique_ptr<VethLab> lab_;
  pid_t switch_ = -1;
  p4::SwitchDriver* driver_ = nullptr;
  std::vector<int> sockets_;
};

// NetworkRun's fences do not wait for the control plane, to which the first HELLO of a member goes, and a parent's WELCOME. Behind
// each of them comes a HELLO that goes there, too: that of a new member of a job of this adapter's own.
class Bmv2Run final : public NetworkRun {
 public:
  Bmv2Run(Bmv2Lab* lab, Dataplane* dataplane)
      : NetworkRun(dataplane, lab->sockets(), /*lengthens=*/false, kTurns), lab_(lab), dataplane_(dataplane) {
    static uint16_t epoch = 0;
    job_ = {.job = 62,
            .epoch = ++epoch,
            .key = {1, 2},
            .members = NETSUM_MAX_MEMBERS,
            .data_slots = 1,
            .scale_slots = 0,
            .payload_bytes = 32};
    job_.tag = NETSUM_TAG_COOKIE;
    const Status status = dataplane_->install(dataplane_job(job_, [](Peer) { return Address(); }));
    NETSUM_ASSERT(status.ok());
  }
  ~Bmv2Run() override { dataplane_->remove(job_.job, job_.epoch); }

  // Until the control plane knows where the job's parent is.
  void install(const VectorJob& job) override {
    const uint64_t before = parents_found();
    NetworkRun::install(job);
    if (!job.parent) return;
    const auto deadline = Clock::now() + kNetworkPatience;
    while (parents_found() == before && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  std::map<std::string, uint64_t> drops() override {
    NETSUM_ASSERT(lab_->driver().counters().ok());  // looks then return what has just been read
    return NetworkRun::drops();
  }

  std::vector<Reply> feed(Peer from, const Bytes& datagram) override {
    netsum_fields f;
    const bool for_control =
        netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), &f) == NETSUM_DROP_NONE &&
        (f.type == NETSUM_TYPE_HELLO || f.type == NETSUM_TYPE_WELCOME);
    if (!for_control) return NetworkRun::feed(from, datagram);
    NETSUM_ASSERT(next_member_ < NETSUM_MAX_MEMBERS);
    netsum_fields fence{};
    fence.type = NETSUM_TYPE_HELLO;
    fence.job = job_.job;
    fence.epoch = job_.epoch;
    fence.member = next_member_++;
    Bytes bytes(NETSUM_HEADER_BYTES);
    wire::write_header(fence, job_.packet_key(), bytes.data());
    lab_->send(from, datagram);
    lab_->send(from, bytes);
    std::vector<Reply> replies;
    for (;;) {
      const std::vector<Reply> more = lab_->take_replies(1);
      if (more.empty()) return {{from, Bytes(1)}};  // the fence is not answered: shows in the comparison
      for (const Reply& reply : more) {
        const bool known = netsum_parse(reply.datagram.data(), static_cast<uint32_t>(reply.datagram.size()),
                                        &f) == NETSUM_DROP_NONE;
        if (known && f.job == job_.job) return replies;
        replies.push_back(reply);
      }
    }
  }

 private:
  uint64_t parents_found() const {
    for (const AggregatorCounter& counter : dataplane_->counters())
      if (counter.name == "parents_found") return counter.value;
    return 0;
  }

  Bmv2Lab* const lab_;
  Dataplane* const dataplane_;
  VectorJob job_;
  uint16_t next_member_ = 0;
};

std::unique_ptr<DataplaneUnderTest> Bmv2Lab::run(Dataplane* dataplane) {
  return std::make_unique<Bmv2Run>(this, dataplane);
}

std::vector<Reply> Bmv2Lab::take_replies(size_t expected) {
  std::vector<Reply> replies;
  std::vector<pollfd> polls;
  for (const int fd : sockets_) polls.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  const auto deadline = Clock::now() + kNetworkPatience;
  while (replies.size() < expected) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || poll(polls.data(), polls.size(), static_cast<int>(left)) <= 0) break;
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents == 0) continue;
      Bytes datagram(65536);
      const ssize_t size = recv(polls[i].fd, datagram.data(), datagram.size(), 0);
      if (size < 0) continue;
      datagram.resize(static_cast<size_t>(size));
      replies.push_back({static_cast<Peer>(i), datagram});
    }
  }
  return replies;
}

p4::MemberEntry Bmv2Lab::place_of(Peer peer) {
  sockaddr_in local{};
  socklen_t bytes = sizeof local;
  getsockname(sockets_[static_cast<size_t>(peer)], reinterpret_cast<sockaddr*>(&local), &bytes);
  const Mac mac = lab_->host_mac(peer % kHosts);
  p4::MemberEntry at{.port = static_cast<uint16_t>(peer % kHosts),
                     .mac = 0,
                     .ip = ntohl(local.sin_addr.s_addr),
                     .udp_port = ntohs(local.sin_port)};
  for (const uint8_t byte : mac) at.mac = at.mac << 8 | byte;
  return at;
}

}  // namespace

Result<std::unique_ptr<SwitchLab>> make_bmv2_lab() {
  for (const char* program : {"p4c-bm2-ss", "simple_switch_grpc"}) {
    if (!is_on_path(program))
      return Status(ErrorCode::kUnsupported, std::string(program) + " is not on the PATH (docs/p4.md)");
  }
  auto lab = std::make_unique<Bmv2Lab>();
  if (Status status = lab->make(); !status.ok()) return status;
  return std::unique_ptr<SwitchLab>(std::move(lab));
}

}  // namespace netsum::conformance
