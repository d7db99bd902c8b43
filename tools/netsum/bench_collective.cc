#include "tools/netsum/bench_collective.h"

#include <algorithm>

namespace netsum::tool {
namespace {

constexpr int kRootRank = 0;

constexpr BenchCollectiveInfo kBenchCollectives[] = {
    {BenchCollective::kAllReduce, "allreduce", "Sum tensors over workers"},
    {BenchCollective::kBroadcast, "broadcast", "Send tensors from rank 0 to all workers"},
    {BenchCollective::kAllGather, "allgather", "Collect a part from each worker at all workers"},
    {BenchCollective::kGather, "gather", "Collect a part from each worker at rank 0"},
    {BenchCollective::kScatter, "scatter", "Send a part from rank 0 to each worker"},
    {BenchCollective::kReduce, "reduce", "Sum tensors over workers at rank 0"},
    {BenchCollective::kReduceScatter, "reducescatter", "Sum tensors over workers, a part at each"},
    {BenchCollective::kBarrier, "barrier", "Wait until all workers have come"},
    {BenchCollective::kBoth, "allgather+reducescatter", "An all-gather and a reduce-scatter at once"},
};
constexpr BenchCollective kBothOf[] = {BenchCollective::kAllGather, BenchCollective::kReduceScatter};

bool is_in_place(BenchCollective collective, int rank) {
  return collective == BenchCollective::kAllGather ||
         (collective == BenchCollective::kGather && rank == kRootRank);
}

}  // namespace

std::span<const BenchCollectiveInfo> bench_collectives() {
  return kBenchCollectives;
}

const char* bench_collective_name(BenchCollective collective) {
  return kBenchCollectives[static_cast<size_t>(collective)].name;
}

bool sums(BenchCollective collective) {
  return collective == BenchCollective::kAllReduce || collective == BenchCollective::kReduce ||
         collective == BenchCollective::kReduceScatter || collective == BenchCollective::kBoth;
}

std::span<const BenchCollective> started_for(const BenchCollective& collective) {
  if (collective == BenchCollective::kBoth) return kBothOf;
  return {&collective, 1};
}

BenchPart part_of(size_t count, int part, int ranks) {
  const auto border = [&](int r) { return count * static_cast<size_t>(r) / static_cast<size_t>(ranks); };
  return {border(part), border(part + 1)};
}

void prepare(BenchCollective collective, int rank, int ranks, const BenchTensor& tensor) {
  if (!is_in_place(collective, rank)) return;
  const BenchPart own = part_of(tensor.count, rank, ranks);
  const size_t element = size_of(tensor.type);
  std::copy(tensor.input + own.first * element, tensor.input + own.last * element,
            tensor.output + own.first * element);
}

BenchCall::BenchCall(BenchCollective collective, int rank, int ranks, const BenchTensor& tensor)
    : collective_(collective),
      options_{.type = tensor.type, .op = tensor.op},
      whole_{tensor.input, tensor.output, tensor.count},
      // The root needs no copy.
      of_root_{tensor.input, rank == kRootRank ? nullptr : tensor.output,
               tensor.count * size_of(tensor.type)} {
  const size_t element = size_of(tensor.type);
  for (int part = 0; part < ranks; ++part) {
    const auto [first, last] = part_of(tensor.count, part, ranks);
    uint8_t* const output = tensor.output + first * element;
    uint8_t* const input = is_in_place(collective, rank) ? output : tensor.input + first * element;
    buffers_.push_back({input, output, (last - first) * element});
    parts_.push_back({tensor.input + first * element, output, last - first});
  }
}

Work BenchCall::start(Communicator& communicator, std::chrono::milliseconds timeout) const {
  switch (collective_) {
    case BenchCollective::kAllReduce:
      return communicator.all_reduce(whole_, options_);
    case BenchCollective::kBroadcast:
      return communicator.broadcast({&of_root_, 1}, kRootRank, {});
    case BenchCollective::kAllGather:
      return communicator.all_gather(buffers_, {});
    case BenchCollective::kGather:
      return communicator.gather(buffers_, kRootRank, {});
    case BenchCollective::kScatter:
      return communicator.scatter(buffers_, kRootRank, {});
    case BenchCollective::kReduce:
      return communicator.reduce({&whole_, 1}, kRootRank, options_);
    case BenchCollective::kReduceScatter:
      return communicator.reduce_scatter(parts_, options_);
    case BenchCollective::kBarrier:
      return communicator.start_barrier(timeout);
    case BenchCollective::kBoth:
      break;
  }
  return {};
}

std::vector<BenchExpectation> expected(BenchCollective collective, int rank, int ranks, size_t count) {
  const BenchPart own = part_of(count, rank, ranks);
  std::vector<BenchExpectation> all_parts;
  for (int part = 0; part < ranks; ++part) {
    const BenchPart at = part_of(count, part, ranks);
    all_parts.push_back({at.first, at.last, part});
  }
  const bool root = rank == kRootRank;
  switch (collective) {
    case BenchCollective::kAllReduce:
    case BenchCollective::kReduceScatter:
      return {{own.first, own.last, BenchExpectation::kSum}};
    case BenchCollective::kBroadcast:
      return root ? std::vector<BenchExpectation>{} : std::vector<BenchExpectation>{{0, count, kRootRank}};
    case BenchCollective::kAllGather:
      return all_parts;
    case BenchCollective::kGather:
      return root ? all_parts : std::vector<BenchExpectation>{};
    case BenchCollective::kScatter:
      return {{own.first, own.last, kRootRank}};
    case BenchCollective::kReduce:
      return root ? std::vector<BenchExpectation>{{0, count, BenchExpectation::kSum}}
                  : std::vector<BenchExpectation>{};
    case BenchCollective::kBarrier:
    case BenchCollective::kBoth:
      break;
  }
  return {};
}

}  // namespace netsum::tool
