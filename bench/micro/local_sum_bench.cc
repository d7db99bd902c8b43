// Sums of the ranks of one host in memory (LocalSum), for each type and number of inputs.
//
//   netsum_local_sum_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=20
//
// The inputs fit the second-level cache, so that the conversion is measured and not the memory.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "src/base/assert.h"
#include "src/base/rng.h"
#include "src/host/local_sum.h"

namespace netsum {
namespace {

constexpr uint32_t kPayload = 1440;
constexpr size_t kBytes = size_t{64} << 10;  // of each input

// Small multiples of a power of two, whose sums are exact in all types.
std::vector<uint8_t> random_input(DataType type, Rng& rng) {
  std::vector<uint8_t> input(kBytes);
  for (size_t at = 0; at < kBytes; at += size_of(type)) {
    const auto number = static_cast<int32_t>(rng.below(16));
    const auto real = static_cast<float>(number);
    uint32_t bits = 0;
    std::memcpy(&bits, &real, 4);
    if (type == DataType::kBFloat16) bits >>= 16;
    std::memcpy(&input[at], type == DataType::kInt32 ? static_cast<const void*>(&number) : &bits,
                size_of(type));
  }
  return input;
}

void sum(benchmark::State& state, DataType type) {
  const auto inputs = static_cast<size_t>(state.range(0));
  Rng rng(1);
  std::vector<std::vector<uint8_t>> all;
  for (size_t i = 0; i < inputs; ++i) all.push_back(random_input(type, rng));
  std::vector<uint8_t> output(kBytes);
  std::vector<const void*> more_inputs;
  for (size_t i = 1; i < inputs; ++i) more_inputs.push_back(all[i].data());
  const TensorView first{.input = all[0].data(), .output = output.data(), .count = kBytes / size_of(type)};
  const TensorSequence sequence(type, {first}, more_inputs);
  const auto encoding = make_encoding({}, type, ReduceOp::kSum, static_cast<int>(inputs));
  LocalSum local_sum(kPayload);
  for (auto _ : state) {
    NETSUM_ASSERT(local_sum.run(*encoding, sequence));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytes));
}

BENCHMARK_CAPTURE(sum, float32, DataType::kFloat32)->Arg(2)->Arg(4);
BENCHMARK_CAPTURE(sum, bfloat16, DataType::kBFloat16)->Arg(2);
BENCHMARK_CAPTURE(sum, int32, DataType::kInt32)->Arg(2);

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
