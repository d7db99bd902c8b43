#include "tools/netsum/hostlist.h"

#include <gtest/gtest.h>

namespace netsum::tool::hostlist_test {
namespace {

std::vector<std::string> names(std::string_view text) {
  const Result<std::vector<std::string>> found = parse_hostlist(text);
  EXPECT_TRUE(found.ok()) << found.status().message();
  return found.ok() ? *found : std::vector<std::string>{};
}

TEST(Hostlist, Names) {
  using List = std::vector<std::string>;
  EXPECT_EQ(names("tux[0-2,12],login"), (List{"tux0", "tux1", "tux2", "tux12", "login"}));
  EXPECT_EQ(names("n[08-11]"), (List{"n08", "n09", "n10", "n11"}));
  EXPECT_EQ(names("r[0-1]n[1-2]"), (List{"r0n1", "r0n2", "r1n1", "r1n2"}));
}

TEST(Hostlist, IsTheSameAfterReading) {
  for (const char* text : {"a", "n[0-3]", "n[08-11]", "n[0-3,7],m1", "n[9-10]", "n[9,11]", "b,a",
                           "r0n[1-2],r1n[1-2]", "n1,m1,n2", "n[01,1]", "n[3,1-2]", "n[099-101]"}) {
    EXPECT_EQ(format_hostlist(names(text)), text);
  }
}

TEST(Hostlist, Refuses) {
  for (const char* text :
       {"", "n[3-1]", "n[1-x]", "n[", "n]", "n[1]]", "n[[1]]", "n[]", "a,,b", "n[0-999999999]",
        "n[0-9999][0-9999]", "n;rm", "-n", "n[1-2-3]", "n[99999999999]"}) {
    EXPECT_FALSE(parse_hostlist(text).ok()) << text;
  }
}

}  // namespace
}  // namespace netsum::tool::hostlist_test
