#include "aggregator/server/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "aggregator/core/aggregator_core.h"
#include "aggregator/dataplane/counters.h"
#include "aggregator/server/queues.h"
#include "src/base/clock.h"
#include "src/net/lossy.h"
#include "src/net/udp/udp_io.h"

namespace netsum {
namespace {

// A data-path thread. Other threads reach its core only through run(): commands wait in a mailbox that the
// loop looks at between bursts, so the data path takes no lock unless somebody has posted.
class CoreThread {
 public:
  CoreThread(FaultyIo io, const AggregatorCore::Limits& limits)
      : io_(std::move(io.io)), faults_(io.faults), core_(limits), thread_([this] { loop(); }) {}

  ~CoreThread() {
    stop_.store(true, std::memory_order_release);
    io_->wake();
    thread_.join();
  }

  // Runs `command` on the core's thread and waits for its end (the loop turns at least every burst).
  void run(const std::function<void(AggregatorCore&)>& command) {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = ++posted_count_;
    posted_.push_back(&command);
    has_posted_.store(true, std::memory_order_release);
    io_->wake();
    done_.wait(lock, [&] { return done_count_ >= ticket; });
  }

  const AggregatorCoreCounters& counters() const { return core_.counters(); }
  uint64_t overflowed() const { return io_->overflowed(); }
  uint64_t injected() const { return faults_ == nullptr ? 0 : faults_->receive_counters().lost.get(); }
  Address address() const { return io_->local_address(); }

 private:
  void loop() {
    std::array<InPacket, AggregatorCore::kMaxBurst> burst;
    while (!stop_.load(std::memory_order_acquire)) {
      const size_t received = io_->receive(burst);
      const int64_t now_us = monotonic_us();
      for (size_t i = 0; i < received; ++i) core_.on_packet(now_us, burst[i]);
      if (received > 0) {
        io_->send(core_.outbox());
        core_.clear();
      }
      if (has_posted_.load(std::memory_order_acquire)) run_posted();
      if (received == 0) io_->wait(-1);
    }
  }

  void run_posted() {
    const std::lock_guard lock(mutex_);
    has_posted_.store(false, std::memory_order_relaxed);
    for (const auto* command : posted_) (*command)(core_);
    done_count_ += posted_.size();
    posted_.clear();
    done_.notify_all();
  }

  std::unique_ptr<PacketIo> io_;
  const LossyIo* const faults_;  // null: none are injected
  AggregatorCore core_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<const std::function<void(AggregatorCore&)>*> posted_;
  uint64_t posted_count_ = 0;
  uint64_t done_count_ = 0;
  std::atomic<bool> has_posted_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

class UdpDataplane final : public Dataplane {
 public:
  UdpDataplane(const UdpDataplaneOptions& options, std::vector<FaultyIo> sockets) : options_(options) {
    const AggregatorCore::Limits limits{.max_jobs = options.max_jobs,
                                        .slots = options.slots_per_core,
                                        .payload_bytes = options.payload_bytes,
                                        .job_packets_per_s = options.quota.packets_per_s};
    for (FaultyIo& socket : sockets)
      cores_.push_back(std::make_unique<CoreThread>(std::move(socket), limits));
  }

  std::string_view kind() const override { return "user-space"; }

  DataplaneLimits limits() const override {
    Capabilities capabilities = standard_capabilities(options_.payload_bytes);
    capabilities.set_multicast(options_.multicast_groups.has_value());
    return {.stripes = options_.cores,
            .max_jobs = options_.max_jobs,
            .slots_per_stripe = options_.slots_per_core,
            .capabilities = std::move(capabilities),
            .multicast_groups = options_.multicast_groups,
            .quota = options_.quota,
            .slot_bytes = AggregatorCore::slot_bytes(options_.payload_bytes)};
  }

  std::vector<Address> endpoints() const override {
    std::vector<Address> addresses;
    for (const auto& core : cores_) addresses.push_back(core->address());
    return addresses;
  }

  uint32_t free_slots() const override {
    uint32_t least = options_.slots_per_core;
    for (const auto& core : cores_) {
      core->run([&](AggregatorCore& c) { least = std::min(least, c.free_slots()); });
    }
    return least;
  }

