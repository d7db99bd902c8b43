// Random elements that all ranks know: randomk.
#include <algorithm>
#include <cstring>
#include <limits>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/random.h"

namespace netsum::compress {
namespace {

// The sizes of the k consecutive strata are n / k, rounded down or up.
class RandomK : public Compressor {
 public:
  RandomK(const CompressionOptions& options, bool has_memory)
      : k_(options.k), ratio_(options.ratio), seed_(options.seed), unbiased_(!has_memory) {}

  std::string_view name() const override { return "randomk"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kLinear, .biased = !unbiased_, .needs_memory = !unbiased_};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.count = elements_to_send(count, k_, ratio_)};
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    auto* const sent = static_cast<float*>(payload);
    bool finite = true;
    if (residual == nullptr) {
      finite = all_finite(values);
    } else {
      if (residual != values.data() && !values.empty())
        std::memcpy(residual, values.data(), values.size_bytes());
      finite = !clear_not_finite(residual, values.size());
    }
    for_each_chosen(context, values.size(), [&](size_t j, size_t i, size_t stratum) {
      const float value = residual != nullptr ? residual[i] : values[i];
      sent[j] = unbiased_ ? value * static_cast<float>(stratum) : value;
      if (residual != nullptr) residual[i] = 0;
    });
    // Perhaps the element was not chosen, but all ranks must learn of it.
    if (!finite) sent[0] = std::numeric_limits<float>::quiet_NaN();
  }
  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const sums = static_cast<const float*>(payload);
    std::fill(out.begin(), out.end(), 0.0f);
    for_each_chosen(context, out.size(), [&](size_t j, size_t i, size_t /*stratum*/) {
      out[i] = sums[j] / static_cast<float>(contributions);
    });
  }

 private:
  // body(j, i, size): element i is the j-th that is chosen, in a stratum of `size` elements.
  template <class Body>
  void for_each_chosen(const CompressionContext& context, size_t n, const Body& body) const {
    const size_t k = elements_to_send(n, k_, ratio_);
    if (k == 0) return;
    const Random random({seed_, context.tensor, context.step});  // not of the rank
    const size_t size = n / k;
    const size_t larger = n % k;  // so many strata in front have one element more
    for (size_t j = 0, begin = 0; j < k; ++j) {
      const size_t here = size + (j < larger ? 1 : 0);
      body(j, begin + random.below(j, here), here);
      begin += here;
    }
  }

  uint64_t k_;
  double ratio_;
  uint64_t seed_;
  bool unbiased_;
};

}  // namespace

namespace methods {

extern constexpr Method kRandomK = {
    .name = "randomk",
    .memory = "residual",
    .options = {&kRatio, &kK, &kSeed},
    .make = make_compressor<RandomK>,
    .sends = "random elements, the same on all ranks",
    .bytes = "4 k",
    .when = "a baseline: no index, but far more elements than `topk`",
    .formula = "x at one random element of each of k strata; without memory times the size of the stratum",
    .bound = "in expectation d = 1 / ⌈n / k⌉; without memory unbiased, E |x - C(x)|² ≤ (⌈n / k⌉ - 1) |x|²"};

}  // namespace methods

}  // namespace netsum::compress
