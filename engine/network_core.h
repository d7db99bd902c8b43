// Sums over the network: a WorkerCore and its packet I/O.
#ifndef NETSUM_ENGINE_NETWORK_CORE_H_
#define NETSUM_ENGINE_NETWORK_CORE_H_

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "src/base/look_again.h"
#include "src/bursts/meter.h"
#include "src/net/packet_io.h"
#include "src/worker/worker_core.h"

namespace netsum {

class NetworkCore final : public EngineCore {
 public:
  // `link_bytes_per_s`: this core's part of the host's link, for the meters; 0: unknown.
  NetworkCore(std::unique_ptr<PacketIo> io, const WorkerOptions& options, uint64_t link_bytes_per_s = 0);

  const WorkerCore& worker() const { return worker_; }                 // for its counters: any thread
  const PacketIoCounters& packets() const { return io_->counters(); }  // likewise

  // Without what passes between this rank and its own shard. Any thread.
  const bursts::Meter& sent() const { return sent_; }
  const bursts::Meter& received() const { return received_meter_; }

  void submit(uint64_t id, OperationSpec&& spec) override { worker_.submit(id, std::move(spec)); }
  void poll() override;
  bool advance(int64_t now_us) override;
  bool expects_more() override { return again_ = look_again_.pays(); }
  bool send(int64_t now_us) override;
  void wait(int64_t timeout_us) override;
  void wake() override { io_->wake(); }
  void on_tick(int64_t now_us) override { worker_.on_tick(now_us); }
  int64_t next_tick_us() const override { return worker_.next_tick_us(); }
  bool connected() const override { return worker_.connected(); }
  std::string not_connected_reason() const override { return worker_.not_connected_reason(); }
  void report_delivered() override { worker_.report_delivered(); }
  void take_completions(std::vector<Completion>* out) override { worker_.take_completions(out); }
  void fail(const Status& status) override { worker_.fail(status); }
  const Status& status() const override { return worker_.status(); }
  bool idle() const override { return worker_.idle(); }
  uint64_t progress() const override;

 private:
  const std::unique_ptr<PacketIo> io_;
  WorkerCore worker_;
  std::array<InPacket, WorkerCore::kBurst> received_;
  size_t received_count_ = 0;
  LookAgain look_again_;
  bool again_ = false;       // the next poll() shows whether it pays
  const uint64_t overhead_;  // bytes around a datagram
  const std::optional<Address> own_shard_;
  bursts::Meter sent_, received_meter_;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_NETWORK_CORE_H_
