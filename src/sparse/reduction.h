// One sparse all-reduce on one rank, as a sequence of ordinary all-reduces: a count of what the ranks have, where it is
// needed; the OR of the indices, level by level (levels.h); and the sum of the values at the union of the indices.
//
// A sparse tensor that the ranks have counted before is not counted again: a flag behind the first level says whether a rank
// has invalid input, or much more than then. All ranks then begin anew, with a count.
//
//   next()    the next sub-operation, if all that it depends on has ended
//   ended()   its result is in the memory that next() named
//
// The tensor is cut into segments. In turn t, the first level of segment t, the second of segment t - 1 and so on begin, and
// then the values of the segment whose index is complete: while they travel, the next indices come back.
//
// The sequence of sub-operations, with all their sizes, depends only on what all ranks know alike, never on the order in which
// results come in. Their parameters make ranks that would differ notice it (Role::parameter).
//
// Thread rule: one thread at a time.
#ifndef NETSUM_SRC_SPARSE_REDUCTION_H_
#define NETSUM_SRC_SPARSE_REDUCTION_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/sparse.h"
#include "src/sparse/bit_set.h"
#include "src/sparse/levels.h"
#include "src/sparse/or_by_sum.h"
#include "src/sparse/profile.h"
#include "src/sparse/tensor.h"

namespace netsum::sparse {

enum class Kind : uint8_t { kCount = 1, kIndex, kValues, kDense };

// An all-reduce of the tensor `view`, in place unless it is kDense.
struct SubOperation {
  uint64_t number = 0;  // among those of this reduction, from 0
  Kind kind = Kind::kCount;
  DataType type = DataType::kInt64;
  ReduceOp op = ReduceOp::kSum;
  TensorView view;
  uint32_t parameter = 0;  // all ranks must agree on it
};

struct Settings {
  ReduceOp op = ReduceOp::kSum;
  SparseMode mode = SparseMode::kAuto;
  int rank = 0;
  int ranks = 1;
  bool combines_bits = true;  // false: ranks can only add (or_by_sum.h)
  uint32_t tag = 0;           // the caller's; ranks compare it
  // Of a segment of a large tensor: so large that its values travel for longer than the index of the next one takes to come
  // back. Those of small tensors are smaller.
  double segment_bytes = 512 << 10;
};

class Reduction {
 public:
  // A segment in progress. Opaque for others.
  struct Part {
    Segment segment;
    BitSet own, united;
    std::vector<Level> levels;                  // those whose bits have been sent
    std::vector<std::vector<uint64_t>> blocks;  // [level]: set on any rank
    std::vector<uint64_t> words;                // the bits of the last level
    std::vector<int32_t> lanes;                 // the same for or_by_sum.h
    std::vector<uint8_t> values;                // perhaps with room behind them
    bool values_issued = false;
    std::optional<uint64_t> index_operation, value_operation;  // the last ones

    // For another segment, in the same memory.
    void begin(const Segment& other);
    size_t bytes() const;  // of memory, about
  };

  // `profile` is that of the tensor, equal on all ranks. It is used until all sub-operations have been issued. `spare`: parts of ended
  // reductions, or null. This one takes them, as fresh memory costs a page fault per 4 KiB, and gives back at most kMostSpareParts of
  // kMostSpareBytes when it is done.
  static constexpr size_t kMostSpareParts = 8;
  static constexpr size_t kMostSpareBytes = 2 << 20;
  Reduction(std::unique_ptr<Tensor> tensor, const Settings& settings, Profile* profile,
            std::vector<Part>* spare = nullptr);

  // Null: nothing can begin now. Otherwise the caller starts it before its next call.
  const SubOperation* next();
  // All sub-operations have been returned by next(): other operations of the job may begin.
  bool issued_all() const { return phase_ == Phase::kIssued; }
  void ended(uint64_t number);
  // A sub-operation has failed, or none can be started any more: no further one begins.
  void fail(const Status& status);
  // The operation for which next() was called last cannot be executed, because an aggregator can only add. Returns false if
  // it needs no other operator, or is not the first index. Otherwise the reduction goes on with sums.
  bool use_sums();
  // All have ended; status() is the result.
  bool done() const { return finished_; }
  const Status& status() const { return status_; }
  // The agreed index was impossible. Other ranks may not have noticed, so the job must be aborted.
  bool is_broken() const { return broken_; }

  // Of a reduction that is done.
  SparseStats stats() const;

 private:
  enum class Phase : uint8_t { kBegin, kCount, kPlan, kDense, kTurns, kIssued };

  bool has_ended(const std::optional<uint64_t>& number) const { return !number || ended_[*number]; }
  const SubOperation* issue(Kind kind, DataType type, ReduceOp op, const TensorView& view);
  void begin();
  void forget_turns();
  const SubOperation* issue_count();
  void read_count();
  void plan();
  const SubOperation* next_in_turns();
  bool can_begin_turn() const;
  // Of the first level, which has ended.
  bool has_flag() const;
  Part& part(size_t number);
  const SubOperation* issue_level(Part* part, size_t number);
  // Of the last level of which bits have been sent.
  bool read_level(Part* part);
  const SubOperation* issue_values(Part* part);
  void end_issuing();
  void break_off();
  void take_results();

  const std::unique_ptr<Tensor> tensor_;
  Settings settings_;
  const OrBySum or_by_sum_;
  Profile* const profile_;
  Shape shape_;
  uint64_t signature_ = 0;

  Phase phase_ = Phase::kBegin;
  Status status_;
  bool broken_ = false;
  SubOperation operation_;   // the last one returned
  std::vector<bool> ended_;  // [number]
  uint64_t in_flight_ = 0;
  bool finished_ = false;

  // Units; ranks with invalid input, and the sum of their numbers + 1; ranks with an overflow; ranks with all units.
  std::array<int64_t, 5> count_ = {};
  uint64_t stored_ = 0;  // units of all ranks together; 0: not counted
  std::optional<uint64_t> count_operation_;
  uint64_t counted_ = 0;        // of this rank
  bool assumes_count_ = false;  // stored_ is an earlier one, and the first level ends with a flag

  Levels levels_;
  uint64_t segment_units_ = 0;
  size_t segments_ = 0;
  size_t turn_ = 0;
  size_t step_ = 0;         // in the turn
  bool in_turn_ = false;    // what it depends on has ended
  std::deque<Part> parts_;  // segments from number first_part_ on
  size_t first_part_ = 0;
  std::vector<Part> spare_parts_;  // whose memory the next segments use
  std::vector<Part>* const lender_;
  Occupancy occupancy_;  // of the union
  SparseStats stats_;
};

}  // namespace netsum::sparse

#endif  // NETSUM_SRC_SPARSE_REDUCTION_H_
