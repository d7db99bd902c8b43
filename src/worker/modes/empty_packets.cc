#include "src/worker/modes/empty_packets.h"

#include <cstring>

#include "src/kernels/kernels.h"

namespace netsum {

OwnLanes EmptyPackets::own_lanes_of(const Step& step) const {
  if (!contributions_ || netsum_is_values(step.packet.format)) return OwnLanes::kSent;
  const Operation& operation = *step.operation;
  if (step.kind == StepKind::kAgree) return operation.contributes() ? OwnLanes::kSent : OwnLanes::kNone;
  if (!operation.contributes_to(step.chunk)) return OwnLanes::kNone;
  return operation.is_for_this_rank_alone(step.chunk) ? OwnLanes::kKept : OwnLanes::kSent;
}

void EmptyPackets::decide(bool discarded, Step* step) const {
  step->own = discarded ? OwnLanes::kNone : own_lanes_of(*step);
  step->no_result = results_ && step->has_lanes() && !step->together &&
                    (discarded || !step->operation->needs_result(step->chunk));
}

bool EmptyPackets::write(const Step& step, bool resent, bool discarded, netsum_fields* fields,
                         uint8_t* payload) const {
  if (step.no_result) fields->flags |= NETSUM_FLAG_NO_RESULT;
  const bool absent = step.own != OwnLanes::kSent;
  if (absent && contributions_ && (step.no_result || !resent)) {
    const netsum_be64 length = netsum_put64(fields->payload_bytes);
    std::memcpy(payload, &length, sizeof length);
    fields->flags |= NETSUM_FLAG_EMPTY;
    fields->payload_bytes = NETSUM_EMPTY_BYTES;
    return true;
  }
  // Elements of a step that is discarded may not fit into its lanes any more.
  if (!absent && !discarded) return false;
  std::memset(payload, 0, fields->payload_bytes);
  return true;
}

const uint8_t* EmptyPackets::add_kept(const Step& step, const uint8_t* lanes) {
  if (step.own != OwnLanes::kKept || step.no_result) return lanes;
  const size_t bytes = step.packet.payload_bytes;
  std::memcpy(total_.data(), lanes, bytes);
  step.operation->encode(step.chunk, step.packet, own_.data());
  const bool overflow = kernels::combine_lanes(step.packet.format, total_.data(), own_.data(), bytes);
  return overflow ? nullptr : total_.data();
}

}  // namespace netsum
