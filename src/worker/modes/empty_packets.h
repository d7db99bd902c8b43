// Empty packets (wire/PROTOCOL.md, rule 10), where the aggregators take and send them. Each rank decides for itself:
//
//   A rank that has nothing to add to a step contributes an empty packet. So does a rank to which alone the sum goes: it adds
//   its own lanes when the sum of the others has arrived. A retransmission has lanes of zeros, because the answer to it needs
//   room for the lanes of the result.
//   A rank that needs no lanes of a result gets an empty one.
#ifndef NETSUM_SRC_WORKER_MODES_EMPTY_PACKETS_H_
#define NETSUM_SRC_WORKER_MODES_EMPTY_PACKETS_H_

#include <cstdint>
#include <vector>

#include "src/worker/step.h"
#include "wire/parse.h"

namespace netsum {

class EmptyPackets {
 public:
  // `contributions`, `results`: whether the aggregator takes and sends empty ones.
  EmptyPackets(bool contributions, bool results, uint32_t payload_bytes)
      : contributions_(contributions), results_(results) {
    for (auto* lanes : {&zeros_, &own_, &total_}) lanes->resize(payload_bytes);
  }

  // Decides for a step that starts. `discarded`: the ranks will not use its sum.
  void decide(bool discarded, Step* step) const;
  // Writes an empty payload, or zeros in the place of lanes, and completes `fields`; false: the mode of the step is to write it.
  bool write(const Step& step, bool resent, bool discarded, netsum_fields* fields, uint8_t* payload) const;
  // The lanes of a result.
  const uint8_t* lanes_of(const netsum_fields& fields, const uint8_t* payload) const {
    return (fields.flags & NETSUM_FLAG_EMPTY) != 0 ? zeros_.data() : payload;
  }
  // The lanes of a result plus this rank's, if it has kept them; null: a sum passed the range of its lane.
  const uint8_t* add_kept(const Step& step, const uint8_t* lanes);

 private:
  OwnLanes own_lanes_of(const Step& step) const;

  const bool contributions_, results_;
  std::vector<uint8_t> zeros_;
  std::vector<uint8_t> own_, total_;  // of add_kept()
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_MODES_EMPTY_PACKETS_H_
