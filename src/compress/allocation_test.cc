// No compressor allocates memory in a step, whatever its memory and its path. This program counts its allocations.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "src/compress/testing.h"

namespace {

size_t allocations = 0;

// The C library's own is not replaced: no code of compression calls it by itself. Not inlined: otherwise g++ sees free() of what new
// has returned, and warns.
[[gnu::noinline]] void* allocate(size_t bytes, size_t alignment) {
  ++allocations;
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), std::max<size_t>(bytes, 1)) != 0)
    std::abort();
  return memory;
}

[[gnu::noinline]] void release(void* memory) {
  std::free(memory);
}

constexpr size_t kUsual = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(size_t bytes) {
  return allocate(bytes, kUsual);
}
void* operator new[](size_t bytes) {
  return allocate(bytes, kUsual);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, kUsual);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, kUsual);
}
void* operator new(size_t bytes, std::align_val_t to) {
  return allocate(bytes, static_cast<size_t>(to));
}
void* operator new[](size_t bytes, std::align_val_t to) {
  return allocate(bytes, static_cast<size_t>(to));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, size_t /*bytes*/) noexcept {
  release(memory);
}
void operator delete[](void* memory, size_t /*bytes*/) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t /*to*/) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::align_val_t /*to*/) noexcept {
  release(memory);
}
void operator delete(void* memory, size_t /*bytes*/, std::align_val_t /*to*/) noexcept {
  release(memory);
}
void operator delete[](void* memory, size_t /*bytes*/, std::align_val_t /*to*/) noexcept {
  release(memory);
}

namespace netsum::compress::allocation_test {
namespace {

constexpr size_t kRows = 256, kCount = kRows * 256;
constexpr int kRanks = 4;
constexpr int kSteps = 12;  // sidco changes the number of its stages every 5 steps

// The steps of one tensor, of which the first is not counted.
size_t allocations_of_steps(const Compression& compression) {
  const auto tensor = compression.tensor(1, kCount, 1, kRanks, kRows);
  const PayloadShape shape = tensor->shape();
  std::vector<std::byte> payload(shape.count * size_of(shape.type));
  std::vector<float> agreed(tensor->agreed_values()), side(shape.side_values), out(kCount);
  // Gradients of several sizes, one of them zero, so that thresholds and lengths vary.
  std::array<std::vector<float>, 3> gradients = {numbers(kCount, 1), numbers(kCount, 2),
                                                 std::vector<float>(kCount, 0.0f)};
  for (float& value : gradients[1]) value *= 100;
  size_t before = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (step == 1) before = allocations;
    const std::vector<float>& gradient = gradients[static_cast<size_t>(step) % gradients.size()];
    if (!agreed.empty()) tensor->agree(gradient.data(), agreed.data());
    tensor->compress(gradient.data(), agreed.data(), payload.data(), side.data());
    tensor->decompress(payload.data(), side.data(), 1, out.data());
  }
  return allocations - before;
}

// Every method with every memory and on every path that it can have, and with the options that choose other code.
std::vector<CompressionOptions> all_combinations() {
  std::vector<CompressionOptions> variants;
  for (const std::string_view method : compression_methods()) {
    CompressionOptions options{.method = std::string(method)};
    if (method == "threshold") options.threshold = 0.5;
    variants.push_back(options);
    for (const bool rotated : {false, true}) {
      options.rotated = rotated;
      if (rotated) variants.push_back(options);
    }
  }
  variants.push_back({.method = "topk", .ratio = 0.5, .sampled = true});
  variants.push_back({.method = "topk", .warmup_steps = 6});
  variants.push_back({.method = "dcttopk", .count_senders = true});
  for (const char* const fit : {"pareto", "gamma"}) variants.push_back({.method = "sidco", .fit = fit});
  std::vector<CompressionOptions> all;
  for (CompressionOptions options : variants) {
    for (const char* const memory : {"none", "residual", "dgc", "momentum"}) {
      for (const char* const path : {"dense", "union", "gather"}) {
        options.memory = memory;
        options.path = path;
        all.push_back(options);
      }
    }
  }
  return all;
}

TEST(AllocationTest, TheCountSeesAnAllocation) {
  const size_t before = allocations;
  const std::vector<float> numbers(1000);
  EXPECT_EQ(allocations, before + 1);
}

TEST(AllocationTest, NoStepAllocates) {
  std::set<std::string> methods;
  size_t combinations = 0;
  for (const CompressionOptions& options : all_combinations()) {
    const auto compression = Compression::make(options);
    if (!compression.ok()) continue;  // it has no such memory, path or option
    ++combinations;
    methods.insert(options.method);
    EXPECT_EQ(allocations_of_steps(**compression), 0u) << (*compression)->describe();
  }
  EXPECT_EQ(methods.size(), compression_methods().size());
  EXPECT_GT(combinations, 60u);
}

}  // namespace
}  // namespace netsum::compress::allocation_test
