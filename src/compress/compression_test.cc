// What goes with what, and whether compressors have their traits.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "src/compress/index_coding.h"
#include "src/compress/random.h"
#include "src/compress/testing.h"

namespace netsum::compress::compression_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of(const CompressionOptions& options) {
  const auto compression = Compression::make(options);
  if (compression.ok()) return "made " + (*compression)->describe();
  EXPECT_EQ(compression.status().code(), ErrorCode::kInvalidArgument);
  return compression.status().message();
}

TEST(CompressionTest, WhatComputesTheSameHasOneDescription) {
  const std::pair<CompressionOptions, CompressionOptions> same[] = {
      {{.method = "dgc"}, {.method = "topk", .memory = "dgc"}},
      {{.method = "signum"}, {.method = "signsgd", .memory = "momentum"}},
      {{.method = "terngrad"}, {.method = "qsgd", .levels = 1}},
      {{.method = "topk", .ratio = 0.5, .k = 10}, {.method = "topk", .ratio = 0.1, .k = 10}},
      {{.method = "int8", .seed = 2}, {.method = "int8", .seed = 3}},
      {{.method = "natural", .memory = "residual", .seed = 2}, {.method = "natural", .memory = "residual"}},
  };
  for (const auto& [one, other] : same) EXPECT_EQ(made(one)->describe(), made(other)->describe());
  const std::pair<CompressionOptions, CompressionOptions> different[] = {
      {{.method = "dgc"}, {.method = "topk"}},
      {{.method = "signum"}, {.method = "signsgd"}},
      {{.method = "terngrad"}, {.method = "qsgd"}},
      {{.method = "topk", .ratio = 0.5}, {.method = "topk", .ratio = 0.1}},
      {{.method = "int8", .rotated = true, .seed = 2}, {.method = "int8", .rotated = true, .seed = 3}},
      {{.method = "int8", .memory = "none", .seed = 2}, {.method = "int8", .memory = "none", .seed = 3}},
      {{.method = "natural", .seed = 2}, {.method = "natural", .seed = 3}},
      {{.method = "thc", .seed = 2}, {.method = "thc", .seed = 3}},
  };
  for (const auto& [one, other] : different) EXPECT_NE(made(one)->describe(), made(other)->describe());
}

TEST(CompressionTest, ATensorHasWholeRows) {
  const auto compression = made({.method = "powersgd"});
  EXPECT_EQ(compression->tensor(1, 10, 0, 1, 3), nullptr);
  EXPECT_EQ(compression->tensor(1, 10, 0, 1, 0), nullptr);
  EXPECT_NE(compression->tensor(1, 10, 0, 1, 5), nullptr);
}

TEST(CompressionTest, ATensorHasARankAndNoMoreRanksThanSumsHaveRoomFor) {
  const CompressionOptions methods[] = {
      {.method = "qsgd", .levels = 32767}, {.method = "lanes8"}, {.method = "signsgd"}};
  const std::pair<int, int> none[] = {{0, 0}, {-1, 2}, {2, 2}, {0, -1}, {0, 65537}, {0, 1 << 30}};
  for (const CompressionOptions& options : methods) {
    const auto compression = made(options);
    for (const auto& [rank, ranks] : none)
      EXPECT_EQ(compression->tensor(1, 10, rank, ranks), nullptr) << rank << " of " << ranks;
    EXPECT_GT(compression->tensor(1, 10, 65535, 65536)->shape().count, 0u);
  }
}

TEST(CompressionTest, MethodsHaveTheirOwnMemoryAndPath) {
  EXPECT_EQ(made({.method = "topk"})->describe(),
            "topk ratio=0.01 k=0 sampled=false warmup_steps=0 decay=1, memory residual, path union");
  EXPECT_EQ(
      made({.method = "dgc", .ratio = 0.125, .momentum = 0.5})->describe(),
      "topk ratio=0.125 k=0 sampled=false warmup_steps=0 momentum=0.5 clip_norm=0, memory dgc, path union");
  EXPECT_EQ(made({})->describe(), "none, memory none, path dense");
  EXPECT_EQ(made({.method = "dcttopk", .count_senders = true})->describe(),
            "dcttopk ratio=0.01 k=0 block=256 count_senders=true decay=1, memory residual, path union");
  EXPECT_EQ(made({.method = "efsign"})->path(), CompressionPath::kDense);
  EXPECT_EQ(made({.method = "fp16", .path = "gather"})->path(), CompressionPath::kGather);
  EXPECT_FALSE(made({.method = "randomk", .memory = "none"})->compressor().traits().biased);
  EXPECT_TRUE(made({.method = "randomk"})->compressor().traits().biased);
}

