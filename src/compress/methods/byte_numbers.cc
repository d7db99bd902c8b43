// The nearest of 255 numbers that share a scale, in one byte each: a dynamic tree, and floating-point numbers of 8 bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/kernels/codes.h"
#include "src/kernels/levels.h"

namespace netsum::compress {
namespace {

constexpr int kDecades = 7;
constexpr size_t kMagnitudes = 128;

// The magnitudes of codes of 7 bits, in ascending order, as shares of the scale. The last one of all is 1; behind it there may be others,
// which no element has.
using Magnitudes = std::array<float, kMagnitudes>;

// The position p of the highest bit selects the decade that ends at 10^(p - 6),
// and the p bits below divide it into 2^p equal steps. 0 is 0.
constexpr Magnitudes tree_magnitudes() {
  Magnitudes magnitudes{};
  double decade = 1;
  for (int p = kDecades - 1; p >= 0; --p, decade /= 10) {
    const size_t steps = size_t{1} << p;
    for (size_t step = 0; step < steps; ++step)
      magnitudes[steps + step] = static_cast<float>(
          decade * (0.1 + 0.9 * static_cast<double>(step + 1) / static_cast<double>(steps)));
  }
  return magnitudes;
}

// A floating-point number with subnormal ones: an exponent, and `fraction_bits` bits behind the 1. `most` is the code of the largest one.
constexpr Magnitudes float_magnitudes(uint32_t fraction_bits, size_t most) {
  std::array<double, kMagnitudes> exact{};
  for (size_t code = 0; code <= most; ++code) {
    const size_t exponent = code >> fraction_bits, fraction = code & ((size_t{1} << fraction_bits) - 1);
    // In units of the smallest number.
    exact[code] = static_cast<double>(fraction);
    if (exponent > 0) exact[code] += static_cast<double>(size_t{1} << fraction_bits);
    for (size_t e = 1; e < exponent; ++e) exact[code] *= 2;
  }
  Magnitudes magnitudes{};
  for (size_t code = 0; code < kMagnitudes; ++code)
    magnitudes[code] =
        code <= most ? static_cast<float>(exact[code] / exact[most]) : std::numeric_limits<float>::infinity();
  return magnitudes;
}

struct Numbers {
  kernels::IndexedBorders borders;
  std::array<float, 2 * kMagnitudes> of_code;  // the sign is bit 7
};

constexpr Numbers numbers_of(const Magnitudes& magnitudes) {
  Numbers numbers{};
  // Above border c, c + 1 is nearer than c.
  std::array<float, kMagnitudes - 1> borders{};
  for (size_t c = 0; c + 1 < kMagnitudes; ++c) borders[c] = (magnitudes[c] + magnitudes[c + 1]) / 2;
  numbers.borders = kernels::IndexedBorders::make(borders);
  for (size_t c = 0; c < kMagnitudes; ++c) {
    numbers.of_code[c] = magnitudes[c];
    numbers.of_code[kMagnitudes + c] = -magnitudes[c];
  }
  return numbers;
}

constexpr Numbers kTree = numbers_of(tree_magnitudes());
constexpr Numbers kE4M3 = numbers_of(float_magnitudes(3, 0x7E));  // up to 448; 0x7F is its NaN
constexpr Numbers kE5M2 = numbers_of(float_magnitudes(2, 0x7B));  // up to 57344; behind it infinity and NaN
static_assert(kTree.borders.is_valid() && kE4M3.borders.is_valid() && kE5M2.borders.is_valid());

// Rounded to the nearest, halves towards zero. The numbers cannot be added: codes are not evenly spaced, and as multiples of the smallest
// number, those of fp8 have 18 (e4m3) and 32 bits (e5m2) without their sign.
// The payload: a scale for each block, and behind them a byte for each element.
class ByteNumbers : public Compressor {
 public:
  ByteNumbers(std::string_view name, const Numbers& numbers, size_t block)
      : name_(name), numbers_(numbers), block_(block) {}

  std::string_view name() const override { return name_; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kNone, .biased = true, .needs_memory = false};
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
        kernels::to_signed_intervals(values.data() + begin, n, scale, numbers_.borders, codes + begin);
        if (rest != nullptr)
          kernels::rest_of_codes(values.data() + begin, codes + begin, n, numbers_.of_code.data(), scale,
                                 rest);
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
      kernels::from_codes(codes + begin, std::min(block_, out.size() - begin), numbers_.of_code.data(), scale,
                          static_cast<float>(contributions), out.data() + begin);
    }
  }

 private:
  size_t scale_bytes(size_t count) const { return (count + block_ - 1) / block_ * sizeof(float); }

  std::string_view name_;
  const Numbers& numbers_;
  size_t block_;
};

}  // namespace

namespace methods {

extern constexpr Method kFp8E4M3 = {
    .name = "fp8_e4m3",
    .memory = "residual",
    .options = {&kBlock},
    .make = [](const CompressionOptions& options, bool) -> CompressorPtr {
      return std::make_shared<ByteNumbers>("fp8_e4m3", kE4M3, options.block);
    },
    .sends = "8-bit floating point, per block",
    .bytes = "n + 4 n / block",
    .when = "for comparison: `u8bit` has less error",
    .formula = "s / m · nearest to m x / s, m = 448, s of this rank (arXiv 2209.05433; OCP Microscaling)",
    .bound = "off by at most 2^-4 of itself, or 2^-10 s / 448 if that is more"};

extern constexpr Method kFp8E5M2 = {.name = "fp8_e5m2",
                                    .memory = "residual",
                                    .options = {&kBlock},
                                    .make = [](const CompressionOptions& options, bool) -> CompressorPtr {
                                      return std::make_shared<ByteNumbers>("fp8_e5m2", kE5M2, options.block);
                                    },
                                    .sends = "8-bit floating point, per block",
                                    .bytes = "n + 4 n / block",
                                    .when = "blocks of very different magnitudes",
                                    .formula = "as `fp8_e4m3`, m = 57344",
                                    .bound = "off by at most 2^-3 of itself, or 2^-17 s / 57344"};

extern constexpr Method kU8Bit = {
    .name = "u8bit",
    .memory = "residual",
    .options = {&kBlock},
    .make = [](const CompressionOptions& options, bool) -> CompressorPtr {
      return std::make_shared<ByteNumbers>("u8bit", kTree, options.block);
    },
    .sends = "8 bits with a decimal exponent, per block",
    .bytes = "n + 4 n / block",
    .when = "as `natural`, with less error; `int8` can be added",
    .formula =
        "s · nearest of ± 10^(p - 6) · (0.1 + 0.9 (f + 1) / 2^p) and 0, p = 0 to 6, f < 2^p, s of this rank "
        "(Dettmers, ICLR 2016, ICLR 2022)",
    .bound = "off by at most 0.0071 s, and by at most itself"};

}  // namespace methods

}  // namespace netsum::compress
