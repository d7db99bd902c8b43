// Methods that send the elements of large magnitude: topk, threshold.
#include <algorithm>
#include <cmath>

#include "src/compress/methods.h"
#include "src/compress/sparsifier.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

// The share of the elements with which a warm-up begins (Lin et al., ICLR 2018).
constexpr double kWarmupShare = 0.25;

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

class Threshold : public Sparsifier {
 public:
  explicit Threshold(float threshold) : bits_(kernels::magnitude_bits(threshold)) {}

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

size_t elements_to_send(size_t n, uint64_t k, double ratio) {
  if (n == 0) return 0;
  if (k > 0) return static_cast<size_t>(std::min<uint64_t>(k, n));
  return std::clamp<size_t>(static_cast<size_t>(static_cast<double>(n) * ratio), 1, n);
}

Status check_share(const CompressionOptions& options) {
  if (options.ratio > 0 && options.ratio <= 1) return {};
  return {ErrorCode::kInvalidArgument, "ratio is " + std::to_string(options.ratio) +
                                           "; it must be above 0 and at most 1 (to send nothing, leave the "
                                           "tensor out of the sum; to send all, "
                                           "use the method none)"};
}

MadeCompressor make_top_k(const CompressionOptions& options) {
  if (Status status = check_share(options); !status.ok()) return status;
  return std::shared_ptr<const Compressor>(std::make_shared<TopK>(options));
}

MadeCompressor make_threshold(const CompressionOptions& options) {
  const auto threshold = static_cast<float>(options.threshold);
  if (!(threshold > 0) || !std::isfinite(threshold))
    return Status(ErrorCode::kInvalidArgument,
                  "threshold is " + std::to_string(options.threshold) +
                      "; it must be a positive float32 number: elements of at least this magnitude are sent");
  return std::shared_ptr<const Compressor>(std::make_shared<Threshold>(threshold));
}

}  // namespace netsum::compress
