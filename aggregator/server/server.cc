#include "aggregator/server/server.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aggregator/core/aggregator_core.h"
#include "aggregator/dataplane/counters.h"
#include "aggregator/server/queues.h"
#include "src/base/assert.h"
#include "src/base/clock.h"
#include "src/base/file_descriptor.h"
#include "src/base/processors.h"
#include "src/base/thread.h"
#include "src/net/lossy.h"
#include "src/net/udp/udp_io.h"
#include "src/net/wake_event.h"
#include "wire/ids.h"

namespace netsum {
namespace {

// One endpoint, its slots and its counters.
struct Stripe {
  Stripe(size_t port_index, FaultyIo io_with_faults, const AggregatorCore::Limits& limits)
      : port(port_index),
        io(std::move(io_with_faults.io)),
        faults(io_with_faults.faults),
        slots(limits.slots),
        core(limits) {}

  bool has_jobs() const { return core.free_slots() < slots; }
  uint64_t count(Counter AggregatorCoreCounters::*of) const {
    // The core counts what it gives to the kernel, which may refuse it.
    if (of == &AggregatorCoreCounters::packets_sent) return io->counters().packets_sent.get();
    if (of == &AggregatorCoreCounters::bytes_sent) return io->counters().bytes_sent.get();
    return (core.counters().*of).get();
  }
  uint64_t injected() const { return faults == nullptr ? 0 : faults->receive_counters().lost.get(); }

  const size_t port;
  const std::unique_ptr<PacketIo> io;
  const LossyIo* const faults;  // null if no faults are injected
  const uint32_t slots;
  AggregatorCore core;
};

// A data-path thread and its stripes. Other threads access the stripes' cores only through run(): the loop executes posted
// commands between bursts, so the data path takes the lock only if a command has been posted.
class CoreThread {
 public:
  static Result<std::unique_ptr<CoreThread>> open(std::chrono::microseconds spin) {
    FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll.valid())
      return Status(ErrorCode::kResourceExhausted,
                    std::string("cannot create an epoll instance for a core: ") + std::strerror(errno));
    Result<WakeEvent> event = WakeEvent::open(spin);
    if (!event.ok()) return event.status();
    return std::unique_ptr<CoreThread>(new CoreThread(std::move(epoll), std::move(event).value()));
  }

  ~CoreThread() {
    if (!thread_.joinable()) return;
    stop_.store(true, std::memory_order_release);
    event_.wake();
    thread_.join();
  }

  // For UdpIoOptions::epoll of its stripes.
  int epoll() const { return epoll_.get(); }
  // Before start().
  Stripe* add(std::unique_ptr<Stripe> stripe) {
    stripes_.push_back(std::move(stripe));
    return stripes_.back().get();
  }
  Status start() {
    return start_thread(
        "for a core of the aggregator", [this] { loop(); }, &thread_);
  }
  // After start().
  Status pin(int processor) { return pin_thread(thread_.native_handle(), processor); }

  // Runs `command` on the core's thread, and waits for its end: at most one burst of each stripe.
  void run(const std::function<void()>& command) {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = ++posted_count_;
    posted_.push_back(&command);
    has_posted_.store(true, std::memory_order_release);
    event_.wake();
    done_.wait(lock, [&] { return done_count_ >= ticket; });
  }

 private:
  CoreThread(FileDescriptor epoll, WakeEvent event) : epoll_(std::move(epoll)), event_(std::move(event)) {}

  void loop() {
    while (!stop_.load(std::memory_order_acquire)) {
      bool idle = true;
      for (const auto& stripe : stripes_) {
        if (serve(stripe.get())) idle = false;
      }
      if (has_posted_.load(std::memory_order_acquire)) run_posted();
      pollfd ready = {epoll_.get(), POLLIN, 0};
      if (idle) event_.wait({&ready, 1}, -1, has_jobs());
    }
  }

  bool has_jobs() const {
    return std::any_of(stripes_.begin(), stripes_.end(),
                       [](const auto& stripe) { return stripe->has_jobs(); });
  }

