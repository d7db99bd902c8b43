// Natural compression: powers of two, in one byte each.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/random.h"
#include "src/kernels/codes.h"
#include "src/kernels/levels.h"

namespace netsum::compress {
namespace {

// The payload has a byte for each element, the code of to_powers() (src/kernels/codes.h), and behind them the exponent of code 1 as a float32.
constexpr int kMostExponent = 127;  // 2^128 is infinite
// Elements that are in the cache when their residual is computed.
constexpr size_t kCachedPiece = 4096;

// The paper's exponent has 8 bits; here it has 7 below that of the largest element of a rank, so that an element takes a byte. What is
// below the least of these 126 powers becomes it or 0 in the same way; what is beyond 2^127 becomes 2^127.
class Natural : public Compressor {
 public:
  Natural(const CompressionOptions& options, bool has_memory)
      : seed_(options.seed), is_random_(!has_memory) {}

  std::string_view name() const override { return "natural"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kNone, .biased = !is_random_, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.type = DataType::kByte, .count = count + sizeof(float)};
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    const float largest = largest_finite(values);
    // One more than that of the largest element, which may be rounded up.
    const int top = largest > 0 ? std::min(std::ilogb(largest) + 1, kMostExponent) : 0;
    auto* const codes = static_cast<uint8_t*>(payload);
    const auto saved = static_cast<float>(top);
    std::memcpy(codes + values.size(), &saved, sizeof saved);
    const Random random({seed_, context.tensor, context.step, static_cast<uint64_t>(context.rank)});
    const Table table = numbers(top);
    for (size_t begin = 0; begin < values.size(); begin += kCachedPiece) {
      const size_t n = std::min(kCachedPiece, values.size() - begin);
      const float* const from = values.data() + begin;
      if (is_random_) {
        const uint64_t bits = random.at(begin >> 32);
        const kernels::RandomKey key = {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
        kernels::to_random_powers(from, n, top, key, static_cast<uint32_t>(begin), codes + begin);
      } else {
        kernels::to_powers(from, n, top, codes + begin);
      }
      if (residual == nullptr) continue;
      kernels::rest_of_codes(from, codes + begin, n, table.data(), 1, residual + begin);
      clear_not_finite(residual + begin, n);
    }
  }

  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const codes = static_cast<const uint8_t*>(payload);
    float saved = 0;
    std::memcpy(&saved, codes + out.size(), sizeof saved);
    kernels::from_codes(codes, out.size(), numbers(static_cast<int>(saved)).data(), 1,
                        static_cast<float>(contributions), out.data());
  }

 private:
  using Table = std::array<float, 256>;  // the number of each code

  static float largest_finite(std::span<const float> values) {
    float largest = kernels::largest_magnitude(values.data(), values.size());
    if (std::isfinite(largest)) return largest;
    largest = 0;
    for (const float value : values)
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    return largest;
  }
  static Table numbers(int top) {
    constexpr size_t kPowers = 128;
    Table table{};
    for (size_t code = 0; code < kPowers; ++code) {
      if (code > 0) table[code] = std::ldexp(1.0f, top + 1 - static_cast<int>(code));
      if (code == kernels::kNoPower) table[code] = std::numeric_limits<float>::quiet_NaN();
      table[kPowers + code] = -table[code];
    }
    return table;
  }

  uint64_t seed_;
  bool is_random_;
};

}  // namespace

namespace methods {

extern constexpr Method kNatural = {.name = "natural",
                                    .options = {&kSeed},
                                    .make = make_compressor<Natural>,
                                    .canonical =
                                        [](CompressionOptions& o) {
                                          if (o.memory != "none") o.seed = CompressionOptions().seed;
                                        },
                                    .sends = "powers of two",
                                    .bytes = "n + 4",
                                    .when = "few ranks; no common scale",
                                    .formula =
                                        "the power of two below or above, at random, 7 bits of exponent "
                                        "(Horváth et al., 2019: 8); with a memory "
                                        "the nearest",
                                    .bound = "unbiased; E |x - C(x)|² ≤ |x|² / 8; with a memory d = 8 / 9"};

}  // namespace methods

}  // namespace netsum::compress
