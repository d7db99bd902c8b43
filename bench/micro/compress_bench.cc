// What compression costs a processor: compressing a large tensor with its memory, and decompressing the payload. The tensor does not
// fit a cache.
//
// bytes_per_second counts the tensor's bytes once.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "netsum/compression.h"
#include "src/base/assert.h"
#include "src/base/rng.h"
#include "src/compress/method.h"
#include "src/compress/option_text.h"

namespace netsum {
namespace {

constexpr size_t kElements = size_t{16} << 20;
constexpr size_t kRows = 4096;
constexpr int kRanks = 8;

void compress_tensor(benchmark::State& state, const CompressionOptions& options) {
  auto compression = Compression::make(options);
  NETSUM_ASSERT(compression.ok());
  const auto tensor = (*compression)->tensor(1, kElements, 0, kRanks, kRows);
  const PayloadShape shape = tensor->shape();
  Rng rng(1);
  std::vector<float> gradient(kElements), out(kElements);
  for (float& x : gradient) x = static_cast<float>(std::pow(2 * rng.unit() - 1, 5));
  std::vector<std::byte> payload(shape.count * size_of(shape.type));
  std::vector<float> agreed(tensor->agreed_values()), side(shape.side_values);
  for (auto _ : state) {
    if (!agreed.empty()) tensor->agree(gradient.data(), agreed.data());
    tensor->compress(gradient.data(), agreed.data(), payload.data(), side.data());
    tensor->decompress(payload.data(), side.data(), shape.type == DataType::kInt32 ? kRanks : 1, out.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kElements * sizeof(float)));
}

// The examples of every method, by their text.
void register_cases() {
  for (const compress::Method* const method : compress::all_methods()) {
    for (const std::string_view& example : method->examples) {
      if (example.empty() && &example != method->examples.begin()) break;
      std::string text(method->name);
      if (!example.empty()) text.append(",").append(example);
      const auto options = compress::parse_compression(text);
      NETSUM_ASSERT(options.ok());
      benchmark::RegisterBenchmark(text.c_str(), &compress_tensor, *options)->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace netsum

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  netsum::register_cases();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
