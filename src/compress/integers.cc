// Methods that round the elements of a block to integers of a scale that all ranks share: int8, int4, thc.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/compress/fields.h"
#include "src/compress/methods.h"
#include "src/compress/random.h"

namespace netsum::compress {
namespace {

// thc: where a normal distribution is cut off, in standard deviations: 1/32 of it is beyond.
constexpr double kClipDeviations = 2.1539;

// To the nearest integer, halves to the even one, for magnitudes below 2^22: std::nearbyint() is a call.
float nearest(float value) {
  constexpr float kShift = 0x1.8p23f;
  return (value + kShift) - kShift;
}

// y = H D x / sqrt(n) and back, in place: D are random signs, H Hadamard's matrix of n = 2^k rows. Lengths stay.
void hadamard(float* x, size_t n) {
  for (size_t half = 1; half < n; half *= 2)
    for (size_t begin = 0; begin < n; begin += 2 * half)
      for (size_t i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  for (size_t i = 0; i < n; ++i) x[i] *= factor;
}

// An integer from -levels to levels travels as 0 to 2 levels.
class Integers : public Compressor {
 public:
  Integers(std::string_view name, uint32_t levels, bool is_clipped, bool is_nearest,
           const CompressionOptions& options)
      : name_(name),
        levels_(levels),
        is_clipped_(is_clipped),
        is_nearest_(is_nearest),
        is_rotated_(is_clipped || options.rotated),
        block_(options.block),
        seed_(options.seed) {}

  std::string_view name() const override { return name_; }
  CompressionPromise promise() const override {
    const bool is_biased = is_nearest_ || is_clipped_;
    return {.summability = Summability::kInteger, .biased = is_biased, .needs_memory = is_clipped_};
  }
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    return {.type = DataType::kInt32, .count = fields(context).lanes(travelling(count))};
  }

  size_t agreed_values(const CompressionContext& /*context*/, size_t count) const override {
    return blocks(count);
  }
  // Of each block, the largest magnitude or, if values beyond a bound are cut off, that bound.
  void agree(const CompressionContext& context, std::span<const float> values, float* mine) const override {
    const Random random = signs(context);
    std::array<float, kMostBlock> block;
    for (size_t b = 0; b < blocks(values.size()); ++b) {
      const size_t size = load(values, b, random, block.data());
      double largest = 0, squares = 0;
      for (size_t i = 0; i < size; ++i) {
        largest = std::max(largest, std::fabs(static_cast<double>(block[i])));
        squares += static_cast<double>(block[i]) * static_cast<double>(block[i]);
      }
      const double deviation = std::sqrt(squares / static_cast<double>(size));
      const double scale = is_clipped_ ? std::min(largest, kClipDeviations * deviation) : largest;
      // NaN, which no maximum hides.
      mine[b] = std::isfinite(squares) ? static_cast<float>(scale) : std::numeric_limits<float>::quiet_NaN();
    }
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> agreed, float* residual, void* payload,
                float* /*side*/) const override {
    const Random sign = signs(context);
    const Random random({seed_, context.tensor, context.step, static_cast<uint64_t>(context.rank)});
    const auto levels = static_cast<float>(levels_);
    std::array<float, kMostBlock> block;
    size_t b = 0, at = 0;  // the block, and the element in it
    fields(context).pack(travelling(values.size()), static_cast<int32_t*>(payload), [&](size_t i) {
      if (at == 0) load(values, b, sign, block.data());
      const float scale = agreed[b];
      uint32_t code = levels_;
      if (std::isfinite(scale) && scale > 0) {
        const float exact = std::clamp(block[at] / scale * levels, -levels, levels);
        const float rounded = is_nearest_ ? nearest(exact) : std::floor(exact + random.unit(i));
        code = static_cast<uint32_t>(std::min(rounded, levels) + levels);
      }
      block[at] = decoded(static_cast<int64_t>(code) - levels_, agreed[b], 1);
      if (++at == size_of_block(values.size(), b)) {
        if (residual != nullptr) keep(values, b, sign, block.data(), std::isfinite(scale), residual);
        ++b;
        at = 0;
      }
      return code;
    });
  }

  void decompress(const CompressionContext& context, std::span<const float> agreed, const void* payload,
                  const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const Random sign = signs(context);
    const int64_t zero = static_cast<int64_t>(levels_) * contributions;
    std::array<float, kMostBlock> block;
    size_t b = 0, at = 0;
    fields(context).unpack(travelling(out.size()), static_cast<const int32_t*>(payload),
                           [&](size_t /*i*/, uint32_t sum) {
                             block[at] = decoded(static_cast<int64_t>(sum) - zero, agreed[b], contributions);
                             if (++at != size_of_block(out.size(), b)) return;
                             unrotate(b, sign, block.data());
                             const size_t size = std::min(block_, out.size() - b * block_);
                             std::copy_n(block.data(), size, out.data() + b * block_);
                             ++b;
                             at = 0;
                           });
  }

 private:
  Fields fields(const CompressionContext& context) const { return {2 * levels_, context.ranks}; }
  size_t blocks(size_t count) const { return (count + block_ - 1) / block_; }
  // A rotated block has all of its elements also at the end of the tensor.
  size_t travelling(size_t count) const { return is_rotated_ ? blocks(count) * block_ : count; }
  size_t size_of_block(size_t count, size_t b) const {
    return std::min(block_, travelling(count) - b * block_);
  }

  // The same on all ranks.
  Random signs(const CompressionContext& context) const {
    return Random({~seed_, context.tensor, context.step});
  }
  void flip(size_t b, const Random& sign, float* block) const {
    for (size_t begin = 0; begin < block_; begin += 64) {
      const uint64_t bits = sign.at(b * ((block_ + 63) / 64) + begin / 64);
      for (size_t i = begin; i < std::min(begin + 64, block_); ++i)
        block[i] = (bits >> (i - begin) & 1) != 0 ? -block[i] : block[i];
    }
  }
  // What is rounded of a block. Returns its size.
  size_t load(std::span<const float> values, size_t b, const Random& sign, float* block) const {
    const size_t size = std::min(block_, values.size() - b * block_);
    std::copy_n(values.data() + b * block_, size, block);
    if (!is_rotated_) return size;
    std::fill(block + size, block + block_, 0.0f);
    flip(b, sign, block);
    hadamard(block, block_);
    return block_;
  }
  void unrotate(size_t b, const Random& sign, float* block) const {
    if (!is_rotated_) return;
    hadamard(block, block_);
    flip(b, sign, block);
  }
  float decoded(int64_t sum, float scale, int contributions) const {
    // A scale that is not finite makes all of its block so.
    return static_cast<float>(static_cast<double>(sum) * static_cast<double>(scale) /
                              (static_cast<double>(levels_) * contributions));
  }
  // `sent` are a block's elements as they are received.
  void keep(std::span<const float> values, size_t b, const Random& sign, float* sent, bool is_finite,
            float* residual) const {
    const size_t size = std::min(block_, values.size() - b * block_);
    float* const rest = residual + b * block_;
    const float* const from = values.data() + b * block_;
    if (is_finite) {
      unrotate(b, sign, sent);
      for (size_t i = 0; i < size; ++i) rest[i] = from[i] - sent[i];
    } else {  // nothing useful has been sent: all of it remains
      if (rest != from) std::copy_n(from, size, rest);
      clear_not_finite(rest, size);
    }
  }

  std::string_view name_;
  uint32_t levels_;
  bool is_clipped_, is_nearest_, is_rotated_;
  size_t block_;
  uint64_t seed_;
};

}  // namespace

MadeCompressor make_integers(std::string_view name, const CompressionOptions& options, bool has_memory) {
  if (Status status = check_block(options); !status.ok()) return status;
  const bool is_thc = name == "thc";
  if ((options.rotated || is_thc) && !std::has_single_bit(options.block))
    return Status(ErrorCode::kInvalidArgument, "block is " + std::to_string(options.block) +
                                                   "; blocks that are rotated must have a power of two");
  const uint32_t levels = name == "int8" ? 127 : 7;
  return std::shared_ptr<const Compressor>(
      std::make_shared<Integers>(name, levels, is_thc, has_memory && !is_thc, options));
}

}  // namespace netsum::compress
