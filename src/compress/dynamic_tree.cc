// 8-bit dynamic tree quantisation.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/compress/methods.h"

namespace netsum::compress {
namespace {

constexpr uint8_t kSign = 0x80;
constexpr int kDecades = 7;
constexpr size_t kMagnitudes = 128;

// The magnitude of a code of 7 bits, as a share of the scale: the position p of the highest bit selects the decade that ends at 10^(p - 6),
// and the p bits below divide it into 2^p equal steps. 0 is 0.
constexpr std::array<float, kMagnitudes> make_magnitudes() {
  std::array<float, kMagnitudes> magnitudes{};
  double decade = 1;
  for (int p = kDecades - 1; p >= 0; --p, decade /= 10) {
    const size_t steps = size_t{1} << p;
    for (size_t step = 0; step < steps; ++step)
      magnitudes[steps + step] = static_cast<float>(
          decade * (0.1 + 0.9 * static_cast<double>(step + 1) / static_cast<double>(steps)));
  }
  return magnitudes;
}
constexpr std::array<float, kMagnitudes> kMagnitudeOf = make_magnitudes();

// kBorder[c]: above it, c + 1 is nearer than c.
constexpr std::array<float, kMagnitudes - 1> make_borders() {
  std::array<float, kMagnitudes - 1> borders{};
  for (size_t c = 0; c + 1 < kMagnitudes; ++c) borders[c] = (kMagnitudeOf[c] + kMagnitudeOf[c + 1]) / 2;
  return borders;
}
constexpr std::array<float, kMagnitudes - 1> kBorder = make_borders();

float decoded(uint8_t code, float scale) {
  const float magnitude = kMagnitudeOf[code & ~kSign] * scale;
  return (code & kSign) != 0 ? -magnitude : magnitude;
}

// The payload: a scale for each block, and behind them a byte for each element.
class DynamicTree : public Compressor {
 public:
  explicit DynamicTree(size_t block) : block_(block) {}

  std::string_view name() const override { return "u8bit"; }
  CompressionPromise promise() const override {
    return {.summability = Summability::kNone, .biased = true, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.type = DataType::kByte, .count = scale_bytes(count) + count};
  }

  void compress(const CompressionContext& /*context*/, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    auto* const scales = static_cast<uint8_t*>(payload);
    uint8_t* const codes = scales + scale_bytes(values.size());
    for (size_t b = 0, begin = 0; begin < values.size(); ++b, begin += block_) {
      const size_t n = std::min(block_, values.size() - begin);
      const float scale = scale_of(values.subspan(begin, n));
      std::memcpy(scales + b * sizeof scale, &scale, sizeof scale);
      const bool is_usable = std::isfinite(scale) && scale > 0;
      for (size_t i = begin; i < begin + n; ++i) {
        const float value = values[i];
        codes[i] = is_usable ? code_of(value, scale) : 0;
        if (residual == nullptr) continue;
        residual[i] = value - (is_usable ? decoded(codes[i], scale) : 0);
      }
      // What is not finite is not kept; the rest of its block is.
      if (residual != nullptr && !is_usable) clear_not_finite(residual + begin, n);
    }
  }

  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const scales = static_cast<const uint8_t*>(payload);
    const uint8_t* const codes = scales + scale_bytes(out.size());
    for (size_t b = 0, begin = 0; begin < out.size(); ++b, begin += block_) {
      float scale = 0;
      std::memcpy(&scale, scales + b * sizeof scale, sizeof scale);
      const size_t end = std::min(begin + block_, out.size());
      for (size_t i = begin; i < end; ++i)
        out[i] = decoded(codes[i], scale) / static_cast<float>(contributions);
    }
  }

 private:
  size_t scale_bytes(size_t count) const { return (count + block_ - 1) / block_ * sizeof(float); }

  static float scale_of(std::span<const float> values) {
    if (!all_finite(values)) return std::numeric_limits<float>::quiet_NaN();
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    return largest;
  }
  static uint8_t code_of(float value, float scale) {
    const float share = std::fabs(value) / scale;
    const auto above = std::lower_bound(kBorder.begin(), kBorder.end(), share);
    const auto code = static_cast<uint8_t>(above - kBorder.begin());
    return std::signbit(value) ? static_cast<uint8_t>(code | kSign) : code;
  }

  size_t block_;
};

}  // namespace

MadeCompressor make_dynamic_tree(const CompressionOptions& options) {
  if (Status status = check_block(options); !status.ok()) return status;
  return std::shared_ptr<const Compressor>(std::make_shared<DynamicTree>(options.block));
}

}  // namespace netsum::compress
