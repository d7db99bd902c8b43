// Quantile buckets: each element as the number of its bucket.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "src/compress/bit_stream.h"
#include "src/compress/methods.h"
#include "src/compress/random.h"

namespace netsum::compress {
namespace {

constexpr size_t kMostBuckets = 256;
constexpr size_t kSample = 4096;  // on the stack

// The payload: the mean of each bucket, and behind them the numbers of the buckets of all elements.
class QuantileSketch : public Compressor {
 public:
  QuantileSketch(uint32_t buckets, uint64_t seed)
      : buckets_(buckets), bits_(static_cast<uint32_t>(std::bit_width(buckets - 1))), seed_(seed) {}

  std::string_view name() const override { return "sketch"; }
  CompressionPromise promise() const override {
    return {.summability = Summability::kNone, .biased = true, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.type = DataType::kByte, .count = means_bytes() + bytes_of_bits(bits_ * count)};
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    const Edges edges = edges_of(context, values);
    std::array<double, kMostBuckets> sums{};
    std::array<uint64_t, kMostBuckets> counts{};
    auto* const begin = static_cast<std::byte*>(payload);
    BitWriter codes(begin + means_bytes());
    for (const float value : values) {
      const uint32_t bucket = bucket_of(edges, value);
      codes.put(bucket, bits_);
      sums[bucket] += value;
      ++counts[bucket];
    }
    codes.finish();
    Means means{};
    // Not finite if any of its elements is not.
    for (size_t b = 0; b < buckets_; ++b)
      if (counts[b] > 0) means[b] = static_cast<float>(sums[b] / static_cast<double>(counts[b]));
    std::memcpy(begin, means.data(), means_bytes());
    if (residual == nullptr) return;
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = values[i], mean = means[bucket_of(edges, value)];
      // Nothing useful has been sent of a bucket whose mean is not finite.
      const float rest = std::isfinite(mean) ? value - mean : value;
      residual[i] = std::isfinite(rest) ? rest : 0;
    }
  }

  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const begin = static_cast<const std::byte*>(payload);
    Means means{};
    std::memcpy(means.data(), begin, means_bytes());
    BitReader codes(begin + means_bytes());
    for (float& value : out) {
      // Numbers that no bucket has cannot come from compress().
      const uint32_t bucket = codes.get(bits_);
      value = bucket < buckets_ ? means[bucket] / static_cast<float>(contributions) : NAN;
    }
  }

 private:
  // The upper edges of all buckets but the last; an element that is equal to one is below it.
  using Edges = std::array<float, kMostBuckets>;
  using Means = std::array<float, kMostBuckets>;

  size_t means_bytes() const { return buckets_ * sizeof(float); }

  // Quantiles of a sample: one element of each of so many strata.
  Edges edges_of(const CompressionContext& context, std::span<const float> values) const {
    std::array<float, kSample> sample{};
    const size_t n = values.size(), taken = std::min(n, kSample);
    const Random random({seed_, context.tensor, context.step, static_cast<uint64_t>(context.rank)});
    size_t finite = 0;
    for (size_t s = 0; s < taken; ++s) {
      const size_t begin = s * n / taken, end = (s + 1) * n / taken;
      const float value = values[begin + random.below(s, end - begin)];
      if (std::isfinite(value)) sample[finite++] = value;
    }
    std::sort(sample.begin(), sample.begin() + static_cast<std::ptrdiff_t>(finite));
    Edges edges{};
    for (size_t b = 0; b + 1 < buckets_ && finite > 0; ++b)
      edges[b] = sample[std::max<size_t>(1, (b + 1) * finite / buckets_) - 1];
    return edges;
  }
  uint32_t bucket_of(const Edges& edges, float value) const {
    const auto end = edges.begin() + static_cast<std::ptrdiff_t>(buckets_ - 1);
    return static_cast<uint32_t>(std::lower_bound(edges.begin(), end, value) - edges.begin());
  }

  size_t buckets_;
  uint32_t bits_;
  uint64_t seed_;
};

}  // namespace

MadeCompressor make_quantile_sketch(const CompressionOptions& options) {
  if (options.buckets < 2 || options.buckets > kMostBuckets)
    return Status(ErrorCode::kInvalidArgument,
                  "buckets is " + std::to_string(options.buckets) + "; it must be between 2 and 256");
  return std::shared_ptr<const Compressor>(std::make_shared<QuantileSketch>(options.buckets, options.seed));
}

}  // namespace netsum::compress