TEST(CompressionTest, UnknownNamesAreRefused) {
  EXPECT_THAT(refusal_of({.method = "topp"}),
              AllOf(HasSubstr("'topp'"), HasSubstr("terngrad, thc, threshold, topk, u8bit")));
  EXPECT_THAT(refusal_of({.memory = "all"}),
              HasSubstr("memory is 'all'; it must be 'none', 'residual', 'dgc' or 'momentum'"));
  EXPECT_THAT(refusal_of({.path = "ring"}),
              HasSubstr("path is 'ring'; it must be 'dense', 'union' or 'gather'"));
}

TEST(CompressionTest, CombinationsThatWouldGiveWrongResultsAreRefused) {
  EXPECT_THAT(refusal_of({.method = "topk", .path = "dense"}),
              AllOf(HasSubstr("'topk'"), HasSubstr("additivity: sparse"), HasSubstr("use path 'union'")));
  EXPECT_THAT(refusal_of({.method = "randomk", .path = "union"}), HasSubstr("use path 'dense'"));
  EXPECT_THAT(refusal_of({.method = "efsign", .path = "gather"}), HasSubstr("use path 'dense'"));
  EXPECT_THAT(refusal_of({.method = "signsgd", .path = "gather"}), HasSubstr("use path 'dense'"));
  EXPECT_THAT(refusal_of({.method = "topk", .memory = "none"}), HasSubstr("needs a memory"));
  EXPECT_THAT(refusal_of({.method = "efsign", .memory = "none"}), HasSubstr("needs a memory"));
  EXPECT_THAT(refusal_of({.method = "fp16", .memory = "dgc"}), HasSubstr("cannot use the memory 'dgc'"));
  EXPECT_THAT(refusal_of({.method = "signsgd", .memory = "residual"}), HasSubstr("not a mean"));
  EXPECT_THAT(refusal_of({.method = "none", .memory = "residual"}), HasSubstr("unbiased"));
  EXPECT_THAT(refusal_of({.method = "dgc", .memory = "residual"}), HasSubstr("leave memory out"));
  EXPECT_THAT(refusal_of({.method = "topk", .memory = "momentum"}), HasSubstr("a method, 'signum'"));
  EXPECT_THAT(refusal_of({.method = "powersgd", .memory = "none"}), HasSubstr("needs a memory"));
  EXPECT_THAT(refusal_of({.method = "thc", .memory = "none"}), HasSubstr("needs a memory"));
  EXPECT_THAT(refusal_of({.method = "countsketch", .memory = "none"}), HasSubstr("needs a memory"));
  EXPECT_THAT(refusal_of({.method = "countsketch", .path = "gather"}), HasSubstr("use path 'dense'"));
  EXPECT_THAT(refusal_of({.method = "onebit", .path = "gather"}), HasSubstr("use path 'dense'"));
  for (const char* const method : {"natural", "u8bit", "fp8_e4m3", "fp8_e5m2", "inceptionn", "sketch"}) {
    EXPECT_THAT(refusal_of({.method = method, .path = "dense"}),
                AllOf(HasSubstr(method), HasSubstr("their sum means nothing; use path 'gather'")));
    EXPECT_THAT(refusal_of({.method = method, .path = "union"}), HasSubstr("use path 'gather'"));
  }
  EXPECT_THAT(refusal_of({.method = "inceptionn", .memory = "none"}), HasSubstr("needs a memory"));
  EXPECT_THAT(refusal_of({.method = "adaq", .path = "dense"}), HasSubstr("use path 'union'"));
  EXPECT_THAT(refusal_of({.method = "chunktopk", .path = "union"}), HasSubstr("use path 'gather'"));
  EXPECT_THAT(refusal_of({.method = "chunktopk", .memory = "none"}), HasSubstr("needs a memory"));
  EXPECT_THAT(refusal_of({.method = "dcttopk", .path = "dense"}), HasSubstr("use path 'union'"));
  EXPECT_THAT(refusal_of({.method = "dcttopk", .memory = "dgc"}), HasSubstr("cannot use the memory 'dgc'"));
  EXPECT_THAT(refusal_of({.method = "dcttopk", .path = "gather", .count_senders = true}),
              AllOf(HasSubstr("count_senders"), HasSubstr("use path 'union'")));
  EXPECT_THAT(refusal_of({.method = "dcttopk", .memory = "none", .count_senders = true}),
              HasSubstr("needs a memory"));
}

