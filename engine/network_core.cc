#include "engine/network_core.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "wire/mtu.h"

namespace netsum {

namespace {

std::optional<Address> own_shard_of(const WorkerOptions& options) {
  for (const StripeOptions& stripe : options.stripes)
    if (stripe.local) return stripe.address;
  return std::nullopt;
}

}  // namespace

NetworkCore::NetworkCore(std::unique_ptr<PacketIo> io, const WorkerOptions& options,
                         uint64_t link_bytes_per_s)
    : io_(std::move(io)),
      worker_(options),
      overhead_(static_cast<uint64_t>(wire::overhead_bytes(options.stripes.front().address.family))),
      own_shard_(own_shard_of(options)),
      sent_(link_bytes_per_s, bursts::Meter::kLiveBinNs),
      received_meter_(link_bytes_per_s, bursts::Meter::kLiveBinNs) {}

void NetworkCore::poll() {
  received_count_ = io_->receive(received_);
  if (std::exchange(again_, false)) look_again_.note(received_count_ > 0);
}

bool NetworkCore::advance(int64_t now_us) {
  received_meter_.add_packets(
      now_us, std::span<const InPacket>(received_).first(received_count_), overhead_,
      [this](const InPacket& packet) { return !own_shard_ || !(packet.from == *own_shard_); });
  for (size_t i = 0; i < received_count_; ++i) worker_.on_packet(now_us, received_[i]);
  return std::exchange(received_count_, 0) > 0;
}

bool NetworkCore::send(int64_t now_us) {
  const std::span<const OutPacket> due = worker_.collect(now_us);
  if (due.empty()) return false;
  io_->send(due);
  sent_.add_packets(now_us, due, overhead_,
                    [this](const OutPacket& packet) { return !own_shard_ || !(packet.to == *own_shard_); });
  return true;
}

uint64_t NetworkCore::progress() const {
  uint64_t results = 0;
  for (size_t i = 0; i < worker_.stripe_count(); ++i) results += worker_.stripe(i).counters().results.get();
  return results;
}

void NetworkCore::wait(int64_t timeout_us) {
  io_->wait(timeout_us == INT64_MAX ? -1 : std::max<int64_t>(0, timeout_us));
}

}  // namespace netsum
