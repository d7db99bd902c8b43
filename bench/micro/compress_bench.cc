// What compression costs a processor: compressing a large tensor with its memory, and decompressing the payload. The tensor does not
// fit a cache.
//
// bytes_per_second counts the tensor's bytes once.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "netsum/compression.h"
#include "src/base/assert.h"
#include "src/base/rng.h"

namespace netsum {
namespace {

constexpr size_t kElements = size_t{16} << 20;
constexpr size_t kRows = 4096;
constexpr int kRanks = 8;

void compress(benchmark::State& state, const CompressionOptions& options) {
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

const std::vector<std::pair<std::string, CompressionOptions>> kCases = {
    {"none", {.method = "none"}},
    {"fp16", {.method = "fp16"}},
    {"fp16, residual", {.method = "fp16", .memory = "residual"}},
    {"bf16", {.method = "bf16"}},
    {"topk, 1 %", {.method = "topk", .ratio = 0.01}},
    {"topk, 1 %, sampled", {.method = "topk", .ratio = 0.01, .sampled = true}},
    {"topk, 0.1 %, sampled", {.method = "topk", .ratio = 0.001, .sampled = true}},
    {"dgc, 1 %, sampled", {.method = "dgc", .ratio = 0.01, .sampled = true}},
    {"sidco, 1 %", {.method = "sidco", .ratio = 0.01}},
    {"threshold", {.method = "threshold", .threshold = 0.9}},
    {"blocktopk, 1 %", {.method = "blocktopk", .ratio = 0.01}},
    {"randomk, 1 %", {.method = "randomk", .ratio = 0.01}},
    {"countsketch, 0.1 %", {.method = "countsketch", .ratio = 0.001}},
    {"lanes8", {.method = "lanes8"}},
    {"lanes8, no memory", {.method = "lanes8", .memory = "none"}},
    {"int8", {.method = "int8"}},
    {"int4", {.method = "int4"}},
    {"qsgd", {.method = "qsgd"}},
    {"terngrad", {.method = "terngrad"}},
    {"int4, rotated", {.method = "int4", .rotated = true}},
    {"thc", {.method = "thc", .block = 1024}},
    {"thc_table", {.method = "thc_table", .block = 1024}},
    {"efsign", {.method = "efsign"}},
    {"signsgd", {.method = "signsgd"}},
    {"signum", {.method = "signum"}},
    {"onebit", {.method = "onebit"}},
    {"powersgd, rank 4", {.method = "powersgd"}},
    {"natural", {.method = "natural"}},
    {"u8bit", {.method = "u8bit"}},
    {"fp8_e4m3", {.method = "fp8_e4m3"}},
    {"fp8_e5m2", {.method = "fp8_e5m2"}},
    {"inceptionn", {.method = "inceptionn"}},
    {"sketch", {.method = "sketch"}},
    {"adaq, 1 %", {.method = "adaq", .ratio = 0.01}},
    {"chunktopk, 64 of 4096", {.method = "chunktopk", .k = 64, .block = 4096}},
    {"dcttopk, 4 of 64", {.method = "dcttopk", .k = 4, .block = 64}},
};

}  // namespace
}  // namespace netsum

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const std::string_view method : netsum::compression_methods())
    NETSUM_ASSERT(std::any_of(netsum::kCases.begin(), netsum::kCases.end(),
                              [&](const auto& entry) { return entry.second.method == method; }));
  for (const auto& [name, options] : netsum::kCases)
    benchmark::RegisterBenchmark(name.c_str(), &netsum::compress, options)->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
