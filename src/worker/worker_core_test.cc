#include "src/worker/worker_core.h"

#include <gtest/gtest.h>

#include <vector>

namespace netsum {
namespace {

TEST(WorkerCore, RanksBeginWithDifferentStripes) {
  constexpr int kRanks = 5, kStripes = 4;
  for (int rank = 0; rank < kRanks; ++rank) {
    WorkerOptions options;
    options.rank = rank;
    options.world_size = kRanks;
    options.stripes.resize(kStripes);
    for (int s = 0; s < kStripes; ++s) {
      options.stripes[static_cast<size_t>(s)].address =
          Address::parse("10.0.0.1:" + std::to_string(1000 + s)).value();
    }
    WorkerCore core(options);
    std::vector<float> memory(100, 1.0F);
    OperationSpec spec;
    spec.tensors = {{memory.data(), memory.data(), memory.size()}};
    spec.deadline_us = 1'000'000;
    core.submit(1, std::move(spec));
    const auto packets = core.collect(0);
    ASSERT_EQ(packets.size(), 4u) << "a HELLO to each";
    EXPECT_EQ(packets.front().to.to_string(), "10.0.0.1:" + std::to_string(1000 + rank % kStripes));
  }
}

}  // namespace
}  // namespace netsum
