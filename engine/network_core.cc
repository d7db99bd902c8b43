#include "engine/network_core.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "wire/mtu.h"

namespace netsum {

namespace {

constexpr int64_t kBinNs = 1'000'000;

std::optional<Address> own_shard_of(const WorkerOptions& options) {
  for (const StripeOptions& stripe : options.stripes)
    if (stripe.local) return stripe.address;
  return std::nullopt;
}

const Address& other_end(const OutPacket& packet) {
  return packet.to;
}
const Address& other_end(const InPacket& packet) {
  return packet.from;
}

template <typename Packet>
void add_to_meter(int64_t now_us, std::span<const Packet> packets, uint64_t overhead,
                  const std::optional<Address>& own_shard, bursts::Meter* meter) {
  uint64_t bytes = 0;
  for (const Packet& packet : packets)
    if (!own_shard || !(other_end(packet) == *own_shard)) bytes += packet.size + overhead;
  if (bytes > 0) meter->add(now_us * 1000, bytes);
}

}  // namespace

NetworkCore::NetworkCore(std::unique_ptr<PacketIo> io, const WorkerOptions& options,
                         uint64_t link_bytes_per_s)
    : io_(std::move(io)),
      worker_(options),
      overhead_(static_cast<uint64_t>(wire::overhead_bytes(options.stripes.front().address.family))),
      own_shard_(own_shard_of(options)),
      sent_(link_bytes_per_s, kBinNs),
      received_meter_(link_bytes_per_s, kBinNs) {}

void NetworkCore::poll() {
  received_count_ = io_->receive(received_);
}

bool NetworkCore::advance(int64_t now_us) {
  add_to_meter(now_us, std::span<const InPacket>(received_).first(received_count_), overhead_, own_shard_,
               &received_meter_);
  for (size_t i = 0; i < received_count_; ++i) worker_.on_packet(now_us, received_[i]);
  return std::exchange(received_count_, 0) > 0;
}

bool NetworkCore::send(int64_t now_us) {
  const std::span<const OutPacket> due = worker_.collect(now_us);
  if (due.empty()) return false;
  io_->send(due);
  add_to_meter(now_us, due, overhead_, own_shard_, &sent_);
  return true;
}

void NetworkCore::wait(int64_t timeout_us) {
  io_->wait(timeout_us == INT64_MAX ? -1 : std::max<int64_t>(0, timeout_us));
}

}  // namespace netsum
