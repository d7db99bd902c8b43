// The blocks that are largest on all ranks together: blocktopk.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

class BlockTopK : public Compressor {
 public:
  explicit BlockTopK(const CompressionOptions& options)
      : k_(options.k), ratio_(options.ratio), block_(options.block) {}

  std::string_view name() const override { return "blocktopk"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kLinear, .biased = true, .needs_memory = true};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.count = std::min(chosen(count) * block_, count)};
  }
  // Between compress() and decompress(): 1 for each block that was sent.
  size_t state_values(const CompressionContext& /*context*/, size_t count) const override {
    return blocks(count);
  }
  size_t agreed_values(const CompressionContext& /*context*/, size_t count) const override {
    return blocks(count);
  }
  Agreement agreement() const override { return Agreement::kMean; }

  // The norm of each block.
  void agree(const CompressionContext& /*context*/, std::span<const float> values,
             float* mine) const override {
    for (size_t b = 0; b < blocks(values.size()); ++b) {
      double squares = 0;
      for (const float value : block_of(values, b))
        squares += static_cast<double>(value) * static_cast<double>(value);
      mine[b] = static_cast<float>(std::sqrt(squares));
    }
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> agreed, float* residual, void* payload,
                float* /*side*/) const override {
    if (values.empty()) return;
    choose(context.state, agreed, chosen(values.size()));
    auto* sent = static_cast<float*>(payload);
    auto* const end = sent + shape(context, values.size()).count;
    if (residual != nullptr && residual != values.data())
      std::memcpy(residual, values.data(), values.size_bytes());
    for (size_t b = 0; b < agreed.size(); ++b) {
      if (context.state[b] == 0) continue;
      const auto block = block_of(values, b);
      std::copy(block.begin(), block.end(), sent);
      sent += block.size();
      if (residual != nullptr) std::fill_n(residual + b * block_, block.size(), 0.0f);
    }
    std::fill(sent, end, 0.0f);  // behind a last block that is shorter
    if (residual != nullptr) clear_not_finite(residual, values.size());
  }
  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* sums = static_cast<const float*>(payload);
    std::fill(out.begin(), out.end(), 0.0f);
    for (size_t b = 0; b < blocks(out.size()); ++b) {
      if (context.state[b] == 0) continue;
      const size_t size = std::min(block_, out.size() - b * block_);
      for (size_t i = 0; i < size; ++i) out[b * block_ + i] = *sums++ / static_cast<float>(contributions);
    }
  }

 private:
  size_t blocks(size_t count) const { return (count + block_ - 1) / block_; }
  size_t chosen(size_t count) const {
    const size_t elements = elements_to_send(count, k_, ratio_);
    return (elements + block_ - 1) / block_;
  }
  std::span<const float> block_of(std::span<const float> values, size_t b) const {
    return values.subspan(b * block_, std::min(block_, values.size() - b * block_));
  }
  // The blocks of the largest norms; of equal ones, the first. A norm that is not finite is larger than all others.
  static void choose(std::span<float> is_chosen, std::span<const float> norms, size_t k) {
    const kernels::KthMagnitude kth = kernels::kth_magnitude(norms.data(), norms.size(), k);
    size_t of_equal = k - kth.above;
    for (size_t b = 0; b < norms.size(); ++b) {
      const uint32_t bits = kernels::magnitude_bits(norms[b]);
      const bool is_sent = bits > kth.bits || (bits == kth.bits && of_equal > 0);
      if (is_sent && bits == kth.bits) --of_equal;
      is_chosen[b] = is_sent ? 1.0f : 0.0f;
    }
  }

  uint64_t k_;
  double ratio_;
  size_t block_;
};

}  // namespace

namespace methods {

constexpr Option kTogether = {.name = "block",
                              .range = kBlock.range,
                              .help = "elements that are sent together",
                              .allows = kBlock.allows};

extern constexpr Method kBlockTopK = {.name = "blocktopk",
                                      .memory = "residual",
                                      .options = {&kRatio, &kK, &kTogether},
                                      .make = make_compressor<BlockTopK>,
                                      .sends = "the blocks with the largest mean norms over the ranks",
                                      .bytes = "4 k + 4 n / block",
                                      .when = "large elements that lie together, as in rows",
                                      .formula = "x in the chosen blocks (ARC-Top-K, arXiv 2510.26709)",
                                      .bound = "on one rank d = k / n; on several none"};

}  // namespace methods

}  // namespace netsum::compress
