// The collectives that `netsum bench` measures: how each is started on the tensors of a benchmark, and what must come out.
// Those with a root have it at rank 0. Those with parts divide a tensor into one part for each rank.
#ifndef NETSUM_TOOLS_NETSUM_BENCH_COLLECTIVE_H_
#define NETSUM_TOOLS_NETSUM_BENCH_COLLECTIVE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "netsum/communicator.h"

namespace netsum::tool {

enum class BenchCollective : uint8_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kReduce,
  kReduceScatter,
  kBarrier,
  kBoth,  // an all-gather and a reduce-scatter at once
};

struct BenchCollectiveInfo {
  BenchCollective collective;
  const char* name;     // the subcommand
  const char* summary;  // for --help
};
std::span<const BenchCollectiveInfo> bench_collectives();
const char* bench_collective_name(BenchCollective collective);
bool sums(BenchCollective collective);  // otherwise it moves bytes
// What is started together for each tensor of an iteration: the collective itself, or those that it stands for.
std::span<const BenchCollective> started_for(const BenchCollective& collective);

// One tensor of a benchmark on one rank.
struct BenchTensor {
  uint8_t* input = nullptr;
  uint8_t* output = nullptr;
  size_t count = 0;  // elements
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

// Part `part` of a tensor of `count` elements: [first, last).
struct BenchPart {
  size_t first = 0;
  size_t last = 0;
};
BenchPart part_of(size_t count, int part, int ranks);

// The following take a collective that stands for itself.
//
// Copies what must be in the output beforehand, because the collective works in place.
void prepare(BenchCollective collective, int rank, int ranks, const BenchTensor& tensor);

// A call of a collective on a tensor. Its arguments are made with it, so that start() takes the time of the call alone.
class BenchCall {
 public:
  BenchCall(BenchCollective collective, int rank, int ranks, const BenchTensor& tensor);

  // `timeout` is that of a barrier; the others have the communicator's.
  Work start(Communicator& communicator, std::chrono::milliseconds timeout) const;

 private:
  BenchCollective collective_;
  ReduceOptions options_;
  TensorView whole_;
  BufferView of_root_;               // the tensor of a broadcast
  std::vector<BufferView> buffers_;  // the parts, to be moved
  std::vector<TensorView> parts_;    // the parts, to be summed
};

// What elements [first, last) of the output must be on `rank` after the collective.
struct BenchExpectation {
  size_t first = 0;
  size_t last = 0;
  int from = kSum;  // the input of this rank, unchanged, or the sum over all ranks
  static constexpr int kSum = -1;
};
// All-reduce: a part for each rank, because all have the same bits.
std::vector<BenchExpectation> expected(BenchCollective collective, int rank, int ranks, size_t count);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_BENCH_COLLECTIVE_H_
