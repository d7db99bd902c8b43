// Kernel speed on one packet's worth of elements, hot in cache: the vector kernels beside the plain reference
// and memcpy, in one run. Each checks its result against the reference before it is timed, and goes through
// a ring of different inputs, so that no branch predictor learns one of them by heart.
//
//   netsum_kernels_bench --benchmark_filter=Add --benchmark_repetitions=5
//
// bytes_per_second counts the tensor's (or the packet's) bytes once, whatever else is read and written.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/base/assert.h"
#include "src/base/rng.h"
#include "src/kernels/half.h"
#include "src/kernels/kernels.h"

namespace netsum::kernels {
namespace {

constexpr size_t kLanes = 360;  // 1440 bytes: a full packet at MTU 1500
constexpr size_t kPacketBytes = kLanes * 4;
constexpr size_t kInputs = 8;  // with outputs about 24 KiB: within a 32 KiB first-level cache
constexpr int kMembers = 4;
constexpr uint8_t kExponent = 129;  // |x| < 8

using Packet = std::array<uint8_t, kPacketBytes + 8>;  // lanes start 2 bytes in, as after 42 bytes of headers
constexpr size_t kOffset = 2;

struct Inputs {
  std::vector<Packet> elements{kInputs};
  std::vector<Packet> lanes{kInputs};
  std::vector<Packet> lanes16{kInputs};  // of the 16-bit types
  std::array<uint32_t, kLanes> key;
};

// Normally distributed elements as gradients are, and their lanes.
Inputs make_inputs(DataType type) {
  Rng rng(1);
  Inputs inputs;
  for (size_t k = 0; k < kInputs; ++k) {
    for (size_t i = 0; i < kLanes; ++i) {
      const double radius = std::sqrt(-2 * std::log(1 - rng.unit()));
      const auto x = static_cast<float>(radius * std::cos(2 * M_PI * rng.unit()));
      const uint16_t half = type == DataType::kBFloat16 ? float_to_bfloat16(x) : float_to_float16(x);
      if (type == DataType::kFloat32) std::memcpy(inputs.elements[k].data() + kOffset + i * 4, &x, 4);
      if (type != DataType::kFloat32) std::memcpy(inputs.elements[k].data() + kOffset + i * 2, &half, 2);
    }
    plain::to_lanes32(type, inputs.elements[k].data() + kOffset, kLanes, kExponent, kMembers,
                      inputs.lanes[k].data() + kOffset);
    if (size_of(type) == 2) {
      plain::to_lanes16(type, inputs.elements[k].data() + kOffset, kLanes, kExponent, kMembers,
                        inputs.lanes16[k].data() + kOffset);
    }
  }
  for (auto& word : inputs.key) word = static_cast<uint32_t>(rng.next());
  return inputs;
}

// Times `kernel(k, out)` over the inputs k; `reference` must leave the same bytes in its `out`.
template <class Kernel, class Reference>
void run(benchmark::State& state, size_t bytes, const Kernel& kernel, const Reference& reference) {
  std::vector<Packet> out(kInputs), expected(kInputs);
  for (size_t k = 0; k < kInputs; ++k) {
    kernel(k, out[k].data() + kOffset);
    reference(k, expected[k].data() + kOffset);
    NETSUM_ASSERT(out[k] == expected[k]);
  }
  size_t k = 0;
  for (auto _ : state) {
    kernel(k, out[k].data() + kOffset);
    benchmark::ClobberMemory();
    k = (k + 1) % kInputs;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes));
}

void memory_copy(benchmark::State& state) {
  const Inputs inputs = make_inputs(DataType::kFloat32);
  const auto copy = [&](size_t k, uint8_t* out) {
    std::memcpy(out, inputs.lanes[k].data() + kOffset, kPacketBytes);
  };
  run(state, kPacketBytes, copy, copy);
}

using Scan = BlockScale (*)(DataType, const void*, size_t, int);
void scan_block(benchmark::State& state, Scan kernel, DataType type) {
  const Inputs inputs = make_inputs(type);
  const auto use = [&](Scan scan_with) {
    return [&inputs, type, scan_with](size_t k, uint8_t* out) {
      const BlockScale scale = scan_with(type, inputs.elements[k].data() + kOffset, kLanes, kMembers);
      std::memcpy(out, &scale, sizeof(scale));
    };
  };
  run(state, kLanes * size_of(type), use(kernel), use(plain::scan));
}

using ToLanes = void (*)(DataType, const void*, size_t, uint8_t, int, uint8_t*);
void quantise(benchmark::State& state, ToLanes kernel, ToLanes reference, DataType type) {
  const Inputs inputs = make_inputs(type);
  const auto use = [&](ToLanes to_lanes) {
    return [&inputs, type, to_lanes](size_t k, uint8_t* out) {
      to_lanes(type, inputs.elements[k].data() + kOffset, kLanes, kExponent, kMembers, out);
    };
  };
  run(state, kLanes * size_of(type), use(kernel), use(reference));
}

using FromLanes = void (*)(DataType, const uint8_t*, size_t, uint8_t, int, bool, void*);
void dequantise(benchmark::State& state, FromLanes kernel, FromLanes reference, DataType type, bool average) {
  const Inputs inputs = make_inputs(type);
  const auto& lanes = reference == plain::from_lanes16 ? inputs.lanes16 : inputs.lanes;
  const auto use = [&](FromLanes from_lanes) {
    return [&lanes, type, average, from_lanes](size_t k, uint8_t* out) {
      from_lanes(type, lanes[k].data() + kOffset, kLanes, kExponent, kMembers, average, out);
    };
  };
  run(state, kLanes * size_of(type), use(kernel), use(reference));
}

// As a slot does for the second and later members of a round. The sums wrap in time, which costs nothing.
using AddLanes = bool (*)(uint8_t*, const uint8_t*, size_t);
void add(benchmark::State& state, AddLanes kernel, AddLanes reference, size_t lane_bytes) {
  const Inputs inputs = make_inputs(DataType::kFloat32);
  const auto use = [&](AddLanes add_lanes) {
    return [&inputs, lane_bytes, add_lanes](size_t k, uint8_t* out) {
      benchmark::DoNotOptimize(add_lanes(out, inputs.lanes[k].data() + kOffset, kPacketBytes / lane_bytes));
    };
  };
  run(state, kPacketBytes, use(kernel), use(reference));
}

using Nh = uint64_t (*)(const uint8_t*, size_t, const uint32_t*);
void hash(benchmark::State& state, Nh kernel) {
  const Inputs inputs = make_inputs(DataType::kFloat32);
  const auto use = [&](Nh nh_with) {
    return [&inputs, nh_with](size_t k, uint8_t* out) {
      const uint64_t value = nh_with(inputs.lanes[k].data() + kOffset, kPacketBytes, inputs.key.data());
      std::memcpy(out, &value, sizeof(value));
    };
  };
  run(state, kPacketBytes, use(kernel), use(plain::nh));
}

BENCHMARK(memory_copy);
BENCHMARK_CAPTURE(add, plain16, plain::add_lanes16, plain::add_lanes16, 2);
BENCHMARK_CAPTURE(add, vector16, add_lanes16, plain::add_lanes16, 2);
BENCHMARK_CAPTURE(add, plain32, plain::add_lanes32, plain::add_lanes32, 4);
BENCHMARK_CAPTURE(add, vector32, add_lanes32, plain::add_lanes32, 4);
BENCHMARK_CAPTURE(add, plain64, plain::add_lanes64, plain::add_lanes64, 8);
BENCHMARK_CAPTURE(add, vector64, add_lanes64, plain::add_lanes64, 8);
BENCHMARK_CAPTURE(hash, plain_nh, plain::nh);
BENCHMARK_CAPTURE(hash, vector_nh, nh);

#define NETSUM_BENCH_SCAN(name, type)                             \
  BENCHMARK_CAPTURE(scan_block, plain_##name, plain::scan, type); \
  BENCHMARK_CAPTURE(scan_block, vector_##name, scan, type)

#define NETSUM_BENCH_LANES(name, type, bits)                                                                 \
  BENCHMARK_CAPTURE(quantise, plain_##name##_##bits, plain::to_lanes##bits, plain::to_lanes##bits, type);    \
  BENCHMARK_CAPTURE(quantise, vector_##name##_##bits, to_lanes##bits, plain::to_lanes##bits, type);          \
  BENCHMARK_CAPTURE(dequantise, plain_##name##_##bits##_sum, plain::from_lanes##bits,                        \
                    plain::from_lanes##bits, type, false);                                                   \
  BENCHMARK_CAPTURE(dequantise, vector_##name##_##bits##_sum, from_lanes##bits, plain::from_lanes##bits,     \
                    type, false);                                                                            \
  BENCHMARK_CAPTURE(dequantise, vector_##name##_##bits##_average, from_lanes##bits, plain::from_lanes##bits, \
                    type, true)

NETSUM_BENCH_SCAN(float32, DataType::kFloat32);
NETSUM_BENCH_SCAN(bfloat16, DataType::kBFloat16);
NETSUM_BENCH_SCAN(float16, DataType::kFloat16);
NETSUM_BENCH_LANES(float32, DataType::kFloat32, 32);
NETSUM_BENCH_LANES(bfloat16, DataType::kBFloat16, 32);
NETSUM_BENCH_LANES(bfloat16, DataType::kBFloat16, 16);
NETSUM_BENCH_LANES(float16, DataType::kFloat16, 32);
NETSUM_BENCH_LANES(float16, DataType::kFloat16, 16);

}  // namespace
}  // namespace netsum::kernels

BENCHMARK_MAIN();
