// Signs with two scales: onebit.
#include <cmath>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/signs.h"

namespace netsum::compress {
namespace {

// In the paper, every column has two scales of a rank. As in efsign, the scales are those of all ranks together, so the residuals contract.
class OneBit : public Signs {
 public:
  std::string_view name() const override { return "onebit"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kInteger, .biased = true, .needs_memory = true, .late_residual = true};
  }
  // The sum of what is not negative, that of the rest, and how many there are of each, divided by the number of elements: their
  // means over the ranks give the scales of all elements together. (1 minus the one share has nothing left of a small other one
  // where the mean is rounded.)
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    PayloadShape shape = Signs::shape(context, count);
    shape.side_values = 4;
    return shape;
  }
  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* side) const override {
    pack(values, context.ranks, payload);
    double positive = 0, negative = 0, count = 0;
    for (const float value : values) {
      const bool is_negative = std::signbit(value);
      positive += is_negative ? 0 : value;
      negative += is_negative ? value : 0;
      count += is_negative ? 0 : 1;
    }
    const double n = values.empty() ? 1 : static_cast<double>(values.size());
    side[0] = static_cast<float>(positive / n);
    side[1] = static_cast<float>(negative / n);
    side[2] = static_cast<float>(count / n);
    side[3] = static_cast<float>((static_cast<double>(values.size()) - count) / n);
    if (residual == nullptr || residual == values.data()) return;
    for (size_t i = 0; i < values.size(); ++i) residual[i] = values[i];
  }
  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* side, int contributions, std::span<float> out,
                  float* residual) const override {
    const float plus = quotient(side[0], side[2]), minus = quotient(side[1], side[3]);
    const float middle = (plus + minus) / 2;
    const float unit = (plus - minus) / 2 / static_cast<float>(contributions);
    unpack(out.size(), context.ranks, contributions, payload,
           [&](size_t i, int difference) { out[i] = middle + unit * static_cast<float>(difference); });
    if (residual == nullptr) return;
    if (!std::isfinite(plus) || !std::isfinite(minus)) {  // nothing useful has been sent: all of it remains
      clear_not_finite(residual, out.size());
      return;
    }
    for (size_t i = 0; i < out.size(); ++i) residual[i] -= std::signbit(residual[i]) ? minus : plus;
  }

 private:
  // 0 of nothing.
  static float quotient(float sum, float share) { return sum == 0 || share <= 0 ? sum : sum / share; }
};

}  // namespace

namespace methods {

extern constexpr Method kOneBit = {
    .name = "onebit",
    .memory = "residual",
    .make = make_compressor<OneBit>,
    .sends = "signs and two scales",
    .bytes = "as `efsign`",
    .when = "as `efsign`, where the mean is not zero",
    .formula = "s₊ where x ≥ 0, otherwise s₋: means over all ranks (Seide et al., Interspeech 2014)",
    .bound = "over the ranks Σ |x|² - N n (p s₊² + (1 - p) s₋²), p the share of the x ≥ 0"};

}  // namespace methods

}  // namespace netsum::compress
