#include "src/base/spin_setting.h"

#include <gtest/gtest.h>

#include "src/base/spin_wait.h"

namespace netsum {
namespace {

using std::chrono::microseconds;

TEST(SpinSettingTest, IsASwitchOrATime) {
  for (const char* never : {"0", "false", "0ms", "0s"}) EXPECT_EQ(parse_spin(never).value(), microseconds(0));
  for (const char* usual : {"1", "true", "50us"})
    EXPECT_EQ(parse_spin(usual).value(), microseconds(SpinWait::kSpinUs));
  EXPECT_EQ(parse_spin("1us").value(), microseconds(1));
  EXPECT_EQ(parse_spin("10ms").value(), microseconds(10'000));
  EXPECT_EQ(parse_spin("1.5s").value(), microseconds(1'500'000));
  EXPECT_EQ(parse_spin("60s").value(), kLongestSpin);
}

TEST(SpinSettingTest, OtherTextsAreRefused) {
  for (const char* text : {"", "2", "10", "-1", "-10ms", "0.5us", "61s", "1e9s", "nan", "nans", "ms", "10 ms",
                           "10msx", "1m", "fast"}) {
    const auto parsed = parse_spin(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find("such as 10ms"), std::string::npos);
  }
}

TEST(SpinSettingTest, LimitsAreNamed) {
  EXPECT_TRUE(check_spin(microseconds(0)).ok());
  EXPECT_TRUE(check_spin(kLongestSpin).ok());
  EXPECT_EQ(check_spin(microseconds(-1)).to_string(),
            "invalid_argument: spin is -1 us; it must be 0 (never) to 60000000 us (60 s)");
  EXPECT_FALSE(check_spin(kLongestSpin + microseconds(1)).ok());
}

}  // namespace
}  // namespace netsum
