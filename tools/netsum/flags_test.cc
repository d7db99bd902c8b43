#include "tools/netsum/flags.h"

#include <gtest/gtest.h>

namespace netsum::tool {
namespace {

TEST(ParseBytesTest, TakesDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096").value(), 4096u);
  EXPECT_EQ(parse_bytes("64M").value(), 64'000'000u);
  EXPECT_EQ(parse_bytes("64Mi").value(), 67'108'864u);
  EXPECT_EQ(parse_bytes("64MiB").value(), 67'108'864u);
  EXPECT_EQ(parse_bytes("4k").value(), 4000u);
  EXPECT_EQ(parse_bytes("1.5Ki").value(), 1536u);
}

TEST(ParseBytesTest, RefusesTheRestAndNamesTheForm) {
  for (const char* text : {"", "M", "-1", "12X", "12Mib", "12 M", "0.3", "1e300", "Ki12"}) {
    const Result<uint64_t> bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_NE(bytes.status().message().find("e.g. 64Mi"), std::string::npos) << bytes.status().message();
  }
}

TEST(ParseDurationTest, TakesUnits) {
  EXPECT_EQ(parse_duration_ms("200ms").value(), 200);
  EXPECT_EQ(parse_duration_ms("1.5s").value(), 1500);
  EXPECT_EQ(parse_duration_ms("30").value(), 30'000);
  EXPECT_EQ(parse_duration_ms("2m").value(), 120'000);
  for (const char* text : {"", "s", "-3s", "5h", "0", "1e12"})
    EXPECT_FALSE(parse_duration_ms(text).ok()) << text;
}

TEST(SplitListTest, DropsEmptyParts) {
  EXPECT_EQ(split_list(""), std::vector<std::string>());
  EXPECT_EQ(split_list("a:1,b:2"), (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(split_list("a:1,,"), std::vector<std::string>{"a:1"});
}

TEST(TlsFlagsTest, CertificateAndKeyGoTogether) {
  TlsFlags flags;
  EXPECT_FALSE(flags.load().enabled());
  flags.cert_path = "cert.pem";
  EXPECT_THROW(flags.load(), UsageError);
  flags.key_path = "key.pem";
  EXPECT_THROW(flags.load(), UsageError) << "neither file exists";
}

TEST(Flags, Probabilities) {
  EXPECT_EQ(parse_probability("0.01").value(), 0.01);
  EXPECT_EQ(parse_probability("1%").value(), 0.01);
  EXPECT_EQ(parse_probability("0").value(), 0);
  EXPECT_EQ(parse_probability("100%").value(), 1);
  for (const char* bad : {"", "%", "1.01", "101%", "-0.1", "nan", "1 %", "0.1x"}) {
    EXPECT_FALSE(parse_probability(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace netsum::tool
