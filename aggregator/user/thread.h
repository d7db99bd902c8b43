// The threads of the user-space dataplane and the sockets that they serve.
#ifndef NETSUM_AGGREGATOR_USER_THREAD_H_
#define NETSUM_AGGREGATOR_USER_THREAD_H_

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "aggregator/user/core.h"
#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "src/base/look_again.h"
#include "src/bursts/meter.h"
#include "src/net/in_process.h"
#include "src/net/lossy.h"
#include "src/net/packet_io.h"
#include "src/net/wake_event.h"
#include "wire/mtu.h"

namespace netsum {

// One endpoint, its slots and its counters.
struct Endpoint {
  // `bytes_per_s`: this endpoint's part of the port's link; 0: unknown.
  // `hub`: in `io_with_faults`, or null.
  Endpoint(size_t port_index, uint64_t bytes_per_s, FaultyIo io_with_faults, InProcessHub* hub_in_io,
           const AggregatorCore::Limits& limits)
      : port(port_index),
        received(bytes_per_s, bursts::Meter::kLiveBinNs),
        sent(bytes_per_s, bursts::Meter::kLiveBinNs),
        io(std::move(io_with_faults.io)),
        overhead(static_cast<uint64_t>(wire::overhead_bytes(io->local_address().family))),
        faults(io_with_faults.faults),
        hub(hub_in_io),
        slots(limits.slots),
        core(limits) {}

  bool has_jobs() const { return core.free_slots() < slots; }
  uint64_t count(Counter AggregatorCoreCounters::*of) const;
  uint64_t injected() const { return faults == nullptr ? 0 : faults->receive_counters().lost.get(); }

  const size_t port;
  bursts::Meter received, sent;
  const std::unique_ptr<PacketIo> io;
  const uint64_t overhead;      // bytes around a datagram
  const LossyIo* const faults;  // null if no faults are injected
  InProcessHub* const hub;      // null if no member is in this process
  const uint32_t slots;
  AggregatorCore core;
};

// A data-path thread and its stripes. Other threads access the stripes' cores only through run(): the loop executes posted
// commands between bursts, so the data path takes the lock only if a command has been posted.
class CoreThread final : private Inbox {
 public:
  // Errors: kResourceExhausted.
  static Result<std::unique_ptr<CoreThread>> open(std::chrono::microseconds spin);
  ~CoreThread() override;

  // For UdpIoOptions::epoll of its stripes.
  int epoll() const { return event_.epoll(); }
  // Before start().
  Endpoint* add(std::unique_ptr<Endpoint> endpoint) {
    endpoints_.push_back(std::move(endpoint));
    return endpoints_.back().get();
  }
  Status start();
  // After start().
  Status pin(int processor);

  // Runs `command` on the core's thread, and waits for its end: at most one burst of each stripe.
  void run(const std::function<void()>& command);
  // A member of this process has put so many packets into its lane, and the thread sleeps. Few are served by the caller, which is
  // faster than to wake the thread.
  void take_from_lanes(size_t packets);

 private:
  explicit CoreThread(WakeEvent event) : event_(std::move(event)) { event_.watch(this); }

  // Of all endpoints.
  bool has_packets() const override;
  bool fall_asleep() override;
  void wake_up() override;

  void loop();
  bool has_jobs() const;
  bool set_asleep();  // with sleep_ locked
  // One burst. Returns the number of its packets.
  size_t serve(Endpoint* endpoint);
  void run_posted();

  WakeEvent event_;
  std::mutex sleep_;
  bool asleep_ = false;  // then whoever has locked sleep_ uses the endpoints; otherwise the thread does
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::array<InPacket, AggregatorCore::kMaxBurst> burst_;
  LookAgain look_again_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<const std::function<void()>*> posted_;
  uint64_t posted_count_ = 0;
  uint64_t done_count_ = 0;
  std::atomic<bool> has_posted_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_USER_THREAD_H_
