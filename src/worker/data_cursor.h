// How far a stream's data is: its next packet to send, in the order of the scale groups, each of which may come in two passes:
// the predicted chunks, then the others. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_DATA_CURSOR_H_
#define NETSUM_SRC_WORKER_DATA_CURSOR_H_

#include <cstddef>
#include <cstdint>

#include "src/encoding/fetch.h"
#include "src/worker/modes/agreement.h"
#include "src/worker/scale_groups.h"
#include "src/worker/step.h"
#include "src/worker/stripe_chunks.h"

namespace netsum {

class DataCursor {
 public:
  DataCursor(size_t stream, const StripeChunks& chunks, ScaleGroups* groups, ScaleAgreement* agreement)
      : stream_(stream), chunks_(chunks), groups_(*groups), agreement_(*agreement) {}

  // The number of the next chunk of the stream to send, by Operation::first_chunk; UINT64_MAX if there is none.
  uint64_t next_chunk() const;
  // Whether the next packet can be sent.
  bool is_due() const { return is_due_; }
  // Whether this rank's input of that packet's chunk is available.
  bool has_input() const { return group_->operation->is_available(due_.chunk); }
  // Asks for the input of that packet, which is encoded soon.
  void fetch() const {
    if (is_due_) fetch_input(due_.chunk);
  }
  // Whether that packet is the first of a chunk whose packets are decoded together (ChunkPlan).
  bool begins_together() const { return due_.plan.together && part_ == 0; }
  // Makes `step` that of the packet that is due, and moves on.
  void take(Step* step);
  // Moves on from scale groups and chunks that send no data. After every change of the groups.
  void pass() { is_due_ = find(); }

 private:
  // Moves on to the next packet; false: it is not known yet.
  bool find();
  // Moves on to the next chunk of the group that is due, and notes it in due_; false: there is none.
  bool pass_chunks();
  void to_first_chunk(bool predicted);

  const size_t stream_;
  const StripeChunks& chunks_;
  ScaleGroups& groups_;
  ScaleAgreement& agreement_;

  uint64_t number_ =
      0;  // of the group whose chunks are sent, or the next to open; not one without data slots
  ScaleGroup* group_ = nullptr;  // that group; null: it is not open
  uint32_t scale_slot_ = 0;      // of that group
  bool is_due_ = false;
  uint32_t chunk_ = 0;     // the group's next chunk
  size_t agreed_ = 0;      // where that chunk's agreed bytes begin
  uint8_t part_ = 0;       // that chunk's next packet
  bool predicted_ = true;  // the predicted chunks of the group are being sent
  // That chunk, if its data can be sent now.
  struct Due {
    uint32_t index = 0;  // in the operation
    Chunk chunk;
    ChunkPlan plan;
    size_t agreed_bytes = 0;
  } due_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_DATA_CURSOR_H_
