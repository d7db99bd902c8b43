// The largest elements of every chunk, in 2 bits each.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "src/compress/finite.h"
#include "src/compress/index_stream.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/methods/largest.h"

namespace netsum::compress {
namespace {

// Of the magnitudes of a chunk that are sent: the mean of those up to their mean, and that of the others.
struct ChunkLevels {
  float small = 0;
  float large = 0;
};
constexpr uint32_t kNegative = 1, kLarge = 2, kCodeBits = 2;

float decoded(uint32_t code, const ChunkLevels& levels) {
  const float magnitude = (code & kLarge) != 0 ? levels.large : levels.small;
  return (code & kNegative) != 0 ? -magnitude : magnitude;
}

// SparseLoCo sends 64 of 4096 elements in this way, as the changes of weights between local steps.
// The payload: the levels of all chunks, and then a stream of bits with the indices and codes of each.
class ChunkTopK : public Compressor {
 public:
  explicit ChunkTopK(const CompressionOptions& options)
      : chunk_(options.block), k_(options.k), ratio_(options.ratio) {}

  std::string_view name() const override { return "chunktopk"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kNone, .biased = true, .needs_memory = true};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.type = DataType::kByte, .count = stream_at(count) + stream_bytes(count)};
  }

  void compress(const CompressionContext& /*context*/, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    const size_t n = values.size();
    auto* const begin = static_cast<std::byte*>(payload);
    std::byte* levels_to = begin;
    BitWriter bits(begin + stream_at(n));
    for (size_t at = 0; at < n; at += chunk_, levels_to += sizeof(ChunkLevels)) {
      const auto chunk = values.subspan(at, std::min(chunk_, n - at));
      const ChunkLevels levels = put_chunk(chunk, bits, residual == nullptr ? nullptr : residual + at);
      std::memcpy(levels_to, &levels, sizeof levels);
    }
    std::fill(bits.finish(), begin + stream_at(n) + stream_bytes(n), std::byte{0});
  }

  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const begin = static_cast<const std::byte*>(payload);
    const std::byte* levels_at = begin;
    BitReader bits(begin + stream_at(out.size()));
    for (size_t at = 0; at < out.size(); at += chunk_, levels_at += sizeof(ChunkLevels)) {
      const auto chunk = out.subspan(at, std::min(chunk_, out.size() - at));
      ChunkLevels levels;
      std::memcpy(&levels, levels_at, sizeof levels);
      levels.small /= static_cast<float>(contributions);
      levels.large /= static_cast<float>(contributions);
      if (get_chunk(bits, levels, chunk)) continue;
      // What is no code must not look like a gradient.
      std::fill(out.begin() + static_cast<std::ptrdiff_t>(at), out.end(), NAN);
      return;
    }
  }

 private:
  size_t stream_at(size_t count) const { return (count + chunk_ - 1) / chunk_ * sizeof(ChunkLevels); }
  IndexCode code_of(size_t length) const { return {length, elements_to_send(length, k_, ratio_)}; }
  size_t bits_of_chunk(size_t length) const {
    const IndexCode code = code_of(length);
    return code.bits + kCodeBits * code.chosen;
  }
  size_t stream_bytes(size_t count) const {
    return bytes_of_bits(count / chunk_ * bits_of_chunk(chunk_) + bits_of_chunk(count % chunk_));
  }

  // Of equal magnitudes, the first ones are sent.
  ChunkLevels put_chunk(std::span<const float> values, BitWriter& bits, float* residual) const {
    const IndexCode code = code_of(values.size());
    Largest largest(values, code.chosen);
    std::array<uint16_t, kMostBlock> chosen;
    size_t count = 0;
    for (size_t i = 0; i < values.size(); ++i)
      if (largest.takes(values[i])) chosen[count++] = static_cast<uint16_t>(i);
    return put_chosen(values, {chosen.data(), count}, code, bits, residual);
  }

  static ChunkLevels put_chosen(std::span<const float> values, std::span<const uint16_t> chosen,
                                const IndexCode& code, BitWriter& bits, float* residual) {
    IndexWriter indices(code, bits);
    double sum = 0;
    for (const uint16_t i : chosen) {
      indices.put(i);
      sum += std::fabs(values[i]);
    }
    const double middle = sum / static_cast<double>(chosen.size());
    double sums[2] = {}, counts[2] = {};
    for (const uint16_t i : chosen) {
      const bool is_large = std::fabs(values[i]) > middle;
      bits.put((std::signbit(values[i]) ? kNegative : 0) | (is_large ? kLarge : 0), kCodeBits);
      sums[is_large] += std::fabs(values[i]);
      ++counts[is_large];
    }
    const ChunkLevels levels = {.small = counts[0] > 0 ? static_cast<float>(sums[0] / counts[0]) : 0,
                                .large = counts[1] > 0 ? static_cast<float>(sums[1] / counts[1]) : 0};
    if (residual == nullptr) return levels;
    if (residual != values.data()) std::memcpy(residual, values.data(), values.size_bytes());
    for (const uint16_t i : chosen) {
      const float value = residual[i];
      const float level = std::fabs(value) > middle ? levels.large : levels.small;
      // Nothing useful has been sent where the level is not finite.
      if (std::isfinite(level)) residual[i] = value - std::copysign(level, value);
    }
    clear_not_finite(residual, values.size());
    return levels;
  }

  bool get_chunk(BitReader& bits, const ChunkLevels& levels, std::span<float> out) const {
    const IndexCode code = code_of(out.size());
    std::array<uint16_t, kMostBlock> chosen;
    IndexReader indices(code, bits);
    for (size_t j = 0; j < code.chosen; ++j) {
      size_t i = 0;
      if (!indices.get(&i)) return false;
      chosen[j] = static_cast<uint16_t>(i);
    }
    std::fill(out.begin(), out.end(), 0.0f);
    for (size_t j = 0; j < code.chosen; ++j) out[chosen[j]] = decoded(bits.get(kCodeBits), levels);
    return true;
  }

  size_t chunk_;
  uint64_t k_;
  double ratio_;
};

}  // namespace

namespace methods {

constexpr Option kChunk = {
    .name = "block", .range = kBlock.range, .help = "elements of a chunk", .allows = kBlock.allows};

extern constexpr Method kChunkTopK = {
    .name = "chunktopk",
    .memory = "residual",
    .options = {&kRatio, &kK, &kChunk},
    .make = make_compressor<ChunkTopK>,
    .examples = {"k=64,block=4096"},
    .sends = "the k largest of every chunk, in 2 bits each",
    .bytes = "k (log2(n / k) + 4) / 8 + 8 n / block",
    .when = "with local steps: [SparseLoCo](../examples/training/local_updates.py)",
    .formula =
        "sign(x) · the mean of the smaller or larger magnitudes of the k largest of its chunk (SparseLoCo, "
        "Sarfi et al., 2025)",
    .bound = "|x|² - Σ k m² over both magnitudes of all chunks"};

}  // namespace methods

}  // namespace netsum::compress