  // One burst; false if there was none.
  bool serve(Stripe* stripe) {
    const size_t received = stripe->io->receive(burst_);
    if (received == 0) return false;
    const int64_t now_us = monotonic_us();
    for (size_t i = 0; i < received; ++i) stripe->core.on_packet(now_us, burst_[i]);
    stripe->io->send(stripe->core.outbox());
    stripe->core.clear();
    return true;
  }

  void run_posted() {
    const std::lock_guard lock(mutex_);
    has_posted_.store(false, std::memory_order_relaxed);
    for (const auto* command : posted_) (*command)();
    done_count_ += posted_.size();
    posted_.clear();
    done_.notify_all();
  }

  const FileDescriptor epoll_;
  WakeEvent event_;
  std::vector<std::unique_ptr<Stripe>> stripes_;
  std::array<InPacket, AggregatorCore::kMaxBurst> burst_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<const std::function<void()>*> posted_;
  uint64_t posted_count_ = 0;
  uint64_t done_count_ = 0;
  std::atomic<bool> has_posted_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

class UdpDataplane final : public Dataplane {
 public:
  struct ServedStripe {
    CoreThread* thread = nullptr;
    Stripe* stripe = nullptr;
  };
  UdpDataplane(const UdpDataplaneOptions& options, std::vector<std::unique_ptr<CoreThread>> threads,
               std::vector<ServedStripe> stripes)
      : options_(options), threads_(std::move(threads)), stripes_(std::move(stripes)) {}

  // Before anything else. After an error, only destruction may follow.
  Status start() {
    for (const auto& thread : threads_)
      if (Status status = thread->start(); !status.ok()) return status;
    return {};
  }

  // check() has made sure that there are enough processors.
  Status pin(const std::vector<int>& processors) {
    for (size_t i = 0; i < threads_.size(); ++i) {
      if (Status status = threads_[i]->pin(processors[i]); !status.ok()) return status;
    }
    return {};
  }

  std::string_view kind() const override { return "user-space"; }

  DataplaneLimits limits() const override {
    Capabilities capabilities = standard_capabilities(options_.payload_bytes);
    capabilities.add_formats(NETSUM_FORMAT_SUM_I8);
    add_words(&capabilities);
    add_cookies(&capabilities);
    capabilities.set_no_lanes(true);
    capabilities.set_brief(true);
    add_values(&capabilities);
    capabilities.set_multicast(options_.multicast_groups.has_value());
    return {.stripes = static_cast<int>(stripes_.size()),
            .max_jobs = options_.max_jobs,
            .slots_per_stripe = options_.slots_per_stripe,
            .capabilities = std::move(capabilities),
            .multicast_groups = options_.multicast_groups,
            .quota = options_.quota,
            .slot_bytes = AggregatorCore::slot_bytes(options_.payload_bytes)};
  }

  std::vector<Address> endpoints() const override {
    std::vector<Address> addresses;
    for (const auto& [thread, stripe] : stripes_) addresses.push_back(stripe->io->local_address());
    return addresses;
  }

  std::vector<DataplanePort> ports() const override;

  uint32_t free_slots() const override {
    uint32_t least = options_.slots_per_stripe;
    for_each_core([&](AggregatorCore& core) { least = std::min(least, core.free_slots()); });
    return least;
  }

  Status install(const DataplaneJob& job) override {
    Status status;
    for (size_t i = 0; i < stripes_.size() && status.ok(); ++i) {
      stripes_[i].thread->run([&] { status = stripes_[i].stripe->core.install(job, i); });
    }
    if (!status.ok()) remove(job.job, job.epoch);
    return status;
  }

  void remove(uint16_t job, uint16_t epoch) override {
    for_each_core([&](AggregatorCore& core) { core.remove(job, epoch); });
  }

  std::vector<AggregatorCounter> counters() const override;

  JobProgress progress(uint16_t job, uint16_t epoch) const override {
    JobProgress all;
    for_each_core([&](const AggregatorCore& core) {
      const SlotProgress part = core.progress(job, epoch);
      all.rounds += part.rounds;
      all.open_slots += part.open_slots;
      all.missing |= part.missing;
      all.oldest += part.oldest;
    });
    return all;
  }

