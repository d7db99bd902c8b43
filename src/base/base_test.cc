#include <gtest/gtest.h>

#include <set>

#include "netsum/status.h"
#include "netsum/types.h"
#include "src/base/assert.h"
#include "src/base/fnv.h"
#include "src/base/rng.h"
#include "src/base/text.h"
#include "src/base/timeout.h"

namespace netsum::base_test {
namespace {

TEST(PrintableTest, EscapesAllButPrintableAscii) {
  EXPECT_EQ(printable("rank 3 (10.0.0.1)"), "rank 3 (10.0.0.1)");
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(printable(std::string_view("\0\x1b[2J\x7f\xc2\x9b", 8)), "\\x00\\x1b[2J\\x7f\\xc2\\x9b");
  EXPECT_EQ(printable(printable("a\nb\x1b")), printable("a\nb\x1b"));
  EXPECT_TRUE(is_printable(""));
  EXPECT_FALSE(is_printable("a\n"));
}

TEST(PrintableTest, CheckNamesTheTextAndTheRule) {
  EXPECT_TRUE(check_text("the name", "abc", 3).ok());
  EXPECT_EQ(check_text("the name", "abcd", 3).to_string(),
            "invalid_argument: the name has 4 bytes; at most 3 are allowed");
  EXPECT_EQ(check_text("the name", "a\n", 3).to_string(),
            "invalid_argument: the name may hold printable ASCII characters only");
}

TEST(PrintableTest, CutsAndSaysSo) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdefg", 6), "abc...");
  EXPECT_EQ(printable("ab\x01", 6), "ab\\x01");
  EXPECT_EQ(printable("abc\x01", 6), "abc...");
  EXPECT_EQ(printable("abcd", 3), "...");
}

TEST(StatusTest, DefaultIsOk) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().to_string(), "ok");
}

TEST(StatusTest, SaysCodeMessageAndRank) {
  const Status status(ErrorCode::kTimeout, "waited 30 s for rank 3", 3);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.rank(), 3);
  EXPECT_EQ(status.to_string(), "timeout: waited 30 s for rank 3");
}

TEST(StatusTest, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= 14; ++code) names.insert(error_name(static_cast<ErrorCode>(code)));
  EXPECT_EQ(names.size(), 15u);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(TypesTest, NamesAndSizes) {
  EXPECT_EQ(data_type_name(DataType::kBFloat16), "bfloat16");
  EXPECT_EQ(size_of(DataType::kInt64), 8u);
  EXPECT_TRUE(is_floating(DataType::kFloat16));
  EXPECT_FALSE(is_floating(DataType::kInt32));
}

TEST(TimeoutTest, IsBounded) {
  using std::chrono::milliseconds;
  EXPECT_EQ(bounded(milliseconds(0)), milliseconds(0));
  EXPECT_EQ(bounded(milliseconds(1234)), milliseconds(1234));
  EXPECT_EQ(bounded(milliseconds::max()), kLongestTimeout);
  EXPECT_EQ(bounded(milliseconds::min()), milliseconds(0));
  EXPECT_LT(kLongestTimeout.count(), int64_t{1} << 32);
}

TEST(RngTest, SameSeedSameNumbersWithinBounds) {
  Rng a(7), b(7), c(8);
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t x = a.next();
    EXPECT_EQ(x, b.next());
    differs |= x != c.next();
  }
  EXPECT_TRUE(differs);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LT(a.below(10), 10u);
    EXPECT_LT(a.unit(), 1.0);
  }
}

TEST(AssertDeathTest, StopsTheProcessAndNamesTheCondition) {
  EXPECT_DEATH(NETSUM_ASSERT(1 + 1 == 3), "bug: 1 \\+ 1 == 3 is false");
}

TEST(FnvTest, HasThePublishedHashes) {
  uint64_t hash = kFnvBasis;
  for (const char letter : std::string_view("foobar")) hash = fnv1a(hash, static_cast<unsigned char>(letter));
  EXPECT_EQ(hash, 0x85944171f73967e8);
}

TEST(TextTest, SecretsAreComparedInFull) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("xbc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abcd"));
  EXPECT_FALSE(equal_in_constant_time(std::string_view("a\0b", 3), std::string_view("a\0c", 3)));
}

}  // namespace
}  // namespace netsum::base_test
