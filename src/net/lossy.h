// A PacketIo decorator that loses, duplicates, reorders and corrupts packets on purpose, for tests and demos.
#ifndef NETSUM_SRC_NET_LOSSY_H_
#define NETSUM_SRC_NET_LOSSY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsum/options.h"
#include "netsum/status.h"
#include "src/base/counter.h"
#include "src/base/rng.h"
#include "src/net/packet_io.h"

namespace netsum {

// Probabilities are per packet, from 0 to 1, and independent of each other.
struct LossyRates {
  double loss = 0;
  double corruption = 0;   // one bit is flipped, in a copy
  double duplication = 0;  // a second copy follows at once
  double reordering = 0;   // the packet (of a duplicated one: a copy) is held back
};

struct LossyOptions {
  uint64_t seed = 1;
  LossyRates send;
  LossyRates receive;
  // A held packet continues after 1 to this many later packets of its direction, uniformly distributed.
  uint32_t hold_packets = 16;
  // At the latest it continues at the first call after this time, so that the last packets of a stream are not held for
  // ever. Real time makes runs differ: if that matters, set 0 (no limit) or provide `now_us`.
  int64_t hold_us = 2'000;
  std::function<int64_t()> now_us;  // empty: monotonic_us
  // Maximum number of packets that are held or altered at the same time, in each direction. Further packets pass
  // unchanged (counted in no_room).
  uint32_t max_held = 256;
  uint32_t max_packet = 9216;  // bytes; longer packets are not held or altered either
};

struct LossyCounters {
  Counter lost;
  Counter corrupted;
  Counter duplicated;
  Counter reordered;
  Counter no_room;
};

// One direction of the lossy network: takes packets one by one and returns those that are not lost in a list. The same seed
// and the same calls give the same result.
class LossyLane {
 public:
  static constexpr size_t kChunk = 256;  // packets per list that there is room for from the start

  LossyLane(uint64_t seed, const LossyRates& rates, const LossyOptions& limits);

  struct Parcel {
    const uint8_t* data = nullptr;
    uint32_t size = 0;
    Address peer;
    uint16_t local = 0;
  };

  // Starts a new list, with the packets held before. Invalidates the previous list.
  void begin(int64_t now_us);
  // Appends the results of `packet` to the list, by reference if it is not altered and not held.
  void push(const Parcel& packet, int64_t now_us);
  const std::vector<Parcel>& list() const { return list_; }

  // When the next held packet is due by time, or -1.
  int64_t next_due_us() const;
  const LossyCounters& counters() const { return counters_; }

 private:
  struct Held {
    uint32_t buffer = 0;
    Parcel parcel;
    uint32_t packets_left = 0;
    int64_t due_us = 0;
  };

  // Copies `packet` to a buffer of this object; false: there is no room.
  bool copy(const Parcel& packet, uint32_t* buffer, Parcel* out);
  bool hold(const Parcel& packet, int64_t now_us);
  void release_passed();
  void deliver(const Held& held);

  Rng rng_;
  LossyRates rates_;
  uint32_t hold_packets_;
  int64_t hold_us_;
  uint32_t max_packet_;
  std::vector<uint8_t> buffers_;
  std::vector<uint32_t> free_;     // indices of buffers
  std::vector<uint32_t> in_list_;  // buffers that the list refers to: free at the next begin()
  std::vector<Held> held_;         // in the order in which they came
  std::vector<Parcel> list_;
  LossyCounters counters_;
};

class LossyIo final : public PacketIo {
 public:
  LossyIo(std::unique_ptr<PacketIo> inner, const LossyOptions& options);

  void send(std::span<const OutPacket> burst) override;
  size_t receive(std::span<InPacket> burst) override;
  // Also returns when a held packet is due; the next call returns it.
  void wait(int64_t timeout_us) override;
  void wake() override { inner_->wake(); }

  Address local_address() const override { return inner_->local_address(); }
  // Of the inner PacketIo, that is, of the network's packets.
  const PacketIoCounters& counters() const override { return inner_->counters(); }
  uint64_t overflowed() const override { return inner_->overflowed(); }
  std::string_view description() const override;

  // Any thread may read them.
  const LossyCounters& send_counters() const { return send_lane_.counters(); }
  const LossyCounters& receive_counters() const { return receive_lane_.counters(); }

 private:
  void flush_send_lane();

  std::unique_ptr<PacketIo> inner_;
  std::function<int64_t()> now_us_;
  LossyLane send_lane_;
  LossyLane receive_lane_;
  std::vector<OutPacket> outgoing_;
  std::vector<InPacket> incoming_;
  size_t handed_out_ = 0;  // of the receive lane's list
  mutable std::string description_;
};

// `io` itself or, if `faults` are set, inside a LossyIo that drops received packets, and flips bits in them. The LossyIo* is null
// or lives as long as the result. Error: kInvalidArgument if a rate is not a probability.
struct FaultyIo {
  std::unique_ptr<PacketIo> io;
  const LossyIo* faults = nullptr;
};
Result<FaultyIo> inject_faults(std::unique_ptr<PacketIo> io, const InjectedFaults& faults);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_LOSSY_H_
