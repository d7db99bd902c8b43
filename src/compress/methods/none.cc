// Elements as they are: none.
#include <algorithm>
#include <cstring>

#include "src/compress/method.h"

namespace netsum::compress {
namespace {

class Identity : public Compressor {
 public:
  std::string_view name() const override { return "none"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kLinear, .biased = false, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.count = count};
  }

  void compress(const CompressionContext& /*context*/, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    if (values.empty()) return;
    std::memcpy(payload, values.data(), values.size_bytes());
    if (residual != nullptr) std::fill_n(residual, values.size(), 0.0f);
  }
  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const sums = static_cast<const float*>(payload);
    const auto divisor = static_cast<float>(contributions);
    for (size_t i = 0; i < out.size(); ++i) out[i] = sums[i] / divisor;
  }
};

}  // namespace

namespace methods {

extern constexpr Method kNone = {
    .name = "none", .make = make_compressor<Identity>, .sends = "all", .bytes = "4 n"};

}  // namespace methods

}  // namespace netsum::compress
