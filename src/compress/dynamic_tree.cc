// 8-bit dynamic tree quantisation.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "src/compress/methods.h"
#include "src/kernels/codes.h"
#include "src/kernels/levels.h"

namespace netsum::compress {
namespace {

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

// Above border c, c + 1 is nearer than c.
constexpr kernels::IndexedBorders make_borders() {
  std::array<float, kMagnitudes - 1> borders{};
  for (size_t c = 0; c + 1 < kMagnitudes; ++c) borders[c] = (kMagnitudeOf[c] + kMagnitudeOf[c + 1]) / 2;
  return kernels::IndexedBorders::make(borders);
}
constexpr kernels::IndexedBorders kBorders = make_borders();
static_assert(kBorders.is_valid());

// Of a code with its sign in bit 7.
constexpr std::array<float, 2 * kMagnitudes> make_numbers() {
  std::array<float, 2 * kMagnitudes> numbers{};
  for (size_t c = 0; c < kMagnitudes; ++c) {
    numbers[c] = kMagnitudeOf[c];
    numbers[kMagnitudes + c] = -kMagnitudeOf[c];
  }
  return numbers;
}
constexpr std::array<float, 2 * kMagnitudes> kNumberOf = make_numbers();

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
      const float scale = kernels::largest_magnitude(values.data() + begin, n);
      std::memcpy(scales + b * sizeof scale, &scale, sizeof scale);
      float* const rest = residual == nullptr ? nullptr : residual + begin;
      if (std::isfinite(scale) && scale > 0) {
        kernels::to_signed_intervals(values.data() + begin, n, scale, kBorders, codes + begin);
        if (rest != nullptr)
          kernels::rest_of_codes(values.data() + begin, codes + begin, n, kNumberOf.data(), scale, rest);
        continue;
      }
      std::fill_n(codes + begin, n, uint8_t{0});
      if (rest == nullptr) continue;
      // What is not finite is not kept; the rest of its block is.
      std::memmove(rest, values.data() + begin, n * sizeof(float));
      clear_not_finite(rest, n);
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
      kernels::from_codes(codes + begin, std::min(block_, out.size() - begin), kNumberOf.data(), scale,
                          static_cast<float>(contributions), out.data() + begin);
    }
  }

 private:
  size_t scale_bytes(size_t count) const { return (count + block_ - 1) / block_ * sizeof(float); }

  size_t block_;
};

}  // namespace

MadeCompressor make_dynamic_tree(const CompressionOptions& options) {
  if (Status status = check_block(options); !status.ok()) return status;
  return std::shared_ptr<const Compressor>(std::make_shared<DynamicTree>(options.block));
}

}  // namespace netsum::compress
