// The fixture of tests whose ranks verify the sums of the XDP program: skips where that may not be loaded.
#ifndef NETSUM_TESTS_ATTACK_LIES_RACK_FIXTURE_H_
#define NETSUM_TESTS_ATTACK_LIES_RACK_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>

#include "tests/attack/lies_rack.h"

namespace netsum::attack {

inline constexpr auto kKinds = static_cast<int>(emulate::Lie::kCount);

class XdpRack : public ::testing::Test {
 protected:
  // Jobs whose sums are verified fail by a wrong sum only. Returns false if the test is over.
  bool run(const RackOptions& options) {
    Result<RackReport> ran = run_rack(options);
    if (ran.status().code() == ErrorCode::kPermissionDenied) {
      [&] { GTEST_SKIP() << ran.status().to_string(); }();
      return false;
    }
    EXPECT_TRUE(ran.ok()) << ran.status().to_string();
    if (!ran.ok()) return false;
    report_ = *ran;
    for (const RankReport& rank : report_.ranks)
      EXPECT_TRUE(rank.trouble[0] == 0 || options.verify == Verify::kPacket) << rank.trouble.data();
    EXPECT_EQ(report_.sum(&RankReport::hosts_refused), 0u);
    EXPECT_EQ(report_.frames_lost, 0u);
    return true;
  }
  // In the first `kinds` ways.
  void expect_injected(int kinds) const {
    for (int kind = 0; kind < kinds; ++kind)
      EXPECT_GT(report_.path.injected[static_cast<size_t>(kind)], 0u)
          << name_of(static_cast<emulate::Lie>(kind));
  }
  // Each of its jobs ended in this way, on all ranks.
  void expect_all_jobs(int RankReport::*count, int jobs = kKinds, int ranks = kRackRanks) const {
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(report_.ranks[static_cast<size_t>(rank)].*count, jobs) << "rank " << rank;
  }
  RackReport report_;
};

// With a mode of verified sums.
class VerifiedXdpRack : public XdpRack, public ::testing::WithParamInterface<Verify> {};

inline std::string name_of_mode(const ::testing::TestParamInfo<Verify>& mode) {
  return mode.param == Verify::kBoth ? "Both" : "Sum";
}

}  // namespace netsum::attack

#endif  // NETSUM_TESTS_ATTACK_LIES_RACK_FIXTURE_H_
