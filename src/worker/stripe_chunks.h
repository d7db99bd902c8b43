// Which chunks of an operation a stripe handles, and in which order. They have local indices, which count from 0.
// Thread rule: immutable.
#ifndef NETSUM_SRC_WORKER_STRIPE_CHUNKS_H_
#define NETSUM_SRC_WORKER_STRIPE_CHUNKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/worker/chunk_map.h"
#include "src/worker/operation.h"
#include "src/worker/scale_group.h"
#include "src/worker/stripe_options.h"

namespace netsum {

class StripeChunks {
 public:
  // `lane_room`: the bytes of each payload that carry lanes.
  StripeChunks(const StripeOptions& options, uint32_t lane_room)
      : map_(options.chunk_map),
        stripe_(options.index),
        world_size_(static_cast<size_t>(options.world_size)),
        lane_room_(lane_room) {}

  uint32_t lane_room() const { return lane_room_; }
  const ChunkMap& map_of(const Operation& operation) const {
    return operation.role().chunk_map != nullptr ? *operation.role().chunk_map : *map_;
  }
  size_t count(const Operation& operation) const {
    return map_of(operation).count(operation.number(), operation.chunks(lane_room_), stripe_);
  }
  // The number in the operation of the chunk with that local index. Chunks of different parts take turns, so that the ranks to
  // which the parts belong are loaded evenly.
  size_t index(const Operation& operation, size_t local) const;
  // How far the stripe is in the operation when it has handled `local` chunks, as Operation::first_chunk counts.
  uint64_t progress(const Operation& operation, size_t local) const {
    return operation.first_chunk + map_of(operation).chunk(operation.number(), stripe_, local);
  }
  // Chunk `index` of the operation.
  Chunk chunk(const Operation& operation, size_t index) const { return operation.chunk(index, lane_room_); }
  // The chunk number `in_group` of the group, whose agreed bytes begin at `agreed` there.
  Chunk chunk_of(const ScaleGroup& group, uint32_t in_group, size_t agreed) const {
    Chunk of_group = chunk(*group.operation, index(*group.operation, group.first_chunk + in_group));
    of_group.agreed = &group.agreed[agreed];
    return of_group;
  }
  ChunkPlan plan(const Operation& operation, const Chunk& chunk) const {
    return operation.plan(chunk, lane_room_);
  }

 private:
  const std::shared_ptr<const ChunkMap> map_;
  const size_t stripe_;
  const size_t world_size_;
  const uint32_t lane_room_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_STRIPE_CHUNKS_H_
