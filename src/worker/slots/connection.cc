#include "src/worker/slots/connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace netsum {

uint32_t Connection::write_hello(int64_t now_us, const wire::PacketKey& key, uint8_t* frame) {
  if (!std::exchange(due_, false)) return 0;
  // Every third HELLO is small, to distinguish a path with a smaller MTU from an aggregator that does not answer.
  const bool small = asks_for_turn() || hellos_sent_ % 3 == 2;
  netsum_fields fields = common_;
  fields.type = NETSUM_TYPE_HELLO;
  fields.round = hellos_sent_;  // echoed, so that the answer identifies its HELLO
  fields.payload_bytes = small ? 0 : payload_bytes_;
  std::memset(frame + NETSUM_HEADER_BYTES, 0, fields.payload_bytes);
  ++hellos_sent_;
  sent_at_us_ = now_us;
  return wire::write_header(fields, key, frame);
}

std::optional<int64_t> Connection::on_welcome(int64_t now_us, const netsum_fields& fields) {
  // A late answer to an earlier one of these HELLOs counts, too.
  if (asks_for_turn() && fields.round - *asks_from_ < hellos_sent_ - *asks_from_) asks_from_.reset();
  if (fields.payload_bytes != payload_bytes_) {
    small_welcomed_ = true;
    return {};
  }
  if (fields.member == NETSUM_MEMBER_ALL) {
    multicast_heard_ = true;  // also as the answer to another member's HELLO
    return {};
  }
  if (std::exchange(answered_, true)) return {};
  answered_at_us_ = now_us;
  if (fields.round + 1 != hellos_sent_) return {};
  return now_us - sent_at_us_;
}

// Waits double from 2 to 256 ms: an embedded shard may learn of the job a little later than this worker.
int64_t Connection::on_tick(int64_t now_us) {
  const int64_t pause_us = asks_for_turn() ? kAskUs : int64_t{1000} << std::min(hellos_sent_, 8u);
  const int64_t retry_at = sent_at_us_ + pause_us;
  if (now_us >= retry_at) due_ = true;
  return std::max(retry_at, now_us + 1000);
}

}  // namespace netsum
