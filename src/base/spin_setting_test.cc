#include "src/base/spin_setting.h"

#include <gtest/gtest.h>

namespace netsum::spin_setting_test {
namespace {

using std::chrono::microseconds;

TEST(SpinSettingTest, LimitsAreNamed) {
  EXPECT_TRUE(check_spin(microseconds(0)).ok());
  EXPECT_TRUE(check_spin(kLongestSpin).ok());
  EXPECT_EQ(check_spin(microseconds(-1)).to_string(),
            "invalid_argument: spin is -1 us; it must be 0 (never) to 60000000 us (60 s)");
  EXPECT_FALSE(check_spin(kLongestSpin + microseconds(1)).ok());
}

}  // namespace
}  // namespace netsum::spin_setting_test