TEST(CompressionTest, ValuesOutOfRangeAreRefused) {
  for (const double ratio : {0.0, -1.0, 1.5, std::nan("")})
    for (const char* const method : {"topk", "randomk", "countsketch", "dgc"})
      EXPECT_THAT(refusal_of({.method = method, .ratio = ratio}), HasSubstr("above 0 and at most 1"));
  for (const double threshold : {0.0, -0.5, 1e60, std::nan("")})
    EXPECT_THAT(refusal_of({.method = "threshold", .threshold = threshold}),
                HasSubstr("positive float32 number"));
  for (const uint32_t levels : {0u, 32768u})
    EXPECT_THAT(refusal_of({.method = "qsgd", .levels = levels}), HasSubstr("between 1 and 32767"));
  for (const uint32_t block : {0u, 4097u})
    for (const char* const method : {"lanes8", "int8", "int4", "thc", "blocktopk"})
      EXPECT_THAT(refusal_of({.method = method, .block = block}), HasSubstr("between 1 and 4096"));
  EXPECT_THAT(refusal_of({.method = "thc", .block = 48}), HasSubstr("power of two"));
  EXPECT_THAT(refusal_of({.method = "int8", .block = 48, .rotated = true}), HasSubstr("power of two"));
  for (const uint32_t rank : {0u, 1027u})
    EXPECT_THAT(refusal_of({.method = "powersgd", .rank = rank}), HasSubstr("between 1 and 1024"));
  EXPECT_THAT(refusal_of({.method = "sidco", .fit = "normal"}),
              HasSubstr("'exponential', 'pareto' or 'gamma'"));
  for (const double bound : {0.0, -1.0, 1e-60, 1e40, std::nan("")})
    EXPECT_THAT(refusal_of({.method = "inceptionn", .error_bound = bound}), HasSubstr("error_bound is "));
  for (const uint32_t buckets : {0u, 1u, 257u})
    EXPECT_THAT(refusal_of({.method = "sketch", .buckets = buckets}), HasSubstr("between 2 and 256"));
  for (const char* const method : {"u8bit", "fp8_e4m3", "fp8_e5m2"})
    EXPECT_THAT(refusal_of({.method = method, .block = 0}), HasSubstr("between 1 and 4096"));
  EXPECT_THAT(refusal_of({.method = "adaq", .ratio = 0}), HasSubstr("above 0 and at most 1"));
  for (const char* const method : {"chunktopk", "dcttopk"}) {
    EXPECT_THAT(refusal_of({.method = method, .ratio = 1.5}), HasSubstr("above 0 and at most 1"));
    EXPECT_THAT(refusal_of({.method = method, .block = 0}), HasSubstr("block is 0"));
  }
  EXPECT_THAT(refusal_of({.method = "dcttopk", .block = 48}), HasSubstr("power of two"));
  EXPECT_THAT(refusal_of({.method = "dcttopk", .block = 512}), HasSubstr("at most 256"));
  EXPECT_THAT(refusal_of({.method = "chunktopk", .block = 4097}), HasSubstr("between 1 and 4096"));
  EXPECT_THAT(refusal_of({.method = "topk", .decay = 1.5}), HasSubstr("decay is 1.5"));
  EXPECT_THAT(refusal_of({.method = "dgc", .momentum = 1}), HasSubstr("momentum is 1"));
  EXPECT_THAT(refusal_of({.method = "dgc", .clip_norm = -1}), HasSubstr("clip_norm is -1"));
  EXPECT_THAT(refusal_of({.method = "topk", .k = 5, .warmup_steps = 3}), HasSubstr("use ratio instead of k"));
}

TEST(CompressionTest, OptionsThatNothingReadsAreRefused) {
  EXPECT_THAT(refusal_of({.method = "fp16", .ratio = 0.5}),
              HasSubstr("the method 'fp16' has no such option"));
  EXPECT_THAT(refusal_of({.method = "topk", .threshold = 0.5}), HasSubstr("threshold is 0.5"));
  EXPECT_THAT(refusal_of({.method = "topk", .count_senders = true}), HasSubstr("count_senders is true"));
  EXPECT_THAT(refusal_of({.method = "topk", .momentum = 0.5}), HasSubstr("the memory 'residual'"));
  EXPECT_THAT(refusal_of({.method = "dgc", .decay = 0.5}), HasSubstr("the memory 'dgc'"));
}

