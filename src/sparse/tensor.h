// A tensor of units, most of which are zero or absent: what one rank contributes to a sparse all-reduce, and where the
// result goes. A unit is an element, a block of elements or a row of a table; position p is unit number p.
//
// Thread rule: one thread at a time.
#ifndef NETSUM_SRC_SPARSE_TENSOR_H_
#define NETSUM_SRC_SPARSE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/sparse.h"
#include "netsum/status.h"
#include "netsum/types.h"
#include "src/sparse/bit_set.h"

namespace netsum::sparse {

// Units [begin, end).
struct Segment {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
};

class Tensor {
 public:
  virtual ~Tensor() = default;

  virtual DataType type() const = 0;
  virtual uint64_t positions() const = 0;    // units
  virtual size_t unit_elements() const = 0;  // of a unit; the last one may have less
  virtual size_t elements(const Segment& segment, const BitSet& set) const = 0;  // of these units
  size_t unit_bytes() const { return unit_elements() * size_of(type()); }

  // Units that this rank has. Sets count from the begin of a segment. find() may keep the elements in the set, for pack(): to read
  // them again from the tensor would cost a cache miss each.
  virtual uint64_t count() = 0;
  virtual void find(const Segment& segment, BitSet* set) = 0;
  // Writes the elements of the units of `set`, which include those of this rank (`own`, from find()); others are zeros.
  // Returns false if they do not include them. `values` has kSlackBytes of room behind the elements.
  static constexpr size_t kSlackBytes = 64;
  virtual bool pack(const Segment& segment, const BitSet& set, const BitSet& own, uint8_t* values) const = 0;
  // Stores the sums of these units, or takes them away. Called once for each segment, in order, unless the whole is summed at
  // once.
  virtual void unpack(const Segment& segment, BitSet* set, std::vector<uint8_t>* values) = 0;
  // Called after the last unpack().
  virtual Status finish() = 0;

  // The whole as it is in memory, or null if it cannot be summed without an index.
  virtual const TensorView* dense() const = 0;
  // Why this rank's input is invalid in a way that other ranks cannot know.
  virtual const Status& status() const = 0;
};

// `view` in units of `unit` elements.
std::unique_ptr<Tensor> make_dense_tensor(const TensorView& view, DataType type, size_t unit);
// Sorts and adds up duplicates. Must not be called for a CooView that check_coo() refuses.
std::unique_ptr<Tensor> make_coo_tensor(const CooView& view, DataType type, CooAllocator allocate);
// What all ranks with the same shape know to be invalid.
Status check_coo(const CooView& view, DataType type);

}  // namespace netsum::sparse

#endif  // NETSUM_SRC_SPARSE_TENSOR_H_
