// Natural compression: powers of two, in one byte each.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/compress/methods.h"
#include "src/compress/random.h"

namespace netsum::compress {
namespace {

// The payload has a byte for each element, and behind them the exponent of code 1 as a float32. Bit 7 is the sign; the code in the other
// bits is 0 for zero, 1 for the largest power of two, one more for each half of it, and 127 for what is not finite.
constexpr uint8_t kSign = 0x80;
constexpr uint8_t kNotFinite = 127;
constexpr int kMostCode = 126;
constexpr int kMostExponent = 127;  // 2^128 is infinite

class Natural : public Compressor {
 public:
  Natural(uint64_t seed, bool is_random) : seed_(seed), is_random_(is_random) {}

  std::string_view name() const override { return "natural"; }
  CompressionPromise promise() const override {
    return {.summability = Summability::kNone, .biased = !is_random_, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.type = DataType::kByte, .count = count + sizeof(float)};
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    float largest = 0;
    for (const float value : values)
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    // One more than that of the largest element, which may be rounded up.
    const int top = largest > 0 ? std::min(std::ilogb(largest) + 1, kMostExponent) : 0;
    auto* const codes = static_cast<uint8_t*>(payload);
    const auto saved = static_cast<float>(top);
    std::memcpy(codes + values.size(), &saved, sizeof saved);
    const Random random({seed_, context.tensor, context.step, static_cast<uint64_t>(context.rank)});
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = values[i];
      codes[i] = code_of(std::fabs(value), top, is_random_ ? random.unit(i) : 0.5f);
      if (std::signbit(value)) codes[i] |= kSign;
      if (residual != nullptr) residual[i] = std::isfinite(value) ? value - decoded(codes[i], top) : 0;
    }
  }

  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const codes = static_cast<const uint8_t*>(payload);
    float saved = 0;
    std::memcpy(&saved, codes + out.size(), sizeof saved);
    const int top = static_cast<int>(saved);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = decoded(codes[i], top) / static_cast<float>(contributions);
  }

 private:
  // Rounded up if `least` of the way to the next power of two is behind it.
  static uint8_t code_of(float magnitude, int top, float least) {
    if (!std::isfinite(magnitude)) return kNotFinite;
    if (magnitude == 0) return 0;
    const int bottom = top + 1 - kMostCode;  // the exponent of the last code
    int exponent = 0;
    const float half = std::frexp(magnitude, &exponent);  // in [0.5, 1)
    --exponent;
    // Below the least power of two, the next lower number is 0.
    if (exponent < bottom) return std::ldexp(magnitude, -bottom) > least ? kMostCode : 0;
    if (2 * half - 1 > least) ++exponent;
    return static_cast<uint8_t>(top + 1 - std::min(exponent, top));
  }
  static float decoded(uint8_t code, int top) {
    const int magnitude = code & ~kSign;
    if (magnitude == kNotFinite) return std::numeric_limits<float>::quiet_NaN();
    const float value = magnitude == 0 ? 0.0f : std::ldexp(1.0f, top + 1 - magnitude);
    return (code & kSign) != 0 ? -value : value;
  }

  uint64_t seed_;
  bool is_random_;
};

}  // namespace

MadeCompressor make_natural(const CompressionOptions& options, bool has_memory) {
  return std::shared_ptr<const Compressor>(std::make_shared<Natural>(options.seed, !has_memory));
}

}  // namespace netsum::compress