TEST(CompressionTest, RandomNumbersAreFunctionsOfTheirKey) {
  EXPECT_EQ(Random({1, 2}).at(3), Random({1, 2}).at(3));
  EXPECT_NE(Random({1, 2}).at(3), Random({2, 1}).at(3));
  EXPECT_NE(Random({1, 2}).at(3), Random({1, 2}).at(4));
  EXPECT_NE(Random({1}).at(0), Random({1, 0}).at(0));
}

TEST(TraitsTest, BuiltInMethodsKeepTheirs) {
  std::vector<CompressionOptions> all;
  for (const std::string_view method : compression_methods())
    all.push_back({.method = std::string(method), .threshold = method == "threshold" ? 0.25 : 0});
  all.push_back({.method = "randomk", .memory = "none", .ratio = 0.2});
  all.push_back({.method = "topk", .ratio = 0.3});
  all.push_back({.method = "blocktopk", .ratio = 0.3, .block = 7});
  for (const char* const method : {"lanes8", "int8", "int4"}) {
    all.push_back({.method = method, .memory = "none", .block = 16});
    all.push_back({.method = method, .block = 16, .rotated = true});
    all.push_back({.method = method, .memory = "none", .block = 16, .rotated = true});
  }
  all.push_back({.method = "natural", .memory = "residual"});
  all.push_back({.method = "u8bit", .block = 7});
  all.push_back({.method = "inceptionn", .error_bound = 0.01});
  all.push_back({.method = "sketch", .buckets = 3});
  all.push_back({.method = "adaq", .ratio = 0.2});
  all.push_back({.method = "chunktopk", .ratio = 0.2, .block = 30});
  all.push_back({.method = "dcttopk", .ratio = 0.2, .block = 32});
  all.push_back({.method = "dcttopk", .ratio = 0.2, .block = 32, .count_senders = true});
  for (const CompressionOptions& options : all) {
    const auto compression = made(options);
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const Status status = check_compressor(compression->compressor(), seed);
      EXPECT_TRUE(status.ok()) << compression->describe() << ": " << status.to_string();
    }
  }
}

// On the path where they do not add up, elements travel with their indices.
TEST(CompressionTest, GatheredElementsTravelAsIndicesAndValues) {
  constexpr size_t kCount = 10'000;
  for (const char* const method : {"topk", "dgc", "sidco"}) {
    Rank gathered(*made({.method = method, .path = "gather"}), kCount);
    Rank summed(*made({.method = method}), kCount);
    EXPECT_TRUE(gathered.tensor().shape().varies);
    for (uint64_t step = 0; step < 3; ++step) {
      const auto gradient = numbers(kCount, step);
      gathered.compress(gradient);
      summed.compress(gradient);
      EXPECT_EQ(gathered.decompress(), summed.decompress()) << method;
      EXPECT_EQ(gathered.state("residual"), summed.state("residual")) << method;
      const auto sent = summed.payload<float>();
      const auto zeros = std::count(sent.begin(), sent.end(), 0.0f);
      EXPECT_EQ(gathered.payload<uint64_t>()[0], coded_bytes(kCount, kCount - static_cast<size_t>(zeros)));
    }
    // What is no code of such a tensor cannot be taken for a gradient.
    const uint64_t other[] = {16, 1};
    EXPECT_TRUE(std::isnan(gathered.decompress(other, nullptr, 1)[0]));
  }
}

// Sends float32 and says something wrong about it.
class Liar : public Compressor {
 public:
  enum class Lie {
    kNone,
    kSum,
    kBias,
    kResidual,
    kRepeat,
    kFinite,
    kVaries,
    kLength,
    kGatheredFinite,
    kOwnResidual
  };
  explicit Liar(Lie lie) : lie_(lie) {}

