#include "src/net/af_xdp/next_hops.h"

#include <utility>

namespace netsum {
namespace {

constexpr int64_t kCheckUs = 1'000'000;
constexpr int64_t kUnknownNeighbourUs =
    1'000;  // meanwhile the UDP socket's packet makes the kernel resolve it

}  // namespace

NextHops::NextHops(Routing routing, const Interface& interface, const Address& local)
    : routing_(std::move(routing)), interface_(interface), local_(local) {
  hops_.reserve(kMaxDestinations);
}

const FrameHeaders* NextHops::find(const Address& to, int64_t now_us) {
  if (last_ >= hops_.size() || hops_[last_].to != to) {
    for (last_ = 0; last_ < hops_.size() && hops_[last_].to != to;) ++last_;
    if (last_ == hops_.size()) {
      if (hops_.size() == kMaxDestinations) return nullptr;
      hops_.push_back({.to = to, .headers = {}});
    }
  }
  Hop* hop = &hops_[last_];
  if (now_us >= hop->check_at_us) return check(hop, now_us);
  return hop->usable ? &hop->headers : nullptr;
}

const FrameHeaders* NextHops::check(Hop* hop, int64_t now_us) {
  const bool was_usable = std::exchange(hop->usable, false);
  hop->check_at_us = now_us + kCheckUs;
  const std::optional<Route> route = routing_.route(hop->to);
  if (!route || route->interface != interface_.index || route->source.ip != local_.ip) return nullptr;
  const std::optional<MacAddress> mac = routing_.neighbour(interface_.index, route->next_hop);
  if (!mac) {
    hop->check_at_us = now_us + kUnknownNeighbourUs;
    return nullptr;
  }
  hop->headers = FrameHeaders(interface_.mac, local_, *mac, hop->to);
  hop->usable = true;
  return was_usable ? nullptr : &hop->headers;
}

}  // namespace netsum
