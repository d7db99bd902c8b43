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

Network::Host* Network::links_of(const Address& address) {
  if (shared_links_.empty()) {
    const auto host = hosts_.find(address);
    return host == hosts_.end() ? nullptr : &host->second;
  }
  const auto shared = shared_links_.find(address);
  const auto host = hosts_.find(shared == shared_links_.end() ? address : shared->second);
  return host == hosts_.end() ? nullptr : &host->second;
}

void Network::hold(const Address& address, int64_t until_us) {
  Host& host = hosts_.at(address);
  host.up.held_until_us = host.down.held_until_us = until_us;
}

void Network::cut_off(const Address& address, bool outbound, bool inbound, int64_t until_us) {
  const auto host = hosts_.find(address);
  if (host == hosts_.end()) return;
  if (outbound) host->second.up.cut_until_us = until_us;
  if (inbound) host->second.down.cut_until_us = until_us;
}

void Network::slow_down(const Address& address, double bytes_per_us, int64_t until_us) {
  const auto host = hosts_.find(address);
  if (host == hosts_.end()) return;
  for (Link* link : {&host->second.up, &host->second.down}) {
    link->slow_until_us = until_us;
    link->slow_bytes_per_us = bytes_per_us;
  }
}

void Network::set_rate(const Address& address, double bytes_per_us) {
  Host& host = hosts_.at(address);
  for (Link* link : {&host.up, &host.down}) link->options.bytes_per_us = bytes_per_us;
}

void Network::tell(const char* what, const Packet& packet) const {
  if (!observer_) return;
  observer_(what, packet.from, {packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), packet.to});
}

void Network::send(const Address& from, const OutPacket& packet) {
  ++counters_.sent;
  trace(1, from, packet.to, packet.data, packet.size);
  if (observer_) observer_("sent", from, packet);
  Host* const host = links_of(from);
  if (host == nullptr || (filter_ && !filter_(from, packet))) {
    ++counters_.lost;
    if (observer_) observer_("lost", from, packet);
    return;
  }
  if (links_of(packet.to) == host) {  // within the host
    const auto copy =
        std::make_shared<Packet>(Packet{from, packet.to, {packet.data, packet.data + packet.size}});
    clock_->at(clock_->now_us() + 1, [this, copy] { deliver(*copy); });
    return;
  }
  Link* up = &host->up;
  const bool twice = rng_.chance(up->options.duplicate);
  if (twice) {
    ++counters_.duplicated;
    if (observer_) observer_("duplicated", from, packet);
  }
  for (int copy = 0; copy < 1 + twice; ++copy) {
    enter_up_link(
        up, std::make_shared<Packet>(Packet{from, packet.to, {packet.data, packet.data + packet.size}}));
  }
}

int64_t Network::pass(Link* link, const Packet& packet) {
  constexpr uint32_t kSlowQueueBytes = 20'000;
  const LinkOptions& options = link->options;
  const auto size = static_cast<uint32_t>(packet.bytes.size());
  const auto now_us = static_cast<double>(std::max(clock_->now_us(), link->held_until_us));
  if (clock_->now_us() < link->cut_until_us) {
    ++counters_.cut_off;
    tell("cut off", packet);
    return -1;
  }
  if ((options.mtu_bytes > 0 && size > options.mtu_bytes) || rng_.chance(options.loss)) {
    ++counters_.lost;
    tell("lost", packet);
    return -1;
  }
  const bool slow = clock_->now_us() < link->slow_until_us;
  const double bytes_per_us = slow ? link->slow_bytes_per_us : options.bytes_per_us;
  double leaves_us = now_us;
  if (bytes_per_us > 0) {
    const double queued_us = link->free_at_us > now_us ? link->free_at_us - now_us : 0;
    if (queued_us * bytes_per_us + size > (slow ? kSlowQueueBytes : options.queue_bytes)) {
      ++counters_.tail_dropped;
      tell("dropped by the queue", packet);
      return -1;
    }
    leaves_us = link->free_at_us = now_us + queued_us + size / bytes_per_us;
  }
  int64_t delay_us = options.delay_us + extra_delay_us_;
  if (options.jitter_us > 0) {
    delay_us += static_cast<int64_t>(rng_.below(static_cast<uint64_t>(options.jitter_us) + 1));
  }
  if (rng_.chance(options.late)) {
    ++counters_.late;
    tell("late", packet);
    const int64_t half = options.late_us / 2;
    delay_us += half + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(half) + 1));
  }
  return static_cast<int64_t>(leaves_us) + delay_us;
}

void Network::damage(const LinkOptions& options, Packet* packet) {
  std::vector<uint8_t>& bytes = packet->bytes;
  if (bytes.empty()) return;
  const bool corrupt = rng_.chance(options.corrupt);
  if (corrupt) {
    for (uint64_t bits = 1 + rng_.below(3); bits > 0; --bits) {
      const uint64_t bit = rng_.below(bytes.size() * 8);
      bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ 1u << bit % 8);
    }
  }
  const bool truncate = rng_.chance(options.truncate);
  if (truncate) bytes.resize(rng_.below(bytes.size()));
  counters_.corrupted += uint64_t{corrupt} + truncate;
  if (corrupt || truncate) tell("corrupted", *packet);
}

void Network::enter_up_link(Link* link, std::shared_ptr<Packet> packet) {
  const int64_t at_us = pass(link, *packet);
  if (at_us < 0) return;
  damage(link->options, packet.get());
  clock_->at(at_us, [this, packet = std::move(packet)] { enter_down_link(packet); });
}

void Network::enter_down_link(const std::shared_ptr<Packet>& packet) {
  Host* const host = links_of(packet->to);
  if (host == nullptr) {
    ++counters_.lost;
    tell("lost", *packet);
    return;
  }
  const int64_t at_us = pass(&host->down, *packet);
  if (at_us < 0) return;
  damage(host->down.options, packet.get());
  clock_->at(at_us, [this, packet] { deliver(*packet); });
}

void Network::deliver(const Packet& packet) {
  const auto host = hosts_.find(packet.to);
  if (host == hosts_.end()) {  // detached while the packet was in flight
    ++counters_.lost;
    tell("lost", packet);
    return;
  }
  ++counters_.delivered;
  tell("delivered", packet);
  trace(2, packet.from, packet.to, packet.bytes.data(), packet.bytes.size());
  host->second.receiver({packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), packet.from});
}

void Network::trace(uint64_t what, const Address& from, const Address& to, const uint8_t* data, size_t size) {
  uint64_t hash = netsum_mix64(trace_hash_ ^ static_cast<uint64_t>(clock_->now_us()) << 8 ^ what);
  hash = netsum_mix64(hash ^ netsum_load64(from.ip.data()) ^ static_cast<uint64_t>(from.port) << 48);
  hash = netsum_mix64(hash ^ netsum_load64(to.ip.data()) ^ static_cast<uint64_t>(to.port) << 48);
  hash = netsum_mix64(hash ^ size);
  // The header contains the tag, which depends on the payload.
  for (size_t left = std::min<size_t>(size, NETSUM_HEADER_BYTES); left > 0;) {
    uint64_t word = 0;
    const size_t piece = left < 8 ? left : 8;
    std::memcpy(&word, data, piece);
    hash = netsum_mix64(hash ^ word);
    data += piece;
    left -= piece;
  }
  trace_hash_ = hash;
}

}  // namespace netsum::emulate
