// A scale group: consecutive chunks of one operation, as many as have their scanned bytes in one packet. It has one scale slot.
#ifndef NETSUM_SRC_WORKER_SCALE_GROUP_H_
#define NETSUM_SRC_WORKER_SCALE_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/worker/operation.h"

namespace netsum {

// kAgreed: its bytes wait for those of the groups before it to be known (Prediction). kReady: the steps of its data are known.
// kFinished: groups before it in its stream are not.
enum class ScaleGroupState : uint8_t { kFree, kAgreeing, kAgreed, kReady, kFinished };

// What is predicted of a group (modes/predicted_scales.h). The data of its predicted chunks is sent first.
struct Prediction {
  enum class OfChunk : uint8_t { kNone, kPredicted, kRight, kWrong };
  bool possible = false;        // it is the first of its operation here
  bool begun = false;           // all groups before it in its stream are agreed on
  uint32_t chunks = 0;          // that are predicted
  uint32_t bytes = 0;           // that the group agrees on
  std::vector<uint8_t> agreed;  // of the predicted chunks; as ScaleGroup::agreed
  std::vector<OfChunk> of_chunk;

  bool is_right(uint32_t chunk) const { return chunks > 0 && of_chunk[chunk] == OfChunk::kRight; }
};

struct ScaleGroup {
  Operation* operation = nullptr;
  size_t stream = 0;
  uint64_t number = 0;  // in the stream; set when all groups before it are open
  // What its first result proves: all ranks have finished this number of groups of that stream.
  struct Proof {
    size_t stream = 0;
    uint64_t groups = 0;
  } proof;
  ScaleGroupState state = ScaleGroupState::kFree;
  uint32_t in_scale_slot = 0;  // the number of its first chunks that are summed in the scale slot
  size_t first_chunk = 0;      // local index: the stripe's chunks of the operation count from 0
  uint32_t chunks = 0;
  uint32_t steps_left = 0;
  // The bytes of its chunks, contiguous: this rank's while agreeing, then the agreed ones.
  std::vector<uint8_t> agreed;
  // Verified sums (modes/verified_sums.h): this rank's bytes while the agreed ones are confirmed, how many of these are, and
  // their digest (0: there are none). Otherwise `own` is empty.
  std::vector<uint8_t> own;
  uint32_t agreed_bytes = 0, confirmed_bytes = 0;
  uint64_t digest = 0;
  Prediction prediction;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SCALE_GROUP_H_
