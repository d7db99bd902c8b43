// The fuzzer that this is linked with, on its corpus and on random inputs: no search, no clang, but part of every run of the
// tests.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "src/base/rng.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace netsum::random_inputs_test {
namespace {

uint64_t running_seed = 0;

// A fuzzer aborts at what is wrong.
void on_abort(int) {
  std::fprintf(stderr, "again: NETSUM_SEED=%llu\n", static_cast<unsigned long long>(running_seed));
}

TEST(Corpus, NothingIsWrong) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(NETSUM_CORPUS)) {
    std::printf("%s\n", entry.path().c_str());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    ASSERT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(RandomInputs, NothingIsWrong) {
  const char* only = std::getenv("NETSUM_SEED");
  const uint64_t first = only ? std::strtoull(only, nullptr, 0) : 1;
  std::printf("seeds from %llu\n", static_cast<unsigned long long>(first));
  std::signal(SIGABRT, on_abort);
  for (running_seed = first; running_seed < first + (only ? 1 : NETSUM_INPUTS); ++running_seed) {
    Rng rng(running_seed);
    std::vector<uint8_t> input(rng.below(NETSUM_LONGEST_INPUT + 1));
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(rng.next());
    ASSERT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0);
  }
  std::signal(SIGABRT, SIG_DFL);
}

}  // namespace
}  // namespace netsum::random_inputs_test
