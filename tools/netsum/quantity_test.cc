#include "tools/netsum/quantity.h"

#include <gtest/gtest.h>

namespace netsum::tool::quantity_test {
namespace {

using namespace std::chrono_literals;

TEST(ParseBytes, TakesDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096").value(), 4096u);
  EXPECT_EQ(parse_bytes("64M").value(), 64'000'000u);
  EXPECT_EQ(parse_bytes("64Mi").value(), 67'108'864u);
  EXPECT_EQ(parse_bytes("64MiB").value(), 67'108'864u);
  EXPECT_EQ(parse_bytes("4k").value(), 4000u);
  EXPECT_EQ(parse_bytes("4kB").value(), 4000u);
  EXPECT_EQ(parse_bytes("2ki").value(), 2048u);
  EXPECT_EQ(parse_bytes("9007199254740992").value(), uint64_t{1} << 53);
  EXPECT_EQ(parse_bytes("1.5Ki").value(), 1536u);
}

TEST(ParseBytes, RefusesTheRestAndNamesTheForm) {
  for (const char* text : {"", "M", "-1", "12X", "12Mib", "12 M", "0.3", "1e300", "Ki12"}) {
    const Result<uint64_t> bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_NE(bytes.status().message().find("e.g. 64Mi"), std::string::npos) << bytes.status().message();
  }
}

TEST(ParseDuration, TakesUnits) {
  EXPECT_EQ(parse_duration("200ms").value(), 200ms);
  EXPECT_EQ(parse_duration("1.5s").value(), 1500ms);
  EXPECT_EQ(parse_duration("30").value(), 30s);
  EXPECT_EQ(parse_duration("2m").value(), 120s);
  EXPECT_EQ(parse_duration_or_zero("0ms").value(), 0ms);
  EXPECT_EQ(parse_duration_or_zero("3s").value(), 3s);
  EXPECT_FALSE(parse_duration_or_zero("0.5ms").ok());
  for (const char* text : {"", "s", "-3s", "5h", "0", "1e12"})
    EXPECT_FALSE(parse_duration(text).ok()) << text;
}

TEST(ParseRate, TakesUnits) {
  EXPECT_EQ(parse_rate("100mbit").value(), 100'000'000u);
  EXPECT_EQ(parse_rate("1gbit").value(), 1'000'000'000u);
  EXPECT_EQ(parse_rate("2.5gbit").value(), 2'500'000'000u);
  EXPECT_EQ(parse_rate("none").value(), 0u);
  for (const char* bad :
       {"", "1", "gbit", "-1gbit", "1 gbit", "1gbit ", "nangbit", "0mbit", "10tbit", "1e9gbit"}) {
    EXPECT_FALSE(parse_rate(bad).ok()) << bad;
  }
  for (const char* text : {"100mbit", "1gbit", "2.5gbit", "none", "1.544mbit"}) {
    EXPECT_EQ(format_rate(parse_rate(text).value()), text);
  }
}

TEST(ParseProbability, TakesPercent) {
  EXPECT_EQ(parse_probability("0.01").value(), 0.01);
  EXPECT_EQ(parse_probability("1%").value(), 0.01);
  EXPECT_EQ(parse_probability("0").value(), 0);
  EXPECT_EQ(parse_probability("100%").value(), 1);
  for (const char* bad : {"", "%", "1.01", "101%", "-0.1", "nan", "1 %", "0.1x"}) {
    EXPECT_FALSE(parse_probability(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace netsum::tool::quantity_test
