// Methods that round to few levels of a scale that all ranks share: qsgd, terngrad.
#include <algorithm>
#include <cmath>
#include <limits>

#include "src/compress/fields.h"
#include "src/compress/methods.h"
#include "src/compress/random.h"

namespace netsum::compress {
namespace {

// A number from -levels to levels travels as 0 to 2 levels.
class Levels : public Compressor {
 public:
  Levels(std::string_view name, uint32_t levels, uint64_t seed) : name_(name), levels_(levels), seed_(seed) {}

  std::string_view name() const override { return name_; }
  CompressionPromise promise() const override {
    return {.summability = Summability::kInteger, .biased = false, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    return {.type = DataType::kInt32, .count = fields(context.ranks).lanes(count)};
  }

  size_t agreed_values(const CompressionContext& /*context*/, size_t /*count*/) const override { return 1; }
  void agree(const CompressionContext& /*context*/, std::span<const float> values,
             float* mine) const override {
    float largest = 0;
    if (all_finite(values)) {
      for (const float value : values) largest = std::max(largest, std::fabs(value));
    } else {
      largest = std::numeric_limits<float>::quiet_NaN();  // which no maximum hides
    }
    *mine = largest;
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> agreed, float* residual, void* payload,
                float* /*side*/) const override {
    const float scale = agreed[0];
    const bool is_usable = std::isfinite(scale) && scale > 0;
    const auto levels = static_cast<float>(levels_);
    const Random random({seed_, context.tensor, context.step, static_cast<uint64_t>(context.rank)});
    fields(context.ranks).pack(values.size(), static_cast<int32_t*>(payload), [&](size_t i) {
      if (!is_usable) return levels_;
      // Not levels * value / scale, which may be infinite. The sum may be rounded up beyond the last level.
      const float exact = std::fabs(values[i]) / scale * levels;
      const auto rounded = static_cast<uint32_t>(std::min(std::floor(exact + random.unit(i)), levels));
      return std::signbit(values[i]) ? levels_ - rounded : levels_ + rounded;
    });
    if (residual != nullptr) std::fill_n(residual, values.size(), 0.0f);  // unbiased: no memory wants it
  }
  void decompress(const CompressionContext& context, std::span<const float> agreed, const void* payload,
                  const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    // A scale that is not finite makes all of the result so.
    const double unit = static_cast<double>(agreed[0]) / (static_cast<double>(levels_) * contributions);
    const int64_t zero = static_cast<int64_t>(levels_) * contributions;
    fields(context.ranks)
        .unpack(out.size(), static_cast<const int32_t*>(payload), [&](size_t i, uint32_t sum) {
          out[i] = static_cast<float>(unit * static_cast<double>(static_cast<int64_t>(sum) - zero));
        });
  }

 private:
  Fields fields(int ranks) const { return {2 * levels_, ranks}; }

  std::string_view name_;
  uint32_t levels_;
  uint64_t seed_;
};

}  // namespace

MadeCompressor make_levels(std::string_view name, const CompressionOptions& options) {
  if (options.levels < 1 || options.levels > kMostLevels)
    return Status(ErrorCode::kInvalidArgument, "levels is " + std::to_string(options.levels) +
                                                   "; it must be between 1 and " +
                                                   std::to_string(kMostLevels));
  return std::shared_ptr<const Compressor>(std::make_shared<Levels>(name, options.levels, options.seed));
}

}  // namespace netsum::compress
