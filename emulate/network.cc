#include "emulate/network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "wire/packet.h"

namespace netsum::emulate {

void Network::attach(const Address& address, const LinkOptions& up, const LinkOptions& down,
                     Receiver receiver) {
  hosts_[address] = Host{{up}, {down}, std::move(receiver)};
}

void Network::hold(const Address& address, int64_t until_us) {
  Host& host = hosts_.at(address);
  host.up.held_until_us = host.down.held_until_us = until_us;
}

void Network::send(const Address& from, const OutPacket& packet) {
  ++counters_.sent;
  trace(1, from, packet.to, packet.data, packet.size);
  const auto host = hosts_.find(from);
  if (host == hosts_.end() || (filter_ && !filter_(from, packet))) {
    ++counters_.lost;
    return;
  }
  Link* up = &host->second.up;
  const bool twice = rng_.chance(up->options.duplicate);
  if (twice) ++counters_.duplicated;
  for (int copy = 0; copy < 1 + twice; ++copy) {
    enter_up_link(
        up, std::make_shared<Packet>(Packet{from, packet.to, {packet.data, packet.data + packet.size}}));
  }
}

int64_t Network::pass(Link* link, uint32_t size) {
  const LinkOptions& options = link->options;
  const auto now_us = static_cast<double>(std::max(clock_->now_us(), link->held_until_us));
  if ((options.mtu_bytes > 0 && size > options.mtu_bytes) || rng_.chance(options.loss)) {
    ++counters_.lost;
    return -1;
  }
  double leaves_us = now_us;
  if (options.bytes_per_us > 0) {
    const double queued_us = link->free_at_us > now_us ? link->free_at_us - now_us : 0;
    if (queued_us * options.bytes_per_us + size > options.queue_bytes) {
      ++counters_.tail_dropped;
      return -1;
    }
    leaves_us = link->free_at_us = now_us + queued_us + size / options.bytes_per_us;
  }
  int64_t delay_us = options.delay_us + extra_delay_us_;
  if (options.jitter_us > 0) {
    delay_us += static_cast<int64_t>(rng_.below(static_cast<uint64_t>(options.jitter_us) + 1));
  }
  if (rng_.chance(options.late)) {
    ++counters_.late;
    const int64_t half = options.late_us / 2;
    delay_us += half + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(half) + 1));
  }
  return static_cast<int64_t>(leaves_us) + delay_us;
}

void Network::damage(const LinkOptions& options, std::vector<uint8_t>* bytes) {
  if (bytes->empty()) return;
  if (rng_.chance(options.corrupt)) {
    ++counters_.damaged;
    for (uint64_t bits = 1 + rng_.below(3); bits > 0; --bits) {
      const uint64_t bit = rng_.below(bytes->size() * 8);
      (*bytes)[bit / 8] = static_cast<uint8_t>((*bytes)[bit / 8] ^ 1u << bit % 8);
    }
  }
  if (rng_.chance(options.truncate)) {
    ++counters_.damaged;
    bytes->resize(rng_.below(bytes->size()));
  }
}

void Network::enter_up_link(Link* link, std::shared_ptr<Packet> packet) {
  const int64_t at_us = pass(link, static_cast<uint32_t>(packet->bytes.size()));
  if (at_us < 0) return;
  damage(link->options, &packet->bytes);
  clock_->at(at_us, [this, packet = std::move(packet)] { enter_down_link(packet); });
}

void Network::enter_down_link(const std::shared_ptr<Packet>& packet) {
  const auto host = hosts_.find(packet->to);
  if (host == hosts_.end()) {
    ++counters_.lost;
    return;
  }
  const int64_t at_us = pass(&host->second.down, static_cast<uint32_t>(packet->bytes.size()));
  if (at_us < 0) return;
  damage(host->second.down.options, &packet->bytes);
  clock_->at(at_us, [this, packet] { deliver(*packet); });
}

void Network::deliver(const Packet& packet) {
  const auto host = hosts_.find(packet.to);
  if (host == hosts_.end()) {  // gone while the packet was under way
    ++counters_.lost;
    return;
  }
  ++counters_.delivered;
  trace(2, packet.from, packet.to, packet.bytes.data(), packet.bytes.size());
  host->second.receiver({packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), packet.from});
}

void Network::trace(uint64_t what, const Address& from, const Address& to, const uint8_t* data, size_t size) {
  uint64_t hash = netsum_mix64(trace_hash_ ^ static_cast<uint64_t>(clock_->now_us()) << 8 ^ what);
  hash = netsum_mix64(hash ^ netsum_load64(from.ip.data()) ^ static_cast<uint64_t>(from.port) << 48);
  hash = netsum_mix64(hash ^ netsum_load64(to.ip.data()) ^ static_cast<uint64_t>(to.port) << 48);
  while (size > 0) {
    uint64_t word = 0;
    const size_t piece = size < 8 ? size : 8;
    std::memcpy(&word, data, piece);
    hash = netsum_mix64(hash ^ word);
    data += piece;
    size -= piece;
  }
  trace_hash_ = hash;
}

}  // namespace netsum::emulate
