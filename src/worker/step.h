// What a slot carries: one packet of an operation, from the first contribution to its result.
#ifndef NETSUM_SRC_WORKER_STEP_H_
#define NETSUM_SRC_WORKER_STEP_H_

#include <cstdint>

#include "src/worker/operation.h"

namespace netsum {

// Steps of all kinds but kData use scale slots.
enum class StepKind : uint8_t {
  kAgree,      // maxima of scanned bytes: modes/agreement.h
  kConfirm,    // follows kAgree where sums are verified: modes/verified_sums.h
  kInlineSum,  // modes/inline_sums.h
  kFirst,      // the first chunk of a group that agrees on nothing: modes/without_scales.h
  kData,       // modes/lanes.h
};

// What becomes of this rank's lanes (modes/empty_packets.h).
enum class OwnLanes : uint8_t {
  kSent,
  kNone,  // it has none: they are 0
  kKept,  // no other rank needs their sum: they are added to the result, which is that of the others
};

struct Step {
  Operation* operation = nullptr;
  StepKind kind = StepKind::kAgree;
  uint8_t part = 0;       // kData: which packet of the chunk; kConfirm: of the maxima
  bool together = false;  // kData: as in ChunkPlan
  OwnLanes own = OwnLanes::kSent;
  bool no_result = false;   // this rank needs no lanes of the result
  bool predicted = false;   // kData: with predicted bytes
  uint32_t signature = 0;   // on the wire; set when the step starts
  uint32_t in_group = 0;    // kData: the number of the chunk in its scale group
  uint32_t scale_slot = 0;  // of its scale group
  uint32_t index = 0;  // on the wire: of the chunk in the operation, or of the operation's scale group here
  Chunk chunk;         // all but kAgree and kConfirm. kData: with its agreed bytes in the scale group
  PacketPlan packet;   // without tag. kData, kFirst: all fields; otherwise only format and payload_bytes

  bool has_lanes() const { return kind == StepKind::kData || kind == StepKind::kFirst; }
  bool is_of_agreement() const { return kind == StepKind::kAgree || kind == StepKind::kConfirm; }
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_STEP_H_
