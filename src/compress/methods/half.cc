// Elements rounded to 16 bits: fp16, bf16.
#include <algorithm>
#include <array>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

class Half : public Compressor {
 public:
  explicit Half(DataType type) : type_(type) {}

  std::string_view name() const override { return type_ == DataType::kFloat16 ? "fp16" : "bf16"; }
  // Rounding to nearest has a bias, but one that changes its sign with the values.
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kLinear, .biased = true, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.type = type_, .count = count};
  }

  void compress(const CompressionContext& /*context*/, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    auto* const halves = static_cast<uint16_t*>(payload);
    kernels::to_halves(type_, values.data(), values.size(), halves);
    if (residual == nullptr) return;
    std::array<float, kPiece> sent;
    for (size_t begin = 0; begin < values.size(); begin += kPiece) {
      const size_t n = std::min(kPiece, values.size() - begin);
      kernels::from_halves(type_, halves + begin, n, sent.data());
      for (size_t i = 0; i < n; ++i) residual[begin + i] = values[begin + i] - sent[i];
    }
    clear_not_finite(residual, values.size());
  }
  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    kernels::from_halves(type_, static_cast<const uint16_t*>(payload), out.size(), out.data());
    if (contributions == 1) return;
    for (float& value : out) value /= static_cast<float>(contributions);
  }

 private:
  DataType type_;
};

}  // namespace

namespace methods {

extern constexpr Method kBf16 = {
    .name = "bf16",
    .make = [](const CompressionOptions&, bool) -> CompressorPtr {
      return std::make_shared<Half>(DataType::kBFloat16);
    },
    .sends = "all, in 16 bits",
    .bytes = "2 n",
    .when = "first thing to try: hardly any effect on training. It has the range of float32",
    .formula = "rounded to nearest even",
    .bound = "relative error 2^-8"};

extern constexpr Method kFp16 = {.name = "fp16",
                                 .make = [](const CompressionOptions&, bool) -> CompressorPtr {
                                   return std::make_shared<Half>(DataType::kFloat16);
                                 },
                                 .examples = {"", "memory=residual"},
                                 .sends = "all, in 16 bits",
                                 .bytes = "2 n",
                                 .when = "as `bf16`, with more precision and less range",
                                 .formula = "rounded to nearest even",
                                 .bound = "relative error 2^-11; beyond 65504 infinite"};

}  // namespace methods

}  // namespace netsum::compress
