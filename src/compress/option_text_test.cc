#include "src/compress/option_text.h"

#include <gtest/gtest.h>

#include <string>

namespace netsum::compress::option_text_test {
namespace {

TEST(OptionText, IsAMethodWithOptions) {
  const auto plain = parse_compression("bf16");
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  EXPECT_EQ(plain->method, "bf16");

  const auto topk = parse_compression("topk,ratio=0.001,sampled=true,path=gather,decay=0.5,warmup_steps=7");
  ASSERT_TRUE(topk.ok()) << topk.status().to_string();
  EXPECT_EQ(topk->method, "topk");
  EXPECT_EQ(topk->ratio, 0.001);
  EXPECT_TRUE(topk->sampled);
  EXPECT_EQ(topk->path, "gather");
  EXPECT_EQ(topk->decay, 0.5);
  EXPECT_EQ(topk->warmup_steps, 7u);
}

TEST(OptionText, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"", "''"},
      {"best", "'best'"},
      {"topk,share=1", "'share' is no option of a compression; there are memory, path, ratio, "},
      {"topk,ratio", "'ratio' is not ratio=VALUE"},
      {"topk,ratio=", "'ratio=' is not ratio=VALUE"},
      {"topk,ratio=1%", "'ratio=1%' is not ratio=VALUE"},
      {"topk,k=-1", "'k=-1' is not k=VALUE"},
      {"topk,sampled=1", "'sampled=1' is not sampled=VALUE"},
      {"topk,ratio=2", "ratio"},
      {"topk,levels=9", "levels"},
      {"topk,", "'' is no option"},
  };
  for (const auto& [text, why] : kWrong) {
    const auto parsed = parse_compression(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(why), std::string::npos)
        << text << ": " << parsed.status().message();
  }
}

}  // namespace
}  // namespace netsum::compress::option_text_test
