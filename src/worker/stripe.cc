// Construction of a stripe, and what it reports. Sending: stripe_send.cc; receiving: stripe_receive.cc.
#include "src/worker/stripe.h"

#include <algorithm>

#include "src/base/assert.h"
#include "wire/mtu.h"

namespace netsum {

namespace {

// The stripe's part of the chunks.
double share_of(const ChunkMap& map, size_t stripe) {
  const size_t length = map.period().size();
  return static_cast<double>(map.count(0, length, stripe)) / static_cast<double>(length);
}

double largest_share(const ChunkMap& map) {
  double largest = 0;
  for (size_t stripe = 0; stripe < map.stripes(); ++stripe)
    largest = std::max(largest, share_of(map, stripe));
  return largest;
}

SlotsOptions slots_options(const StripeOptions& options) {
  NETSUM_ASSERT(options.data_slots > 0 && options.scale_slots > 0);
  NETSUM_ASSERT(options.payload_bytes >= wire::kMinPayload &&
                options.payload_bytes % NETSUM_PAYLOAD_MULTIPLE == 0);
  return {.common = {.job = options.job, .epoch = options.epoch, .member = options.member},
          .payload_bytes = options.payload_bytes,
          .multicast = options.multicast_group.valid(),
          .data_slots = options.data_slots,
          .scale_slots = options.scale_slots,
          .share = share_of(*options.chunk_map, options.index),
          .largest_share = largest_share(*options.chunk_map)};
}

uint32_t lane_room_of(const StripeOptions& options) {
  return options.sum_key.has_value() ? verify::room_for_lanes(options.payload_bytes, options.summands)
                                     : options.payload_bytes;
}

}  // namespace

Stripe::Stripe(const StripeOptions& options)
    : options_(options),
      key_(options.key, options.payload_bytes, options.tag),
      chunks_(options, lane_room_of(options)),
      slots_(slots_options(options), &key_, &counters_),
      steps_(slots_.count()),
      groups_(slots_.layout(), options.scale_slots),
      agreement_(chunks_, &groups_, &counters_,
                 options.predicts_scales
                     ? &predicted_.emplace(chunks_, &counters_, options.payload_bytes, options.data_slots)
                     : nullptr,
                 options.sum_key.has_value() ? VerifiedSteps::confirmed_at_once(lane_room()) : lane_room()),
      lanes_(chunks_, options.payload_bytes),
      inline_sums_(options_, chunks_),
      without_scales_(chunks_, options.payload_bytes),
      empty_packets_(options.takes_empty_packets, options.takes_no_result, options.payload_bytes),
      cursors_{DataCursor(SlotLayout::kSums, chunks_, &groups_, &agreement_),
               DataCursor(SlotLayout::kMoves, chunks_, &groups_, &agreement_)} {
  if (options.sum_key.has_value()) verified_.emplace(options_, lane_room(), &groups_, &counters_);
  NETSUM_ASSERT(!verified_.has_value() ||
                !(options.sums_values || options.sums_partial_floats || options.takes_empty_packets ||
                  options.takes_no_result || options.predicts_scales));
  groups_.for_each([&](ScaleGroup* group) {
    group->agreed.resize(options.payload_bytes);
    if (verified_.has_value()) group->own.resize(options.payload_bytes);
    if (predicted_.has_value()) PredictedScales::reserve(options.payload_bytes, group);
  });
}

void Stripe::enqueue(Operation* operation) {
  const size_t chunks = chunks_.count(*operation);
  if (chunks == 0) return;
  StepKind opens_with = StepKind::kAgree;
  if (WithoutScales::is_for(*operation))
    opens_with = StepKind::kFirst;
  else if (inline_sums_.is_for(*operation))
    opens_with = StepKind::kInlineSum;
  groups_.enqueue({.operation = operation, .chunks = chunks, .opens_with = opens_with});
}

// The lowest unfinished step of data, or else the oldest scale group that waits: every live rank contributes to it. Ranks
// may be missing from later steps only because their windows are smaller.
Stripe::Waiting Stripe::waiting(int64_t now_us) const {
  std::optional<uint32_t> oldest;
  for (size_t stream = 0; stream < SlotLayout::kStreams; ++stream) {
    std::optional<uint32_t> slot = slots_.lowest_waiting(stream);
    if (!slot)
      slot =
          groups_.first_waiting(stream, [&](uint32_t scale_slot) { return slots_.is_waiting(scale_slot); });
    if (!slot) continue;
    if (!oldest || steps_[*slot].operation->number() < steps_[*oldest].operation->number()) oldest = slot;
  }
  if (!oldest) return {};
  return {.operation = steps_[*oldest].operation,
          .answered = slots_.is_answered(*oldest),
          .contributed = slots_.contributed(*oldest),
          .silent_us = slots_.silent_us(now_us, *oldest)};
}

}  // namespace netsum