  std::string_view name() const override { return "liar"; }
  CompressorTraits traits() const override {
    const bool is_gathered = lie_ == Lie::kLength || lie_ == Lie::kGatheredFinite;
    const bool is_union = lie_ == Lie::kOwnResidual;
    return {.additivity = is_gathered ? Additivity::kNone
                          : is_union  ? Additivity::kSparse
                                      : Additivity::kLinear,
            .biased = lie_ != Lie::kBias,
            .needs_memory = lie_ == Lie::kResidual || lie_ == Lie::kOwnResidual,
            .mean = lie_ != Lie::kOwnResidual};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    if (lie_ == Lie::kLength) return {.type = DataType::kByte, .count = count * 4, .varies = true};
    return {.count = count, .varies = lie_ == Lie::kVaries};
  }
  void compress(const CompressionContext& /*context*/, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    auto* const sent = static_cast<float*>(payload);
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = values[i];
      sent[i] = value;
      if (lie_ == Lie::kSum) sent[i] = value * std::fabs(value);
      if (lie_ == Lie::kBias) sent[i] = 0.5f * value;
      if (lie_ == Lie::kResidual || lie_ == Lie::kOwnResidual) sent[i] = 0.5f * value;
      if (lie_ == Lie::kRepeat) sent[i] = value * (1 + 1e-3f * static_cast<float>(++calls_ % 7));
      if ((lie_ == Lie::kFinite || lie_ == Lie::kGatheredFinite) && !std::isfinite(value)) sent[i] = 0;
      if (residual == nullptr) continue;
      residual[i] = traits().needs_memory || !std::isfinite(value) ? 0 : value - decoded(sent[i]);
    }
  }
  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const sums = static_cast<const float*>(payload);
    for (size_t i = 0; i < out.size(); ++i) out[i] = decoded(sums[i] / static_cast<float>(contributions));
  }

 private:
  // The inverse of a square, which is not linear.
  float decoded(float sent) const {
    return lie_ == Lie::kSum ? std::copysign(std::sqrt(std::fabs(sent)), sent) : sent;
  }

  Lie lie_;
  mutable uint32_t calls_ = 0;
};

TEST(TraitsTest, LiesAreFound) {
  using Lie = Liar::Lie;
  const auto told = [](Lie lie) { return check_compressor(Liar(lie), 1).to_string(); };
  EXPECT_EQ(told(Lie::kNone), "ok");
  EXPECT_THAT(told(Lie::kSum), AllOf(HasSubstr("'liar'"), HasSubstr("does not decompress to the mean")));
  EXPECT_THAT(told(Lie::kBias), HasSubstr("it is biased"));
  EXPECT_THAT(told(Lie::kResidual), HasSubstr("not together the tensor"));
  EXPECT_THAT(told(Lie::kOwnResidual), HasSubstr("not together the tensor"));
  EXPECT_THAT(told(Lie::kRepeat), HasSubstr("gives another payload"));
  EXPECT_THAT(told(Lie::kFinite), HasSubstr("not finite gets lost"));
  EXPECT_THAT(told(Lie::kVaries), HasSubstr("vary in length, so they cannot be summed"));
  EXPECT_THAT(told(Lie::kLength), HasSubstr("do not begin with it"));
  EXPECT_THAT(told(Lie::kGatheredFinite), HasSubstr("not finite gets lost"));
}

TEST(TraitsTest, CompressorsOfProgramsAreChecked) {
  const auto liar = std::make_shared<Liar>(Liar::Lie::kNone);
  const auto compression = Compression::make(liar, {});
  ASSERT_TRUE(compression.ok());
  EXPECT_EQ((*compression)->describe(), "liar, memory none, path dense");
  const auto refused = Compression::make(liar, {.path = "union"});
  EXPECT_THAT(refused.status().message(), HasSubstr("use path 'dense'"));
  EXPECT_THAT(Compression::make(liar, {.ratio = 0.5}).status().message(), HasSubstr("the method 'liar'"));
  EXPECT_FALSE(Compression::make(nullptr, {}).ok());
  const auto not_mean = std::make_shared<Liar>(Liar::Lie::kOwnResidual);
  EXPECT_TRUE(Compression::make(not_mean, {.memory = "residual"}).ok());
  EXPECT_THAT(Compression::make(not_mean, {.path = "gather"}).status().message(),
              HasSubstr("use path 'union'"));
  EXPECT_THAT(Compression::make(not_mean, {.memory = "dgc"}).status().message(),
              HasSubstr("cannot use the memory 'dgc'"));
}

}  // namespace
}  // namespace netsum::compress::compression_test
