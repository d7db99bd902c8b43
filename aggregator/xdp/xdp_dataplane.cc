#include "aggregator/xdp/xdp_dataplane.h"

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "aggregator/dataplane/counters.h"
#include "aggregator/dataplane/slot_ranges.h"
#include "aggregator/slot/progress.h"
#include "aggregator/xdp/program.h"
#include "src/base/counter.h"
#include "src/base/thread.h"
#include "src/net/udp/udp_io.h"
#include "wire/codec.h"

namespace netsum {
namespace {

// HELLO needs more than a BPF program can do: this thread sets up the member's port before the WELCOME. The program handles
// all other packets.
class XdpDataplane final : public Dataplane {
 public:
  XdpDataplane(const XdpDataplaneOptions& options, std::unique_ptr<PacketIo> io,
               std::unique_ptr<XdpProgram> program)
      : options_(options), io_(std::move(io)), program_(std::move(program)), ranges_(options.slots) {}

  ~XdpDataplane() override {
    stop_.store(true, std::memory_order_release);
    io_->wake();
    if (thread_.joinable()) thread_.join();
  }

  // Before anything else. After an error, only destruction may follow.
  Status start() {
    return start_thread(
        "to answer members", [this] { loop(); }, &thread_);
  }

  std::string_view kind() const override { return "xdp"; }

  DataplaneLimits limits() const override {
    Capabilities capabilities =
        processor_capabilities(options_.payload_bytes, options_.multicast_groups.has_value());
    return {.stripes = 1,
            .max_jobs = options_.max_jobs,
            .slots_per_stripe = options_.slots,
            .capabilities = std::move(capabilities),
            .multicast_groups = options_.multicast_groups,
            .quota = options_.quota,
            .slot_bytes = XdpProgram::slot_bytes(options_.payload_bytes)};
  }

  std::vector<Address> endpoints() const override { return {io_->local_address()}; }

  uint32_t free_slots() const override {
    const std::lock_guard lock(mutex_);
    return ranges_.free();
  }

  Status install(const DataplaneJob& job) override {
    const std::lock_guard lock(mutex_);
    if (Status status = check_fits(job, options_.max_jobs, options_.payload_bytes, 1); !status.ok())
      return status;
    forget(job.job);
    const uint32_t wanted = job.data_slots + job.scale_slots;
    const Result<uint32_t> first = ranges_.take(wanted, job.first_slot);
    if (!first.ok()) return first.status();
    const Status status = program_->install(job, first.value());
    if (!status.ok()) {
      ranges_.give_back(first.value(), wanted);
      return status;
    }
    jobs_[job.job] = {job, first.value()};
    return Status();
  }

  void remove(uint16_t job, uint16_t epoch) override {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(job);
    if (found != jobs_.end() && found->second.job.epoch == epoch) forget(job);
  }

  std::vector<AggregatorCounter> counters() const override;

  // Reads the slots without the lock, which HELLOs need.
  JobProgress progress(uint16_t job, uint16_t epoch) const override {
    const std::optional<Job> before = find(job, epoch);
    if (!before) return {};
    const std::vector<netsum_slot> slots =
        program_->slots(before->first_slot, before->job.data_slots + before->job.scale_slots);
    if (!find(job, epoch)) return {};  // the slots may be another job's now
    const SlotProgress progress = slot_progress(slots, before->job.data_slots, before->job.members);
    return {progress.rounds, progress.open_slots, progress.missing, progress.oldest};
  }

 private:
  struct Job {
    DataplaneJob job;
    uint32_t first_slot = 0;
  };

  // Without its keys.
  std::optional<Job> find(uint16_t job, uint16_t epoch) const {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(job);
    if (found == jobs_.end() || found->second.job.epoch != epoch) return std::nullopt;
    Job copy{.job = {}, .first_slot = found->second.first_slot};
    copy.job.data_slots = found->second.job.data_slots;
    copy.job.scale_slots = found->second.job.scale_slots;
    copy.job.members = found->second.job.members;
    return copy;
  }

  void forget(uint16_t index) {
    const auto found = jobs_.find(index);
    if (found == jobs_.end()) return;
    program_->remove(index);
    ranges_.give_back(found->second.first_slot, found->second.job.data_slots + found->second.job.scale_slots);
    wire::wipe(&found->second.job.key);
    if (found->second.job.parent) wire::wipe(&found->second.job.parent->key);
    jobs_.erase(found);
  }

  void loop() {
    std::array<InPacket, 16> burst;
    while (!stop_.load(std::memory_order_acquire)) {
      const size_t received = io_->receive(burst);
      for (size_t i = 0; i < received; ++i) on_packet(burst[i]);
      if (received == 0) io_->wait(-1);
    }
  }

  void on_packet(const InPacket& packet) {
    netsum_fields fields;
    if (netsum_parse(packet.data, packet.size, &fields) != NETSUM_DROP_NONE) return;
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(fields.job);
    if (found == jobs_.end()) return;
    const XdpProgram::Answer answer =
        program_->answer_hello(found->second.job, {packet.data, packet.size}, packet.from, frame_.data());
    // Not a member, or no room for the port: the next HELLO tries again.
    if (answer.size == 0) return refused_hellos_.add();
    if (answer.welcome) hellos_.add();
    const OutPacket out{frame_.data(), answer.size, answer.to};
    io_->send({&out, 1});
  }

