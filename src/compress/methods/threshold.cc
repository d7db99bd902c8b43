// Elements of at least a magnitude: threshold.
#include <algorithm>
#include <cmath>

#include "src/compress/method.h"
#include "src/compress/sparsifier.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

class Threshold : public Sparsifier {
 public:
  explicit Threshold(const CompressionOptions& options)
      : bits_(kernels::magnitude_bits(static_cast<float>(options.threshold))) {}

  std::string_view name() const override { return "threshold"; }
  void sparsify(const CompressionContext& /*context*/, std::span<const float> values, float* residual,
                float* sent) const override {
    kernels::select(values.data(), values.size(), bits_, sent, residual);
  }
  bool compress_added(float decay, std::span<const float> gradient, float* memory, float* copy,
                      const CompressionContext& /*context*/, float* payload) const override {
    std::copy_n(memory, gradient.size(), copy);
    kernels::select_added(decay, gradient.data(), gradient.size(), bits_, payload, memory);
    return true;
  }

 private:
  uint32_t bits_;
};

}  // namespace

namespace methods {

constexpr Option kThresholdOption = {.name = "threshold",
                                     .range = "a positive float32 number",
                                     .help = "elements of at least this magnitude are sent",
                                     .allows = [](const CompressionOptions& o) {
                                       const auto threshold = static_cast<float>(o.threshold);
                                       return threshold > 0 && std::isfinite(threshold);
                                     }};

extern constexpr Method kThreshold = {.name = "threshold",
                                      .memory = "residual",
                                      .options = {&kThresholdOption},
                                      .make = make_compressor<Threshold>,
                                      .examples = {"threshold=0.9"},
                                      .sends = "elements of at least a magnitude",
                                      .bytes = "4 u + index",
                                      .when = "the magnitude that matters is known",
                                      .formula = "x where |x| ≥ t",
                                      .bound = "no contraction; |x - C(x)|² < n t²"};

}  // namespace methods

}  // namespace netsum::compress
