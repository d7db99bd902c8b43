#include "src/net/lossy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "src/base/clock.h"

namespace netsum {
namespace {

// Different seeds, so that the two directions do not lose the same packets.
uint64_t lane_seed(uint64_t seed, uint64_t lane) {
  return Rng(seed ^ (lane << 63)).next();
}

}  // namespace

LossyLane::LossyLane(uint64_t seed, const LossyRates& rates, const LossyOptions& limits)
    : rng_(seed),
      rates_(rates),
      hold_packets_(std::max<uint32_t>(1, limits.hold_packets)),
      hold_us_(limits.hold_us),
      max_packet_(limits.max_packet) {
  for (const double rate : {rates.loss, rates.corruption, rates.duplication, rates.reordering}) {
    NETSUM_ASSERT(rate >= 0 && rate <= 1);
  }
  buffers_.resize(size_t{limits.max_held} * max_packet_);
  free_.reserve(limits.max_held);
  for (uint32_t i = limits.max_held; i-- > 0;) free_.push_back(i);
  in_list_.reserve(limits.max_held);
  held_.reserve(limits.max_held);
  list_.reserve(2 * kChunk + limits.max_held);
}

void LossyLane::begin(int64_t now_us) {
  list_.clear();
  free_.insert(free_.end(), in_list_.begin(), in_list_.end());
  in_list_.clear();
  if (hold_us_ == 0) return;
  for (const Held& held : held_) {
    if (held.due_us <= now_us) deliver(held);
  }
  std::erase_if(held_, [&](const Held& held) { return held.due_us <= now_us; });
}

void LossyLane::push(const Parcel& packet, int64_t now_us) {
  // All four are drawn for every packet, so that a changed rate does not change which packets the others affect.
  const bool lose = rng_.chance(rates_.loss);
  const bool corrupt = rng_.chance(rates_.corruption);
  const bool duplicate = rng_.chance(rates_.duplication);
  const bool reorder = rng_.chance(rates_.reordering);
  if (lose) {
    counters_.lost.add();
    release_passed();
    return;
  }
  Parcel parcel = packet;
  uint32_t buffer = 0;
  if (corrupt && packet.size > 0 && copy(packet, &buffer, &parcel)) {
    in_list_.push_back(buffer);
    const uint64_t bit = rng_.below(uint64_t{packet.size} * 8);
    buffers_[size_t{buffer} * max_packet_ + bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    counters_.corrupted.add();
  }
  if (duplicate) {
    list_.push_back(parcel);
    counters_.duplicated.add();
  }
  if (!reorder || !hold(parcel, now_us)) list_.push_back(parcel);
  release_passed();
}

bool LossyLane::copy(const Parcel& packet, uint32_t* buffer, Parcel* out) {
  if (free_.empty() || packet.size > max_packet_) {
    counters_.no_room.add();
    return false;
  }
  *buffer = free_.back();
  free_.pop_back();
  uint8_t* bytes = buffers_.data() + size_t{*buffer} * max_packet_;
  if (packet.size > 0) std::memcpy(bytes, packet.data, packet.size);
  *out = {bytes, packet.size, packet.peer, packet.local};
  return true;
}

bool LossyLane::hold(const Parcel& packet, int64_t now_us) {
  Held held;
  if (!copy(packet, &held.buffer, &held.parcel)) return false;
  // One more than the number of later packets, because the push() in progress subtracts one.
  held.packets_left = 2 + static_cast<uint32_t>(rng_.below(hold_packets_));
  held.due_us = now_us + hold_us_;
  held_.push_back(held);
  counters_.reordered.add();
  return true;
}

void LossyLane::release_passed() {
  for (Held& held : held_) {
    if (--held.packets_left == 0) deliver(held);
  }
  std::erase_if(held_, [](const Held& held) { return held.packets_left == 0; });
}

void LossyLane::deliver(const Held& held) {
  list_.push_back(held.parcel);
  in_list_.push_back(held.buffer);
}

int64_t LossyLane::next_due_us() const {
  // Every packet is held equally long, so the oldest is the first.
  return hold_us_ == 0 || held_.empty() ? -1 : held_.front().due_us;
}

LossyIo::LossyIo(std::unique_ptr<PacketIo> inner, const LossyOptions& options)
    : inner_(std::move(inner)),
      now_us_(options.now_us ? options.now_us : monotonic_us),
      send_lane_(lane_seed(options.seed, 0), options.send, options),
      receive_lane_(lane_seed(options.seed, 1), options.receive, options),
      incoming_(LossyLane::kChunk) {
  outgoing_.reserve(2 * LossyLane::kChunk + options.max_held);
}

void LossyIo::send(std::span<const OutPacket> burst) {
  while (!burst.empty()) {
    const std::span<const OutPacket> chunk = burst.first(std::min(burst.size(), LossyLane::kChunk));
    burst = burst.subspan(chunk.size());
    const int64_t now = now_us_();
    send_lane_.begin(now);
    for (const OutPacket& packet : chunk) {
      send_lane_.push({packet.data, packet.size, packet.to, packet.local}, now);
    }
    flush_send_lane();
  }
}

void LossyIo::flush_send_lane() {
  outgoing_.clear();
  for (const LossyLane::Parcel& parcel : send_lane_.list()) {
    outgoing_.push_back({parcel.data, parcel.size, parcel.peer, parcel.local});
  }
  if (!outgoing_.empty()) inner_->send(outgoing_);
}

size_t LossyIo::receive(std::span<InPacket> burst) {
  const int64_t now = now_us_();
  // Sends the held packets that are due, because a caller may only receive.
  if (const int64_t due = send_lane_.next_due_us(); due >= 0 && due <= now) {
    send_lane_.begin(now);
    flush_send_lane();
  }
  // The rest of the list may point into the inner PacketIo, so it is returned before the next receive().
  if (handed_out_ == receive_lane_.list().size()) {
    receive_lane_.begin(now);
    handed_out_ = 0;
    // If packets were lost, there is still room in the burst: repeat until it has packets or nothing has arrived.
    while (receive_lane_.list().empty()) {
      const size_t got =
          inner_->receive(std::span(incoming_).first(std::min(burst.size(), LossyLane::kChunk)));
      if (got == 0) break;
      for (const InPacket& packet : std::span(incoming_).first(got)) {
        receive_lane_.push({packet.data, packet.size, packet.from, packet.local}, now);
      }
    }
  }
  const std::vector<LossyLane::Parcel>& list = receive_lane_.list();
  size_t filled = 0;
  for (; filled < burst.size() && handed_out_ < list.size(); ++handed_out_) {
    const LossyLane::Parcel& parcel = list[handed_out_];
    burst[filled++] = {parcel.data, parcel.size, parcel.peer, parcel.local};
  }
  return filled;
}

void LossyIo::wait(int64_t timeout_us) {
  if (handed_out_ < receive_lane_.list().size()) return;
  const int64_t now = now_us_();
  for (const int64_t due : {send_lane_.next_due_us(), receive_lane_.next_due_us()}) {
    if (due < 0) continue;
    const int64_t left = std::max<int64_t>(0, due - now);
    timeout_us = timeout_us < 0 ? left : std::min(timeout_us, left);
  }
  inner_->wait(timeout_us);
}

std::string_view LossyIo::description() const {
  description_ = "lossy " + std::string(inner_->description());
  return description_;
}

Result<FaultyIo> inject_faults(std::unique_ptr<PacketIo> io, const InjectedFaults& faults) {
  for (const auto& [what, rate] :
       {std::pair("loss", faults.loss), std::pair("flipped bits", faults.flipped_bits)}) {
    if (!(rate >= 0 && rate <= 1))
      return Status(ErrorCode::kInvalidArgument, std::string("injected ") + what +
                                                     " must be a probability from 0 to 1, not " +
                                                     std::to_string(rate));
  }
  if (faults.loss == 0 && faults.flipped_bits == 0) return FaultyIo{std::move(io), nullptr};
  LossyOptions options;
  options.seed = faults.seed;
  options.receive.loss = faults.loss;
  options.receive.corruption = faults.flipped_bits;
  if (faults.flipped_bits == 0) options.max_held = 0;  // nothing is altered
  auto lossy = std::make_unique<LossyIo>(std::move(io), options);
  const LossyIo* const view = lossy.get();
  return FaultyIo{std::move(lossy), view};
}

}  // namespace netsum
