// Sums in the memory that the ranks of a host share: a HostCore, how it waits and, with several hosts, the engine of the
// network.
#ifndef NETSUM_ENGINE_SHARED_MEMORY_CORE_H_
#define NETSUM_ENGINE_SHARED_MEMORY_CORE_H_

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_core.h"
#include "src/base/spin_wait.h"
#include "src/host/host_core.h"

namespace netsum {

class SharedMemoryCore final : public EngineCore {
 public:
  struct Options {
    Placement placement;
    int world_size = 1;
    EncodingOptions encoding;
    uint32_t payload_bytes = 0;
    bool network_adds_floats = false;                   // as HostOptions::network_adds_floats
    std::chrono::microseconds spin{SpinWait::kSpinUs};  // as CommunicatorOptions::spin
  };
  // `network` sums over several hosts; null if there is only this one, or if this rank takes no part in that. It must
  // live as long as this core is driven, and end its operations before this core is destroyed.
  SharedMemoryCore(Options options, std::unique_ptr<Segment> segment, Engine* network);

  const HostCounters& counters() const { return core_.counters(); }  // any thread

  void submit(uint64_t id, OperationSpec&& spec) override { core_.submit(id, std::move(spec)); }
  void poll() override { wake_ups_ = core_.event().notifications(); }
  bool advance(int64_t now_us) override;
  bool send(int64_t) override { return false; }  // advance() leaves nothing to be sent
  void wait(int64_t timeout_us) override;
  void wake() override { core_.event().notify(FutexEvent::kAnything); }
  void on_tick(int64_t now_us) override { core_.on_tick(now_us); }
  int64_t next_tick_us() const override { return core_.next_tick_us(); }
  bool connected() const override { return true; }
  std::string not_connected_reason() const override { return ""; }
  void report_delivered() override { core_.report_delivered(); }
  void take_completions(std::vector<Completion>* out) override;
  void fail(const Status& status) override { core_.fail(status); }
  const Status& status() const override { return core_.status(); }
  bool idle() const override { return core_.idle(); }
  uint64_t progress() const override { return core_.counters().bytes_taken.get(); }

 private:
  void sum_over_hosts(PartialSum part);
  bool take_sums_of_hosts();

  HostCore core_;
  Engine* const network_;
  uint32_t wake_ups_ = 0;         // read before looking for work, so that wait() notices later events
  std::array<SpinWait, 2> spin_;  // with operations in progress, and without
  std::vector<HostCore::Completion> completions_;
  bool network_failed_ = false;  // this core's failure has been passed to the network's engine

  // Sums that the network has completed, by segment slot. The flag avoids the lock while there are none.
  std::mutex mutex_;
  std::atomic<bool> has_sums_{false};
  std::vector<std::pair<uint32_t, Status>> sums_;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_SHARED_MEMORY_CORE_H_
