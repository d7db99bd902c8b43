// AdaQ: the mean of the large positive elements, and that of the large negative ones, in their places.
#include <algorithm>
#include <cmath>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/sparsifier.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

class AdaptiveLevels : public Sparsifier {
 public:
  explicit AdaptiveLevels(const CompressionOptions& options) : ratio_(options.ratio) {}

  std::string_view name() const override { return "adaq"; }

  void sparsify(const CompressionContext& /*context*/, std::span<const float> values, float* residual,
                float* sent) const override {
    const size_t n = values.size();
    if (!all_finite(values)) {  // there are no means; the rest is kept
      kernels::select(values.data(), n, kernels::kInfinityBits, sent, residual);
      return;
    }
    // Positive elements from the front, negative ones from the back.
    size_t positive = 0, negative = 0;
    for (const float value : values) {
      if (value > 0) sent[positive++] = value;
      if (value < 0) sent[n - ++negative] = value;
    }
    const Level plus = level_of({sent, positive}), minus = level_of({sent + n - negative, negative});
    for (size_t i = 0; i < n; ++i) {
      const float value = values[i];
      const Level& level = value < 0 ? minus : plus;
      const bool is_sent = value != 0 && kernels::magnitude_bits(value) >= level.least_bits;
      sent[i] = is_sent ? level.mean : 0;
      if (residual != nullptr) residual[i] = value - sent[i];
    }
  }

 private:
  struct Level {
    uint32_t least_bits = kernels::kInfinityBits;  // of the elements that it stands for
    float mean = 0;
  };

  // Of elements of one sign: of equal magnitudes, all or none are sent.
  Level level_of(std::span<const float> values) const {
    if (values.empty()) return {};
    const size_t k = elements_to_send(values.size(), 0, ratio_);
    const uint32_t bits = kernels::kth_magnitude(values.data(), values.size(), k).bits;
    double sum = 0, count = 0;
    for (const float value : values) {
      if (kernels::magnitude_bits(value) < bits) continue;
      sum += value;
      ++count;
    }
    return {bits, static_cast<float>(sum / count)};
  }

  double ratio_;
};

}  // namespace

namespace methods {

extern constexpr Method kAdaq = {
    .name = "adaq",
    .memory = "residual",
    .options = {&kRatio},
    .make = make_compressor<AdaptiveLevels>,
    .sends = "the mean of the largest positive elements, and of the negative ones, in their places",
    .bytes = "4 u + index",
    .when = "a baseline: as `topk`, with less information",
    .formula =
        "m₊ or m₋, the mean of the k₊ or k₋ largest of its sign, if it is one; of equal ones all or none "
        "(Dryden et al., MLHPC 2016)",
    .bound = "|x|² - k₊ m₊² - k₋ m₋²"};

}  // namespace methods

}  // namespace netsum::compress