  std::vector<int64_t> heard(uint16_t job, uint16_t epoch) const override {
    std::vector<int64_t> latest_us;
    for_each_core([&](const AggregatorCore& core) {
      const std::vector<int64_t> part = core.heard(job, epoch);
      latest_us.resize(std::max(latest_us.size(), part.size()));
      for (size_t member = 0; member < part.size(); ++member)
        latest_us[member] = std::max(latest_us[member], part[member]);
    });
    return latest_us;
  }

 private:
  // In the order of the stripes, each on its thread.
  void for_each_core(const std::function<void(AggregatorCore&)>& command) const {
    for (const auto& served : stripes_) served.thread->run([&] { command(served.stripe->core); });
  }

  const UdpDataplaneOptions options_;
  const std::vector<std::unique_ptr<CoreThread>> threads_;
  const std::vector<ServedStripe> stripes_;
};

std::vector<DataplanePort> UdpDataplane::ports() const {
  std::vector<DataplanePort> ports;
  for (const UdpPort& port : options_.ports) {
    ports.push_back({.address = port.address, .rate_bps = port.rate_bps});
    ports.back().address.port = 0;
  }
  for (const auto& [thread, stripe] : stripes_) {
    DataplanePort& port = ports[stripe->port];
    port.packets_received += stripe->count(&AggregatorCoreCounters::packets_received);
    port.bytes_received += stripe->count(&AggregatorCoreCounters::bytes_received);
    port.packets_sent += stripe->count(&AggregatorCoreCounters::packets_sent);
    port.bytes_sent += stripe->count(&AggregatorCoreCounters::bytes_sent);
  }
  return ports;
}

std::vector<AggregatorCounter> UdpDataplane::counters() const {
  std::vector<AggregatorCounter> counters;
  const auto add = [&](std::string name, Counter AggregatorCoreCounters::*of) {
    uint64_t sum = 0;
    for (const auto& served : stripes_) sum += served.stripe->count(of);
    counters.push_back({std::move(name), sum});
  };
#define NETSUM_ADD(NAME, name) add(#name, &AggregatorCoreCounters::name);
  NETSUM_DATAPLANE_COUNTERS(NETSUM_ADD)
#undef NETSUM_ADD
  append_drops(
      [&](int reason) {
        uint64_t sum = 0;
        for (const auto& served : stripes_)
          sum += served.stripe->core.counters().drops[static_cast<size_t>(reason)].get();
        return sum;
      },
      &counters);
  uint64_t injected = 0, flips = 0, overflowed = 0, refused = 0;
  for (const auto& served : stripes_) {
    injected += served.stripe->injected();
    flips += served.stripe->core.injected_flips();
    overflowed += served.stripe->io->overflowed();
    refused += served.stripe->io->counters().send_refused.get();
  }
  counters.push_back({"sends_refused", refused});
  counters.push_back({"drop_queue_full", overflowed});
  counters.push_back({"drop_injected", injected});
  counters.push_back({"injected_flips", flips});
  return counters;
}

size_t cores_of(const UdpDataplaneOptions& options) {
  size_t last = 0;
  for (const UdpStripe& stripe : options.stripes) last = std::max(last, stripe.core);
  return last + 1;
}

Status check(const UdpDataplaneOptions& options) {
  const auto invalid = [](const std::string& message) {
    return Status(ErrorCode::kInvalidArgument, message);
  };
  const size_t stripes = options.stripes.size();
  if (stripes < 1 || stripes > UdpDataplaneOptions::kMaxStripes) {
    return invalid("an aggregator has 1 to " + std::to_string(UdpDataplaneOptions::kMaxStripes) +
                   " stripes, not " + std::to_string(stripes) + ": give fewer ports or cores");
  }
  if (options.ports.empty()) return invalid("an aggregator needs the address of a port");
  for (size_t i = 0; i < options.ports.size() && options.ports.size() > 1; ++i) {
    const Address& address = options.ports[i].address;
    if (address.is_wildcard())
      return invalid(address.to_string() +
                     " means all addresses of this host: give it alone, or the address of each port");
    if (address.family != options.ports[0].address.family)
      return invalid("ports must be all IPv4 or all IPv6, because each member sends to all of them");
    for (size_t j = 0; j < i; ++j) {
      if (address.ip == options.ports[j].address.ip && address.scope == options.ports[j].address.scope)
        return invalid(address.to_string() + " is given as a port twice: give each address once");
    }
  }
  if (const size_t cores = cores_of(options), usable = usable_processors().size();
      options.pin && cores > usable) {
    return invalid("cannot pin " + std::to_string(cores) + " data-path threads: this process may use " +
                   std::to_string(usable) + " processor core" + (usable == 1 ? "" : "s") +
                   "; give fewer cores, or do not pin");
  }
  if (options.first_udp_port != 0 && options.first_udp_port + stripes - 1 > UINT16_MAX)
    return invalid("there are fewer than " + std::to_string(stripes) + " UDP ports from " +
                   std::to_string(options.first_udp_port) +
                   " on: choose a lower first port, or 0 for free ones");
  return {};
}

Result<std::unique_ptr<Stripe>> open_stripe(const UdpDataplaneOptions& options, size_t index, int epoll) {
  const size_t port = options.stripes[index].port;
  UdpIoOptions io;
  io.bind = options.ports[port].address;
  io.bind.port = static_cast<uint16_t>(options.first_udp_port == 0 ? 0 : options.first_udp_port + index);
  io.answer_from_address_asked = true;
  io.max_packet = NETSUM_HEADER_BYTES + options.payload_bytes;
  io.epoll = epoll;
  if (options.multicast_groups) io.multicast_ttl = options.multicast_ttl;
  if (options.queue_for_each_job) {
    JobQueues queues = queues_for_jobs(static_cast<uint32_t>(options.max_jobs));
    io.queues = queues.count;
    io.queue_selector = std::move(queues.selector);
  }
  auto socket = open_udp(io);
  if (!socket.ok()) return socket.status();
  InjectedFaults faults = options.inject;
  faults.seed += index;
  // Bits flip in slots, not in what has been received.
  auto faulty = inject_faults(std::move(socket).value(), {.loss = faults.loss, .seed = faults.seed});
  if (!faulty.ok()) return faulty.status();
  const AggregatorCore::Limits limits{.max_jobs = options.max_jobs,
                                      .slots = options.slots_per_stripe,
                                      .payload_bytes = options.payload_bytes,
                                      .job_packets_per_s = options.quota.packets_per_s,
                                      .flipped_bits = faults.flipped_bits,
                                      .seed = faults.seed};
  return std::make_unique<Stripe>(port, std::move(faulty).value(), limits);
}

}  // namespace

Result<std::unique_ptr<Dataplane>> start_udp_dataplane(const UdpDataplaneOptions& options) {
  if (Status status = check(options); !status.ok()) return status;
  std::vector<std::unique_ptr<CoreThread>> threads;
  std::vector<UdpDataplane::ServedStripe> stripes;
  for (size_t i = 0; i < options.stripes.size(); ++i) {
    const auto [port, core] = options.stripes[i];
    NETSUM_ASSERT(port < options.ports.size() && core < options.stripes.size());
    while (threads.size() <= core) {
      auto thread = CoreThread::open(options.spin);
      if (!thread.ok()) return thread.status();
      threads.push_back(std::move(thread).value());
    }
    auto stripe = open_stripe(options, i, threads[core]->epoll());
    if (!stripe.ok()) return stripe.status();
    stripes.push_back({threads[core].get(), threads[core]->add(std::move(stripe).value())});
  }
  if (options.drop_privileges) {
    if (const Status status = options.drop_privileges(); !status.ok()) return status;
  }
  auto dataplane = std::make_unique<UdpDataplane>(options, std::move(threads), std::move(stripes));
  if (Status status = dataplane->start(); !status.ok()) return status;
  if (options.pin) {
    if (const Status status = dataplane->pin(usable_processors()); !status.ok()) return status;
  }
  return std::unique_ptr<Dataplane>(std::move(dataplane));
}

}  // namespace netsum
