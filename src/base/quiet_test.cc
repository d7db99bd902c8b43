#include "src/base/quiet.h"

#include <gtest/gtest.h>

namespace netsum::quiet_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Time passes only in steps.
struct World {
  milliseconds now{0};
  uint64_t heard = 0;
  milliseconds every{0};         // a packet; 0: none
  milliseconds last{INT64_MAX};  // of the packets, and
  milliseconds over{INT64_MAX};  // of what needs them

  void serve(steady_clock::time_point deadline = steady_clock::time_point::max()) {
    serve_until_quiet(
        kQuiet, [this] { return heard; },
        [this](milliseconds step) {
          now += step;
          if (every.count() > 0 && now <= last && now % every < step) ++heard;
          return now >= over;
        },
        deadline);
  }
};

TEST(Quiet, EndsAfterAWhileWithoutPackets) {
  World world;
  world.serve();
  EXPECT_EQ(world.now, kQuiet);
}

// The longest pause before a first probe, which is lost, and that before the second.
TEST(Quiet, GoesOnWhilePacketsComeAndForAWhileAfterTheLast) {
  World world{.every = milliseconds(760), .last = milliseconds(7'600)};
  world.serve();
  EXPECT_EQ(world.now, milliseconds(7'600) + kQuiet);
}

TEST(Quiet, EndsWithWhatItServes) {
  World world{.every = milliseconds(100), .over = milliseconds(40)};
  world.serve();
  EXPECT_EQ(world.now, milliseconds(40));
}

TEST(Quiet, EndsAtItsDeadlineThoughPacketsCome) {
  World world{.every = milliseconds(20)};
  world.serve(steady_clock::now());
  EXPECT_EQ(world.now, kQuietStep);
}

}  // namespace
}  // namespace netsum::quiet_test