  Status install(const DataplaneJob& job) override {
    Status status;
    for (size_t stripe = 0; stripe < cores_.size() && status.ok(); ++stripe) {
      cores_[stripe]->run([&](AggregatorCore& core) { status = core.install(job, stripe); });
    }
    if (!status.ok()) remove(job.job, job.epoch);
    return status;
  }

  void remove(uint16_t job, uint16_t epoch) override {
    for (const auto& core : cores_) core->run([&](AggregatorCore& c) { c.remove(job, epoch); });
  }

  std::vector<AggregatorCounter> counters() const override;

  JobProgress progress(uint16_t job, uint16_t epoch) const override {
    JobProgress all;
    for (const auto& core : cores_) {
      core->run([&](AggregatorCore& c) {
        const SlotProgress part = c.progress(job, epoch);
        all.rounds += part.rounds;
        all.open_slots += part.open_slots;
        all.missing |= part.missing;
        all.oldest += part.oldest;
      });
    }
    return all;
  }

  std::vector<int64_t> heard(uint16_t job, uint16_t epoch) const override {
    std::vector<int64_t> latest_us;
    for (const auto& core : cores_) {
      core->run([&](AggregatorCore& c) {
        const std::vector<int64_t> part = c.heard(job, epoch);
        latest_us.resize(std::max(latest_us.size(), part.size()));
        for (size_t member = 0; member < part.size(); ++member)
          latest_us[member] = std::max(latest_us[member], part[member]);
      });
    }
    return latest_us;
  }

 private:
  const UdpDataplaneOptions options_;
  std::vector<std::unique_ptr<CoreThread>> cores_;
};

std::vector<AggregatorCounter> UdpDataplane::counters() const {
  std::vector<AggregatorCounter> counters;
  const auto add = [&](std::string name, const auto& of) {
    uint64_t sum = 0;
    for (const auto& core : cores_) sum += of(core->counters()).get();
    counters.push_back({std::move(name), sum});
  };
  using C = AggregatorCoreCounters;
#define NETSUM_ADD(NAME, name) add(#name, [](const C& c) -> const Counter& { return c.name; });
  NETSUM_DATAPLANE_COUNTERS(NETSUM_ADD)
#undef NETSUM_ADD
  append_drops(
      [&](int reason) {
        uint64_t sum = 0;
        for (const auto& core : cores_) sum += core->counters().drops[static_cast<size_t>(reason)].get();
        return sum;
      },
      &counters);
  uint64_t injected = 0, overflowed = 0;
  for (const auto& core : cores_) {
    injected += core->injected();
    overflowed += core->overflowed();
  }
  counters.push_back({"drop_queue_full", overflowed});
  counters.push_back({"drop_injected", injected});
  return counters;
}

}  // namespace

Result<std::unique_ptr<Dataplane>> start_udp_dataplane(const UdpDataplaneOptions& options) {
  if (options.cores < 1 || options.cores > 256) {
    return Status(ErrorCode::kInvalidArgument,
                  "cores must be 1 to 256, not " + std::to_string(options.cores));
  }
  std::vector<FaultyIo> sockets;
  for (int core = 0; core < options.cores; ++core) {
    UdpIoOptions io;
    io.bind = options.bind;
    if (options.bind.port != 0) io.bind.port = static_cast<uint16_t>(options.bind.port + core);
    io.answer_from_address_asked = true;
    io.max_packet = NETSUM_HEADER_BYTES + options.payload_bytes;
    if (options.multicast_groups) io.multicast_ttl = options.multicast_ttl;
    if (options.queue_for_each_job) {
      JobQueues queues = queues_for_jobs(static_cast<uint32_t>(options.max_jobs));
      io.queues = queues.count;
      io.queue_selector = std::move(queues.selector);
    }
    auto socket = open_udp(io);
    if (!socket.ok()) return socket.status();
    InjectedFaults faults = options.inject;
    faults.seed += static_cast<uint64_t>(core);
    auto faulty = inject_faults(std::move(socket).value(), faults);
    if (!faulty.ok()) return faulty.status();
    sockets.push_back(std::move(faulty).value());
  }
  if (options.drop_privileges) {
    if (const Status status = options.drop_privileges(); !status.ok()) return status;
  }
  return std::unique_ptr<Dataplane>(std::make_unique<UdpDataplane>(options, std::move(sockets)));
}

}  // namespace netsum
