// How often a call allocates memory: a small sum takes a few microseconds, and each allocation costs it about 150 instructions.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "session/job_testing.h"

namespace {

thread_local uint64_t allocations = 0;

}  // namespace

void* operator new(size_t size) {
  ++allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace netsum::allocations_test {
namespace {

// In all_reduce() and wait(), by the calling thread: the tensors of the operation, the operation that the engine shares with the
// Work, and the operation in the core.
constexpr uint64_t kMostPerSum = 3;

void expect_few_allocations(const CommunicatorOptions& options) {
  run_ranks(2, options, [](int, std::unique_ptr<Communicator>& communicator) {
    std::vector<float> data(256, 0.0f);  // sums stay zero
    const TensorView tensor{data.data(), data.data(), data.size()};
    const auto sum = [&] {
      return communicator->all_reduce(tensor, {.timeout = std::chrono::seconds(60)}).wait();
    };
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(sum().ok());
    constexpr uint64_t kSums = 400;
    const uint64_t before = allocations;
    for (uint64_t i = 0; i < kSums; ++i) ASSERT_TRUE(sum().ok());
    // Queues allocate a block for several operations.
    EXPECT_LE(allocations - before, kMostPerSum * kSums + kSums / 2);
  });
}

TEST(Allocations, OfASmallSumInSharedMemory) {
  CommunicatorOptions options;
  options.root = "127.0.0.1:0";
  expect_few_allocations(options);
}

TEST(Allocations, OfASmallSumAtAnAggregator) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options;
  options.aggregators = {aggregator->control_address()};
  options.shared_memory = false;
  expect_few_allocations(options);
}

}  // namespace
}  // namespace netsum::allocations_test
