// Sparse all-reduce: only what is not zero on some rank travels. See docs/sparse.md.
#ifndef NETSUM_SPARSE_H_
#define NETSUM_SPARSE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "netsum/communicator.h"
#include "netsum/export.h"
#include "netsum/types.h"

namespace netsum {

// Whether a dense tensor is summed by an index of what is not zero. The numbers are part of the C ABI.
enum class SparseMode : uint8_t {
  // If that sends fewer bytes, by what earlier operations on the same tensor (its id, or its size if it has none) have
  // shown. Tensors of less than 64 KiB are always summed as dense ones.
  kAuto = 0,
  kOn = 1,
  kOff = 2,  // as all_reduce()
};

struct SparseStats;

struct SparseOptions {
  DataType type = DataType::kFloat32;
  // Elements of other ranks that are zero or absent take part as zeros: kMax of -1 and nothing is 0.
  ReduceOp op = ReduceOp::kSum;
  SparseMode mode = SparseMode::kAuto;
  // The granularity of the index of a dense tensor, in elements: 1 for single elements, otherwise the length of a row or of
  // a block. A unit travels if any of its elements is not zero on some rank.
  size_t unit = 1;
  std::chrono::milliseconds timeout{0};  // 0: CommunicatorOptions::timeout
  // What this operation has sent: called on a thread of the library before the operation ends, unless it fails. It must not
  // block. Not in the C ABI.
  std::function<void(const SparseStats& of_operation)> on_sent = {};
  uint32_t tag = 0;  // as ReduceOptions::tag. Not in the C ABI
};

// A sparse tensor by its stored rows: row indices[i] of a table of `rows` rows has the `row_elements` elements that begin at
// values[i * row_elements]. Indices need not be sorted; rows with equal indices are added up. The memory must stay valid and
// unchanged until the operation has ended.
struct CooView {
  const int64_t* indices = nullptr;
  const void* values = nullptr;
  size_t count = 0;         // stored rows; may differ between ranks
  uint64_t rows = 0;        // 2^40 at most; equal on all ranks
  size_t row_elements = 1;  // equal on all ranks
  uint64_t id = 0;          // as TensorView::id
};

// Memory for the result.
struct CooMemory {
  int64_t* indices = nullptr;
  void* values = nullptr;
};
// Returns memory for `count` indices and count x row_elements elements; called once, with the number of rows that are stored
// on any rank, on a thread of the library, before the operation ends. It must not block. A null pointer where `count` is not
// zero ends the operation on this rank with kResourceExhausted.
using CooAllocator = std::function<CooMemory(size_t count)>;

// Of sparse all-reduces since connect() or regroup(), except those still in progress.
struct SparseStats {
  uint64_t operations = 0;     // completed
  uint64_t dense = 0;          // of these: summed without an index, because that sends fewer bytes
  uint64_t elements = 0;       // of their tensors, zeros included
  uint64_t sent_elements = 0;  // whose sums have travelled
  uint64_t index_bytes = 0;    // payload that said which they are
  uint64_t spared_bytes = 0;   // fewer bytes of payload than dense tensors, one direction
};

// As Communicator::all_reduce() of one tensor most of whose elements are zero: what is zero on all ranks does not travel. What
// all_reduce() says of threads, arguments, errors and order holds here as well, and both kinds may be mixed. Results are
// equal in all bits on all ranks and have all_reduce()'s error bound, but not its bits. `communicator` is one of
// Communicator::connect(). Its stats() count the parts of a sparse all-reduce as operations.
NETSUM_EXPORT Work sparse_all_reduce(Communicator& communicator, const TensorView& tensor,
                                     const SparseOptions& options);
// The same for a sparse tensor. The result is the sum of the rows that any rank has stored, sorted by index; `allocate` is
// asked for their memory. Invalid indices of one rank are an error (kInvalidArgument) on all ranks, after which the
// communicator works as before. SparseMode::kOff is not for sparse tensors.
NETSUM_EXPORT Work sparse_all_reduce(Communicator& communicator, const CooView& input, CooAllocator allocate,
                                     const SparseOptions& options);

// Of the sparse all-reduces of this rank.
NETSUM_EXPORT SparseStats sparse_stats(const Communicator& communicator);

}  // namespace netsum

#endif  // NETSUM_SPARSE_H_
