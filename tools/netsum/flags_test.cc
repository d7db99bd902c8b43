#include "tools/netsum/flags.h"

#include <gtest/gtest.h>

namespace netsum::tool::flags_test {
namespace {

TEST(ParseAddresses, DropsEmptyParts) {
  EXPECT_EQ(parse_addresses("").value(), std::vector<std::string>());
  EXPECT_EQ(parse_addresses("a:1,b:2").value(), (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(parse_addresses("a:1,,").value(), std::vector<std::string>{"a:1"});
  EXPECT_EQ(parse_addresses("plan:trees,a:1").value(), std::vector<std::string>{"a:1"});
  EXPECT_FALSE(parse_addresses("a:1,b").ok());
}

TEST(TlsFlagsTest, CertificateAndKeyGoTogether) {
  TlsFlags flags;
  EXPECT_FALSE(flags.load().enabled());
  flags.cert_path = "cert.pem";
  EXPECT_THROW(flags.load(), UsageError);
  flags.key_path = "key.pem";
  EXPECT_THROW(flags.load(), UsageError) << "neither file exists";
}

}  // namespace
}  // namespace netsum::tool::flags_test
