// What the ranks know about the density of a tensor from its earlier operations, and what they conclude from it. All of it,
// except fits(), follows from agreed numbers, by arithmetic that is the same on every machine, so all ranks conclude the same.
#ifndef NETSUM_SRC_SPARSE_PROFILE_H_
#define NETSUM_SRC_SPARSE_PROFILE_H_

#include <cstdint>

#include "netsum/sparse.h"
#include "src/sparse/levels.h"

namespace netsum::sparse {

// The sizes of an operation.
struct Shape {
  uint64_t positions = 0;
  double unit_bytes = 0;
  int ranks = 1;
  double bit_cost = 1;  // bits that travel for each bit of an index

  double dense_bytes() const { return static_cast<double>(positions) * unit_bytes; }
};

class Profile {
 public:
  // From an operation that travelled by index.
  bool known() const { return known_; }

  // Whether an operation in SparseMode::kAuto begins with a count of what the ranks have: of a tensor that is not known, and
  // now and then of one that was dense. Counts the operation.
  bool wants_count();
  // Whether to send the tensor as dense. `stored`: the units of all ranks together, or 0 if they were not counted.
  bool prefers_dense(const Shape& shape, uint64_t stored);
  // What the union is expected to be.
  Occupancy expected(const Shape& shape, uint64_t stored) const;

  // Of a sparse tensor: the units of all ranks together when they were last counted. 0: they have to be counted.
  uint64_t last_count() const;
  // Whether a rank that has `own` units now may do without a count. Ranks may differ in it.
  bool fits(uint64_t own) const;
  // What a rank that has `own` units counts: what it had at the last count, if that is more. So ranks that have much in turn
  // are not counted each time.
  uint64_t to_count(uint64_t own) const;

  // After the indices of an operation have been agreed on.
  void learn(const Shape& shape, const Occupancy& occupancy, double index_bytes, uint64_t stored);
  // After learn(), if the ranks have counted. `own`: of to_count().
  void counted(uint64_t own);

 private:
  bool known_ = false;
  bool dense_ = false;             // the index cost more than it spared, or would have
  Occupancy occupancy_;            // of the last union
  double stored_ = 0;              // when the tensor turned out to be dense; 0: not counted
  uint32_t dense_operations_ = 0;  // since then
  uint64_t own_ = 0;               // what this rank has counted last
  double united_ = 0;              // of the union at that time
};

// Of the union of independent random sets of the ranks, which have `stored` units together.
double union_of_random_sets(const Shape& shape, uint64_t stored);

}  // namespace netsum::sparse

#endif  // NETSUM_SRC_SPARSE_PROFILE_H_
