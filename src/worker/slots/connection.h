// HELLO and WELCOME: whether packets of full size pass to the aggregator and back and, if it sends to a multicast group, from
// that group. Later, a small HELLO asks whether it is the job's turn. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_SLOTS_CONNECTION_H_
#define NETSUM_SRC_WORKER_SLOTS_CONNECTION_H_

#include <cstdint>
#include <optional>

#include "wire/codec.h"

namespace netsum {

class Connection {
 public:
  // `common`: job, epoch and member of all packets. `multicast`: packets to all members come through a group.
  Connection(const netsum_fields& common, uint32_t payload_bytes, bool multicast)
      : common_(common), payload_bytes_(payload_bytes), multicast_(multicast) {}

  // True when the aggregator has answered a full-size HELLO, also through the multicast group if there is one.
  bool welcomed() const { return answered_ && (multicast_heard_ || !multicast_); }
  // True when only small HELLOs are answered: the path's MTU is smaller than configured.
  bool only_small_packets_pass() const { return small_welcomed_ && !answered_ && !multicast_heard_; }
  // True while answers arrive, but none through the multicast group.
  bool multicast_is_silent() const { return answered_ && !welcomed(); }
  // As multicast_is_silent(), for so long that the multicast group does not work.
  bool multicast_is_lost(int64_t now_us) const {
    return multicast_is_silent() && now_us - answered_at_us_ >= kMulticastTimeoutUs;
  }

  // Asks for the job's turn until the aggregator answers. Only when welcomed.
  void ask_for_turn() {
    asks_from_ = hellos_sent_;
    due_ = true;
  }
  bool asks_for_turn() const { return asks_from_.has_value(); }
  void give_up_turn() { asks_from_.reset(); }

  uint32_t hellos_sent() const { return hellos_sent_; }
  // Writes a HELLO if one is due, and returns its size or 0.
  uint32_t write_hello(int64_t now_us, const wire::PacketKey& key, uint8_t* frame);
  // Returns a sample of the round-trip time, in microseconds, if the WELCOME gives one.
  std::optional<int64_t> on_welcome(int64_t now_us, const netsum_fields& fields);
  // While not welcomed, or asking. Returns the time of the next tick.
  int64_t on_tick(int64_t now_us);

 private:
  // A dozen HELLOs. Shorter than any deadline, so that this rank reports the reason before the other ranks' deadlines pass.
  static constexpr int64_t kMulticastTimeoutUs = 2'000'000;
  static constexpr int64_t kAskUs = 2'000;  // between two HELLOs that ask for the turn

  const netsum_fields common_;
  const uint32_t payload_bytes_;
  const bool multicast_;
  bool answered_ = false;  // a full-size HELLO, by unicast
  int64_t answered_at_us_ = 0;
  bool multicast_heard_ = false;  // a full-size WELCOME to all
  bool small_welcomed_ = false;
  bool due_ = true;
  uint32_t hellos_sent_ = 0;
  int64_t sent_at_us_ = 0;
  std::optional<uint32_t> asks_from_;  // the number of the first HELLO that asks
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOTS_CONNECTION_H_
