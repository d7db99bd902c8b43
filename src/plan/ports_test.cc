#include "src/plan/ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "src/base/rng.h"

namespace netsum::plan::ports_test {
namespace {

using ::testing::ElementsAre;

TEST(Ports, EachPortHasItsCore) {
  EXPECT_THAT(assign_cores(std::vector<double>{1, 1, 1}, 3),
              ElementsAre(PortCore{0, 0}, PortCore{1, 1}, PortCore{2, 2}));
}

TEST(Ports, FewerCoresTakeTheLongestFirst) {
  EXPECT_THAT(assign_cores(std::vector<double>{2, 3, 7, 6, 2}, 2),
              ElementsAre(PortCore{0, 0}, PortCore{1, 1}, PortCore{2, 0}, PortCore{3, 1}, PortCore{4, 0}));
}

TEST(Ports, MoreCoresGoToTheFasterPort) {
  EXPECT_THAT(assign_cores(std::vector<double>{10, 25}, 4),
              ElementsAre(PortCore{0, 0}, PortCore{1, 1}, PortCore{1, 2}, PortCore{1, 3}));
}

// Against every assignment there is: at most 4/3 of the best maximum (Graham, 1969).
TEST(Ports, LongestFirstIsNearTheBest) {
  Rng rng(20260728);
  for (int run = 0; run < 300; ++run) {
    std::vector<double> rates(4 + rng.below(4));
    for (double& rate : rates) rate = static_cast<double>(1 + rng.below(20));
    const auto most = [&](const std::vector<size_t>& core_of) {
      double load[3] = {};
      for (size_t port = 0; port < rates.size(); ++port) load[core_of[port]] += rates[port];
      return *std::max_element(load, load + 3);
    };
    double best = 1e9;
    size_t combinations = 1;
    for (size_t i = 0; i < rates.size(); ++i) combinations *= 3;
    std::vector<size_t> core_of(rates.size());
    for (size_t code = 0; code < combinations; ++code) {
      size_t rest = code;
      for (size_t& core : core_of) {
        core = rest % 3;
        rest /= 3;
      }
      best = std::min(best, most(core_of));
    }
    const std::vector<PortCore> assigned = assign_cores(rates, 3);
    for (size_t port = 0; port < rates.size(); ++port) core_of[port] = assigned[port].core;
    ASSERT_LE(most(core_of), best * 4 / 3 + 1e-9) << "run " << run;
  }
}

}  // namespace
}  // namespace netsum::plan::ports_test