  const XdpDataplaneOptions options_;
  std::unique_ptr<PacketIo> io_;
  std::unique_ptr<XdpProgram> program_;
  mutable std::mutex mutex_;  // program_ (but for its counters), ranges_, jobs_
  SlotRanges ranges_;
  std::map<uint16_t, Job> jobs_;
  std::array<uint8_t, NETSUM_HEADER_BYTES + NETSUM_XDP_MAX_PAYLOAD> frame_{};
  Counter hellos_;
  Counter refused_hellos_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

std::vector<AggregatorCounter> XdpDataplane::counters() const {
  std::vector<AggregatorCounter> counters;
#define NETSUM_ADD(NAME, name)                                      \
  counters.push_back({#name, NETSUM_XDP_##NAME == NETSUM_XDP_HELLOS \
                                 ? hellos_.get()                    \
                                 : program_->counter(NETSUM_XDP_##NAME)});
  NETSUM_DATAPLANE_COUNTERS(NETSUM_ADD)
#undef NETSUM_ADD
  static constexpr std::pair<const char*, uint32_t> kNamed[] = {
      {"drop_vlan_tag", NETSUM_XDP_VLAN_TAG},       {"drop_ip_options", NETSUM_XDP_IP_OPTIONS},
      {"drop_ip_fragment", NETSUM_XDP_IP_FRAGMENT}, {"drop_ip_length", NETSUM_XDP_IP_LENGTH},
      {"drop_ip_checksum", NETSUM_XDP_IP_CHECKSUM}, {"drop_injected", NETSUM_XDP_INJECTED},
      {"drop_no_port", NETSUM_XDP_NO_PORT},         {"drop_slot_held", NETSUM_XDP_SLOT_HELD},
      {"other_traffic_passed", NETSUM_XDP_PASSED}};
  for (const auto& [name, index] : kNamed) counters.push_back({name, program_->counter(index)});
  append_drops([&](int reason) { return program_->counter(static_cast<uint32_t>(reason)); }, &counters);
  counters.push_back({"sends_refused", io_->counters().send_refused.get()});
  counters.push_back({"hellos_refused", refused_hellos_.get()});
  counters.push_back({"interfaces_attached", static_cast<uint64_t>(program_->attached())});
  return counters;
}

// False for interfaces that do not exist.
bool any_mtu_above(int limit, const std::vector<std::string>& interfaces) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool found = std::any_of(interfaces.begin(), interfaces.end(), [&](const std::string& name) {
    ifreq request{};
    std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
    return ioctl(fd, SIOCGIFMTU, &request) == 0 && request.ifr_mtu > limit;
  });
  if (fd >= 0) close(fd);
  return found;
}

}  // namespace

Result<std::unique_ptr<Dataplane>> start_xdp_dataplane(const XdpDataplaneOptions& options) {
  if (options.bind.family != 4 || options.bind.is_wildcard()) {
    return Status(ErrorCode::kInvalidArgument,
                  "the XDP dataplane needs the IPv4 address that workers send to, not " +
                      options.bind.to_string() + ": give it with --listen");
  }
  if (options.interfaces.empty()) {
    return Status(ErrorCode::kInvalidArgument,
                  "the XDP dataplane needs the interfaces that workers' packets come in by: give them with "
                  "--interfaces");
  }
  if (options.payload_bytes > NETSUM_XDP_MAX_PAYLOAD || options.payload_bytes % 32 != 0) {
    return Status(ErrorCode::kInvalidArgument, "the XDP dataplane keeps a packet in one page: --mtu can be " +
                                                   std::to_string(NETSUM_XDP_MAX_MTU) +
                                                   " at most, also where links have a larger MTU");
  }
  if (!(options.inject.loss >= 0 && options.inject.loss <= 1)) {
    return Status(ErrorCode::kInvalidArgument, "injected loss must be a probability from 0 to 1, not " +
                                                   std::to_string(options.inject.loss));
  }
  UdpIoOptions socket;
  socket.bind = options.bind;
  socket.max_packet = NETSUM_HEADER_BYTES + options.payload_bytes;
  auto io = open_udp(socket);
  if (!io.ok()) return io.status();
  auto program = XdpProgram::load({.address = io.value()->local_address(),
                                   .slots = options.slots,
                                   .max_jobs = options.max_jobs,
                                   .payload_bytes = options.payload_bytes,
                                   .multicast_ttl = options.multicast_ttl,
                                   .job_packets_per_s = options.quota.packets_per_s,
                                   .multi_buffer = any_mtu_above(NETSUM_XDP_MAX_MTU, options.interfaces),
                                   .inject_loss = options.inject.loss});
  if (!program.ok()) return program.status();
  for (const std::string& interface : options.interfaces) {
    const Status status = program.value()->attach(interface);
    if (!status.ok()) return status;
  }
  if (options.drop_privileges) {
    if (const Status status = options.drop_privileges(); !status.ok()) return status;
  }
  auto dataplane = std::make_unique<XdpDataplane>(options, std::move(io).value(), std::move(program).value());
  if (Status status = dataplane->start(); !status.ok()) return status;
  return std::unique_ptr<Dataplane>(std::move(dataplane));
}

}  // namespace netsum
