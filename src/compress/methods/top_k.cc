// The largest elements: topk.
#include <algorithm>
#include <cmath>

#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/sparsifier.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

// The share of the elements with which a warm-up begins (Lin et al., ICLR 2018).
constexpr double kWarmupShare = 0.25;

// Of equal magnitudes, the elements in front are sent; elements that are not finite always. With `sampled`, the number of elements is
// approximate where a sample is large enough, and otherwise exact.
class TopK : public Sparsifier {
 public:
  explicit TopK(const CompressionOptions& options)
      : k_(options.k),
        ratio_(options.ratio),
        sampled_(options.sampled),
        warmup_steps_(options.warmup_steps) {}

  std::string_view name() const override { return "topk"; }

  void sparsify(const CompressionContext& context, std::span<const float> values, float* residual,
                float* sent) const override {
    const size_t n = values.size();
    const size_t k = wanted(context, n);
    if (sampled_) {
      // If nothing reaches it, as where all elements are equal, the exact one decides; the values are still there.
      const uint32_t bits = kernels::sampled_magnitude(values.data(), n, k);
      if (bits > 0 && kernels::select(values.data(), n, bits, sent, residual) > 0) return;
    }
    const kernels::KthMagnitude kth = kernels::kth_magnitude(values.data(), n, k);
    // Zeros need not be sent, and what is not finite must be.
    if (kth.bits == 0 || kth.bits >= kernels::kInfinityBits || kth.above + kth.equal == k) {
      const uint32_t least = std::clamp(kth.bits, 1u, kernels::kInfinityBits);
      kernels::select(values.data(), n, least, sent, residual);
      return;
    }
    kernels::select(values.data(), n, kth.bits + 1, sent, residual);
    // Of equal elements, the first ones. The residual may have replaced the values, and still has these.
    const float* const rest = residual != nullptr ? residual : values.data();
    for (size_t i = 0, missing = k - kth.above; missing > 0; ++i) {
      if (kernels::magnitude_bits(rest[i]) != kth.bits) continue;
      sent[i] = rest[i];
      if (residual != nullptr) residual[i] = 0;
      --missing;
    }
  }

  bool compress_added(float decay, std::span<const float> gradient, float* memory, float* copy,
                      const CompressionContext& context, float* payload) const override {
    const size_t n = gradient.size();
    if (!sampled_ || n == 0) return false;
    const size_t k = wanted(context, n);
    const uint32_t bits = kernels::sampled_magnitude_added(decay, gradient.data(), memory, n, k);
    if (bits == 0) return false;
    std::copy_n(memory, n, copy);
    if (kernels::select_added(decay, gradient.data(), n, bits, payload, memory) == 0)
      sparsify(context, {memory, n}, memory, payload);  // which now is the sum
    return true;
  }

 private:
  size_t wanted(const CompressionContext& context, size_t n) const {
    return k_ > 0 ? elements_to_send(n, k_, 1) : elements_to_send(n, 0, share_of(context.step));
  }
  double share_of(uint64_t step) const {
    if (step >= warmup_steps_ || ratio_ >= kWarmupShare) return ratio_;
    const double progress = static_cast<double>(step) / static_cast<double>(warmup_steps_);
    return kWarmupShare * std::pow(ratio_ / kWarmupShare, progress);
  }

  uint64_t k_;
  double ratio_;
  bool sampled_;
  uint64_t warmup_steps_;
};

}  // namespace

namespace methods {

constexpr Option kSampled = {
    .name = "sampled",
    .help =
        "the threshold of large tensors is estimated from a sample: faster, and the share is approximate"};
constexpr Option kWarmupSteps = {
    .name = "warmup_steps", .help = "steps in which the share falls from 25 % to `ratio`, exponentially"};

std::string_view share_conflict(const CompressionOptions& options) {
  return options.k > 0 && options.warmup_steps > 0
             ? "k and warmup_steps are both set, but a warm-up lowers a share: use ratio instead of k"
             : "";
}

extern constexpr Method kTopK = {
    .name = "topk",
    .memory = "residual",
    .options = {&kRatio, &kK, &kSampled, &kWarmupSteps},
    .make = make_compressor<TopK>,
    .conflict = share_conflict,
    .examples = {"ratio=0.01", "ratio=0.01,sampled=true", "ratio=0.001,sampled=true"},
    .sends = "the k largest elements",
    .bytes = "4 u + index",
    .when = "links of 1 Gbit/s or less, large layers",
    .formula = "x where |x| is one of the k largest; of equal ones the first",
    .bound = "d = k / n"};

extern constexpr Method kDgc = {
    .name = "dgc",
    .memory = "dgc",
    .memory_is_fixed = true,
    .options = kTopK.options,
    .make = make_compressor<TopK>,
    .canonical = [](CompressionOptions& o) { o.method = "topk"; },
    .conflict = share_conflict,
    .examples = {"ratio=0.01,sampled=true"},
    .sends = "as `topk`, of a momentum-corrected sum",
    .bytes = "4 u + index",
    .when = "as `topk`, at 1 % and below; the optimizer must be SGD without momentum"};

}  // namespace methods

}  // namespace netsum::compress
