// One all-reduce on this rank: where its elements lie, and how a run of them turns into lanes and back.
#ifndef NETSUM_SRC_WORKER_OPERATION_H_
#define NETSUM_SRC_WORKER_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/types.h"
#include "src/kernels/kernels.h"

namespace netsum {

// What one rank adds in the name of several of its host, and as part of a larger operation.
struct Joint {
  // Further inputs of the operation, whose tensors then lie one behind the other in memory, as these do: the
  // lanes are the sums over all of them.
  std::vector<const void*> more_inputs;
  // Becomes part of the signature: of the operation that this is a part of.
  uint32_t context = 0;
};

// What became of an operation when, in the time base of the core; 0: not yet.
struct OperationCourse {
  int64_t first_scale_us = 0;    // the first packet of scales was sent ...
  int64_t scales_agreed_us = 0;  // ... and the latest one answered
  int64_t first_data_us = 0;
  uint64_t packets = 0;  // contributions, those sent again included
  uint64_t retransmissions = 0;
};

class Operation {
 public:
  // `number` counts the job's operations from 0, equally on every rank. `members`: how many inputs are
  // summed, over all ranks. `lane_bits` as in CommunicatorOptions.
  Operation(uint64_t number, DataType type, ReduceOp op, std::vector<TensorView> tensors, int members,
            int64_t deadline_us, Joint joint = {}, int lane_bits = 0);

  uint64_t number() const { return number_; }
  DataType type() const { return type_; }
  ReduceOp op() const { return op_; }
  size_t count() const { return count_; }  // elements of all tensors together
  int64_t deadline_us() const { return deadline_us_; }
  // Equal on two ranks only if they mean the same operation (up to a 2^-32 chance).
  uint32_t signature() const { return signature_; }
  // "all_reduce #12 (float32[1024], sum)"
  std::string describe() const;

  // Elements of one chunk: what a packet of `payload_bytes` carries in the type's narrow lanes.
  size_t chunk_elements(uint32_t payload_bytes) const { return payload_bytes / narrow_lane_bytes(); }
  size_t narrow_lane_bytes() const { return narrow_lane_bytes_; }
  // int64 has no wider ones: its wide chunks travel as half lanes.
  size_t wide_lane_bytes() const { return narrow_lane_bytes_ == 2 ? 4 : 8; }

  // A block is what elements [begin, begin + n) have of one tensor. It has a scale of its own, so that small
  // numbers of one tensor do not suffer from large ones of its neighbour. Integers have no exponents: for
  // them, all n elements are one block.
  size_t blocks(size_t begin, size_t n) const { return n == 0 ? 0 : block_of(begin, begin + n - 1) + 1; }
  // Which of the blocks that start at `begin` holds `element`.
  size_t block_of(size_t begin, size_t element) const;
  // The number of elements of each block of [begin, begin + n).
  std::vector<size_t> block_sizes(size_t begin, size_t n) const;

  // Elements [begin, begin + n), across tensor borders; their lanes have at most NETSUM_MAX_PAYLOAD bytes.
  // `scales` has two bytes for each block of theirs, as a packet of scales has: exponent, wide.
  void scan(size_t begin, size_t n, uint8_t* scales) const;
  static bool any_wide(const uint8_t* scales, size_t blocks);
  void to_narrow_lanes(size_t begin, size_t n, const uint8_t* scales, uint8_t* lanes) const;
  void to_wide_lanes(size_t begin, size_t n, const uint8_t* scales, uint8_t* lanes) const;
  void to_half_lanes(size_t begin, size_t n, int half, uint8_t* lanes) const;
  void from_narrow_lanes(const uint8_t* lanes, size_t begin, size_t n, const uint8_t* scales) const;
  // Return false if an integer sum does not fit.
  bool from_wide_lanes(const uint8_t* lanes, size_t begin, size_t n, const uint8_t* scales) const;
  bool from_half_lanes(const uint8_t* low, const uint8_t* high, size_t begin, size_t n) const;

  // Elements as they are: from the inputs to `to`, and from `from` to the outputs.
  void copy_in(size_t begin, size_t n, uint8_t* to) const;
  void copy_out(const uint8_t* from, size_t begin, size_t n) const;

  // Chunks of scale groups (see stripe.h) that are not finished yet, over all stripes; the operation ends at
  // 0.
  size_t chunks_left = 0;
  OperationCourse course;

 private:
  // What [begin, begin + n) has of one tensor.
  struct Piece {
    const TensorView& view;
    size_t offset;  // of its first element in the view
    size_t count;
    size_t done;   // elements of the pieces before
    size_t block;  // its index
  };
  template <typename Visit>
  void for_each_piece(size_t begin, size_t n, Visit visit) const;
  // Calls convert(input, lanes) for every input of a piece and adds the lanes up at `lanes`.
  template <int kLaneBits, typename Convert>
  void sum_lanes(const Piece& piece, uint8_t* lanes, Convert convert) const;
  const uint8_t* input_of(const Piece& piece) const;
  const uint8_t* input_of(const Piece& piece, const void* more_inputs) const;
  uint8_t* output_of(const Piece& piece) const;

  uint64_t number_;
  DataType type_;
  ReduceOp op_;
  int members_;
  size_t narrow_lane_bytes_;
  int64_t deadline_us_;
  std::vector<TensorView> tensors_;
  std::vector<const void*> more_inputs_;
  std::vector<size_t> ends_;  // running element count behind each tensor
  size_t count_ = 0;
  uint32_t signature_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_OPERATION_H_
