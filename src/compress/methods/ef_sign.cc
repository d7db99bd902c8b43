// Signs with one scale: efsign.
#include <cmath>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/signs.h"

namespace netsum::compress {
namespace {

// A scale of each rank could not be added; so the ranks average their scales s_r to s, and each takes s for its residual. Summed over N
// ranks, the residuals still contract: sum_r |x_r - s sign(x_r)|^2 = sum_r |x_r|^2 - N n s^2.
class EfSign : public Signs {
 public:
  std::string_view name() const override { return "efsign"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kInteger, .biased = true, .needs_memory = true, .late_residual = true};
  }
  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* side) const override {
    pack(values, context.ranks, payload);
    double sum = 0;
    for (const float value : values) sum += std::fabs(value);
    // Not finite if any value is not, and then so is the mean of the ranks.
    *side = values.empty() ? 0 : static_cast<float>(sum / static_cast<double>(values.size()));
    if (residual == nullptr || residual == values.data()) return;
    for (size_t i = 0; i < values.size(); ++i) residual[i] = values[i];
  }
  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* side, int contributions, std::span<float> out,
                  float* residual) const override {
    const float scale = *side;
    const float unit = scale / static_cast<float>(contributions);
    unpack(out.size(), context.ranks, contributions, payload,
           [&](size_t i, int difference) { out[i] = unit * static_cast<float>(difference); });
    if (residual == nullptr) return;
    if (!std::isfinite(scale)) {  // nothing useful has been sent: all of it remains
      clear_not_finite(residual, out.size());
      return;
    }
    for (size_t i = 0; i < out.size(); ++i) residual[i] -= std::copysign(scale, residual[i]);
  }
};

}  // namespace

namespace methods {

extern constexpr Method kEfSign = {
    .name = "efsign",
    .memory = "residual",
    .make = make_compressor<EfSign>,
    .sends = "signs and one scale",
    .bytes = "3.2 n / 8 at N = 4; 4.6 n / 8 at 8",
    .when = "large layers, few ranks",
    .formula = "s · sign(x), s the mean over the ranks of the mean of |x| (Karimireddy et al.)",
    .bound = "over the ranks Σ |x - C(x)|² = Σ |x|² - N n s²; one rank's residual may grow in a step"};

}  // namespace methods

}  // namespace netsum::compress
