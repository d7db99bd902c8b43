// The largest coefficients of every chunk's discrete cosine transform.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/methods/largest.h"
#include "src/compress/sparsifier.h"
#include "src/kernels/levels.h"

namespace netsum::compress {
namespace {

constexpr size_t kMostDctBlock = 256;

// The orthonormal DCT-II of one size: coefficient c of x is the sum of at(c, i) x[i].
class Cosines {
 public:
  explicit Cosines(size_t size) : size_(size), by_coefficient_(size * size), by_element_(size * size) {
    for (size_t c = 0; c < size; ++c)
      for (size_t i = 0; i < size; ++i) {
        const double angle =
            std::numbers::pi * static_cast<double>((2 * i + 1) * c) / static_cast<double>(2 * size);
        const double length = std::sqrt((c == 0 ? 1.0 : 2.0) / static_cast<double>(size));
        by_coefficient_[c * size + i] = by_element_[i * size + c] =
            static_cast<float>(length * std::cos(angle));
      }
  }

  void forward(const float* values, float* coefficients) const {
    transform(by_element_, values, coefficients);
  }
  void inverse(const float* coefficients, float* values) const {
    transform(by_coefficient_, coefficients, values);
  }

 private:
  // Zeros cost nothing.
  void transform(const std::vector<float>& matrix, const float* from, float* to) const {
    kernels::sum_rows(from, size_, matrix.data(), size_, size_, to);
  }

  size_t size_;
  std::vector<float> by_coefficient_, by_element_;
};

// The payload is as long as the tensor: the coefficients of each chunk, of which most are zero. What is left behind the last whole
// chunk is divided into chunks of smaller powers of two. With count_senders, a 1 or 0 for each coefficient follows:
// behind all of them, not beside each, because the elements of a packet share a scale, in which 1 would make small coefficients coarse.
class DctTopK : public Sparsifier {
 public:
  explicit DctTopK(const CompressionOptions& options)
      : k_(options.k), ratio_(options.ratio), counts_senders_(options.count_senders) {
    for (size_t size = 1; size <= options.block; size *= 2) cosines_.emplace_back(size);
  }

  std::string_view name() const override { return "dcttopk"; }
  CompressorTraits traits() const override {
    CompressorTraits traits = Sparsifier::traits();
    traits.mean = !counts_senders_;
    traits.in_place = false;
    return traits;
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.count = counts_senders_ ? 2 * count : count};
  }

  void sparsify(const CompressionContext& /*context*/, std::span<const float> values, float* residual,
                float* sent) const override {
    std::array<float, kMostDctBlock> rest;
    for_each_chunk(values.size(), [&](size_t at, size_t size, const Cosines& cosines) {
      const auto chunk = values.subspan(at, size);
      cosines.forward(chunk.data(), sent + at);
      const bool is_finite = all_finite(chunk) && all_finite({sent + at, size});
      if (!is_finite) sent[at] = NAN;  // which nothing hides
      keep_largest({sent + at, size});
      if (counts_senders_) {
        float* const counts = sent + values.size() + at;
        for (size_t i = 0; i < size; ++i) counts[i] = sent[at + i] != 0 ? 1.0f : 0.0f;
      }
      if (residual == nullptr) return;
      if (is_finite) {
        cosines.inverse(sent + at, rest.data());
        for (size_t i = 0; i < size; ++i) residual[at + i] = chunk[i] - rest[i];
      } else {
        if (residual != values.data()) std::memcpy(residual + at, chunk.data(), chunk.size_bytes());
        clear_not_finite(residual + at, size);
      }
    });
  }

  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const sums = static_cast<const float*>(payload);
    const auto* const counts = sums + out.size();
    const auto ranks = static_cast<float>(contributions);
    std::array<float, kMostDctBlock> mean;
    for_each_chunk(out.size(), [&](size_t at, size_t size, const Cosines& cosines) {
      // In a packet with far larger coefficients, a count may have become 0: then it is the mean over all ranks.
      for (size_t i = 0; i < size; ++i)
        mean[i] = sums[at + i] / (counts_senders_ && counts[at + i] > 0 ? counts[at + i] : ranks);
      cosines.inverse(mean.data(), out.data() + at);
    });
  }

 private:
  template <class Visit>
  void for_each_chunk(size_t count, const Visit& visit) const {
    for (size_t at = 0; at < count;) {
      const auto fits = static_cast<size_t>(std::bit_width(count - at)) - 1;
      const size_t level = std::min(fits, cosines_.size() - 1);
      visit(at, size_t{1} << level, cosines_[level]);
      at += size_t{1} << level;
    }
  }
  // Clears the others. Of equal magnitudes, the first ones stay.
  void keep_largest(std::span<float> coefficients) const {
    Largest largest(coefficients, elements_to_send(coefficients.size(), k_, ratio_));
    for (float& coefficient : coefficients)
      if (!largest.takes(coefficient)) coefficient = 0;
  }

  uint64_t k_;
  double ratio_;
  bool counts_senders_;
  std::vector<Cosines> cosines_;  // of 2^i elements
};

}  // namespace

namespace methods {

constexpr Option kDctChunk = {.name = "block",
                              .range = "a power of two, at most 256",
                              .help = "elements of a chunk",
                              .allows = [](const CompressionOptions& o) {
                                return std::has_single_bit(o.block) && o.block <= kMostDctBlock;
                              }};
constexpr Option kCountSenders = {
    .name = "count_senders",
    .help = "the sum of a coefficient is divided by the number of ranks that have sent it"};

extern constexpr Method kDctTopK = {
    .name = "dcttopk",
    .memory = "residual",
    .options = {&kRatio, &kK, &kDctChunk, &kCountSenders},
    .make = make_compressor<DctTopK>,
    .conflict = [](const CompressionOptions& o) -> std::string_view {
      if (!o.count_senders || o.path != "gather") return "";
      return "count_senders is true, but the path 'gather' decompresses single payloads, in which the "
             "senders "
             "cannot be counted; use path 'union', or leave count_senders out";
    },
    .examples = {"k=4,block=64", "ratio=0.2,block=32,count_senders=true"},
    .sends = "the k largest coefficients of the cosine transform of every chunk",
    .bytes = "4 u + index; with `count_senders` twice that",
    .when = "tensors with similar neighbours; with `count_senders` and `decay`: DeMo",
    .formula =
        "D⁻¹ of the k largest coefficients of D x, D the DCT-II of every chunk (DeMo, Peng et al., 2024)",
    .bound = "d = k / n"};

}  // namespace methods

}  // namespace netsum::compress
