#include "src/net/multicast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace netsum::multicast_test {
namespace {

using testing::HasSubstr;

TEST(MulticastRangeTest, CountsItsAddresses) {
  const MulticastRange range = MulticastRange::parse("239.1.2.0/24").value();
  EXPECT_EQ(range.size(), 256u);
  EXPECT_EQ(range.at(0).to_string(), "239.1.2.0:0");
  EXPECT_EQ(range.at(255).to_string(), "239.1.2.255:0");
  EXPECT_EQ(MulticastRange::parse("239.1.2.128/30").value().at(3).to_string(), "239.1.2.131:0");
  EXPECT_EQ(MulticastRange::parse("232.0.0.9").value().size(), 1u);
  EXPECT_EQ(MulticastRange::parse("224.0.1.0/24").value().size(), 256u);
}

TEST(MulticastRangeTest, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> bad[] = {{"10.0.0.0/8", "not multicast"},
                                                     {"240.0.0.0/8", "not multicast"},
                                                     {"224.0.0.0/3", "not multicast"},
                                                     {"224.0.0.0/24", "local network"},
                                                     {"224.0.0.0/4", "local network"},
                                                     {"224.0.0.251", "local network"},
                                                     {"239.1.2.1/24", "bits after the first 24"},
                                                     {"239.1.2.0/33", "follows '/'"},
                                                     {"239.1.2.0/", "follows '/'"},
                                                     {"239.1.2.0/x", "follows '/'"},
                                                     {"239.1.2", "no IPv4 address"},
                                                     {"", "no IPv4 address"},
                                                     {"ff15::1/120", "IPv4 multicast only"}};
  for (const auto& [text, words] : bad) {
    const Result<MulticastRange> range = MulticastRange::parse(text);
    ASSERT_FALSE(range.ok()) << text;
    EXPECT_EQ(range.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(range.status().message(), HasSubstr(words)) << text;
    EXPECT_THAT(range.status().message(), HasSubstr("e.g. 239.1.2.0/24"));
  }
}

}  // namespace
}  // namespace netsum::multicast_test
