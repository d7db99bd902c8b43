// Quantile buckets: each element as the number of its bucket.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/compress/bit_stream.h"
#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/random.h"
#include "src/kernels/codes.h"

namespace netsum::compress {
namespace {

constexpr size_t kMostBuckets = 256;
constexpr size_t kSample = 4096;  // on the stack
static_assert(kPiece % 8 == 0);

// The payload: the mean of each bucket, and behind them the numbers of the buckets of all elements.
class QuantileSketch : public Compressor {
 public:
  explicit QuantileSketch(const CompressionOptions& options)
      : buckets_(options.buckets),
        bits_(static_cast<uint32_t>(std::bit_width(options.buckets - 1))),
        seed_(options.seed) {}

  std::string_view name() const override { return "sketch"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kNone, .biased = true, .needs_memory = false};
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
    std::byte* to = begin + means_bytes();
    std::array<uint8_t, kPiece> codes;
    for (size_t at = 0; at < values.size(); at += kPiece) {
      const size_t n = std::min(kPiece, values.size() - at);
      kernels::to_intervals(values.data() + at, n, edges.data(), bits_, codes.data());
      for (size_t i = 0; i < n; ++i) {
        sums[codes[i]] += values[at + i];
        ++counts[codes[i]];
      }
      to = pack_bits(codes.data(), n, bits_, to);
    }
    Means means{};
    // Not finite if any of its elements is not.
    for (size_t b = 0; b < buckets_; ++b)
      if (counts[b] > 0) means[b] = static_cast<float>(sums[b] / static_cast<double>(counts[b]));
    std::memcpy(begin, means.data(), means_bytes());
    if (residual != nullptr) keep(values, edges, means, residual);
  }

  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* from = static_cast<const std::byte*>(payload);
    // Numbers that no bucket has cannot come from compress().
    Means means;
    means.fill(std::numeric_limits<float>::quiet_NaN());
    std::memcpy(means.data(), from, means_bytes());
    from += means_bytes();
    std::array<uint8_t, kPiece> codes;
    for (size_t at = 0; at < out.size(); at += kPiece) {
      const size_t n = std::min(kPiece, out.size() - at);
      from = unpack_bits(from, n, bits_, codes.data());
      kernels::from_codes(codes.data(), n, means.data(), 1, static_cast<float>(contributions),
                          out.data() + at);
    }
  }

 private:
  // The upper edges of all buckets but the last; an element that is equal to one is below it. Behind them, infinities.
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
    Edges edges;
    edges.fill(std::numeric_limits<float>::infinity());
    for (size_t b = 0; b + 1 < buckets_ && finite > 0; ++b)
      edges[b] = sample[std::max<size_t>(1, (b + 1) * finite / buckets_) - 1];
    return edges;
  }
  void keep(std::span<const float> values, const Edges& edges, Means means, float* residual) const {
    // Nothing useful has been sent of a bucket whose mean is not finite.
    for (float& mean : means)
      if (!std::isfinite(mean)) mean = 0;
    std::array<uint8_t, kPiece> codes;
    for (size_t at = 0; at < values.size(); at += kPiece) {
      const size_t n = std::min(kPiece, values.size() - at);
      kernels::to_intervals(values.data() + at, n, edges.data(), bits_, codes.data());
      kernels::rest_of_codes(values.data() + at, codes.data(), n, means.data(), 1, residual + at);
      clear_not_finite(residual + at, n);
    }
  }

  size_t buckets_;
  uint32_t bits_;
  uint64_t seed_;
};

}  // namespace

namespace methods {

constexpr Option kBuckets = {
    .name = "buckets",
    .range = "between 2 and 256",
    .help = "quantile buckets among which elements are divided; 16 are 4 bits",
    .allows = [](const CompressionOptions& o) { return o.buckets >= 2 && o.buckets <= kMostBuckets; }};

extern constexpr Method kSketch = {
    .name = "sketch",
    .memory = "residual",
    .options = {&kBuckets, &kSeed},
    .make = make_compressor<QuantileSketch>,
    .sends = "one of `buckets` quantile buckets per element, and their means",
    .bytes = "n / 2 + 64",
    .when = "any distribution in 4 bits",
    .formula = "the mean m of its quantile bucket, quantiles of 4096 elements (Jiang et al., SIGMOD 2018)",
    .bound = "|x - C(x)|² = |x|² - Σ n m²"};

}  // namespace methods

}  // namespace netsum::compress
