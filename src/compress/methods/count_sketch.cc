// A count sketch, which is linear: countsketch.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/random.h"
#include "src/kernels/codes.h"
#include "src/kernels/levels.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

constexpr size_t kRows = 5;
constexpr size_t kColumnsOfAnElement = 10;  // for each element that is recovered

float median(float a, float b, float c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

float median_of_rows(const std::array<float, kRows>& v) {
  // Of four, the two in the middle.
  const float low = std::max(std::min(v[0], v[1]), std::min(v[2], v[3]));
  const float high = std::min(std::max(v[0], v[1]), std::max(v[2], v[3]));
  return median(v[4], low, high);
}

// Each element is in one random cell of every row, the same on all ranks. Sketches add up. Of the sum, the median of an element's five
// cells estimates it. Every rank keeps its tensor less what was taken, so nothing is lost; FetchSGD keeps the same in sketched form.
class CountSketch : public Compressor {
 public:
  explicit CountSketch(const CompressionOptions& options)
      : k_(options.k), ratio_(options.ratio), seed_(options.seed) {}

  std::string_view name() const override { return "countsketch"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kLinear,
            .biased = true,
            .needs_memory = true,
            .late_residual = true,
            .mean = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.count = is_sketched(count) ? kRows * columns(count) : count};
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    auto* const sums = static_cast<float*>(payload);
    if (residual != nullptr && residual != values.data() && !values.empty())
      std::memcpy(residual, values.data(), values.size_bytes());
    if (!is_sketched(values.size())) {
      if (!values.empty()) std::memcpy(sums, values.data(), values.size_bytes());
      return;
    }
    const size_t width = columns(values.size());
    if (!all_finite(values)) {
      std::fill_n(sums, kRows * width, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    std::fill_n(sums, kRows * width, 0.0f);
    const Hash hash(seed_, context);
    Cells cells;
    for (size_t begin = 0; begin < values.size(); begin += kPiece) {
      const size_t n = std::min(kPiece, values.size() - begin);
      for (size_t row = 0; row < kRows; ++row) {
        hash.cells_of(row, begin, n, width, cells);
        float* const of_row = sums + row * width;
        for (size_t i = 0; i < n; ++i) of_row[column_of(cells[i])] += with_sign(values[begin + i], cells[i]);
      }
    }
  }

  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* /*side*/, int contributions, std::span<float> out,
                  float* residual) const override {
    const auto* const sums = static_cast<const float*>(payload);
    const auto divisor = static_cast<float>(contributions);
    const size_t n = out.size();
    if (!is_sketched(n)) {
      for (size_t i = 0; i < n; ++i) out[i] = sums[i] / divisor;
    } else if (const size_t width = columns(n); !all_finite({sums, kRows * width})) {
      std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
    } else {
      const Hash hash(seed_, context);
      Cells cells;
      std::array<std::array<float, kRows>, kPiece> found;
      for (size_t begin = 0; begin < n; begin += kPiece) {
        const size_t here = std::min(kPiece, n - begin);
        for (size_t row = 0; row < kRows; ++row) {
          hash.cells_of(row, begin, here, width, cells);
          const float* const of_row = sums + row * width;
          for (size_t i = 0; i < here; ++i) found[i][row] = with_sign(of_row[column_of(cells[i])], cells[i]);
        }
        for (size_t i = 0; i < here; ++i) out[begin + i] = median_of_rows(found[i]) / divisor;
      }
      const auto kth = kernels::kth_magnitude(out.data(), n, elements_to_send(n, k_, ratio_));
      kernels::select(out.data(), n, std::max(1u, kth.bits), out.data(), nullptr);
    }
    if (residual == nullptr) return;
    if (all_finite(out))
      for (size_t i = 0; i < n; ++i) residual[i] -= out[i];
    clear_not_finite(residual, n);  // of a step that is not finite, all of it remains
  }

 private:
  // A column, and in bit 31 the sign.
  using Cells = std::array<uint32_t, kPiece>;
  static size_t column_of(uint32_t cell) { return cell & 0x7FFFFFFF; }
  static float with_sign(float value, uint32_t cell) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ (cell & 0x80000000u));
  }
  // The same on all ranks, and another in each step, so that other elements collide.
  class Hash {
   public:
    Hash(uint64_t seed, const CompressionContext& context) {
      const Random random({seed, context.tensor, context.step});
      for (size_t row = 0; row < kRows; ++row) {
        const uint64_t bits = random.at(row);
        keys_[row] = {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
      }
    }
    void cells_of(size_t row, size_t begin, size_t n, size_t width, Cells& cells) const {
      kernels::random_cells(keys_[row], static_cast<uint32_t>(begin), n, static_cast<uint32_t>(width),
                            cells.data());
    }

   private:
    std::array<kernels::RandomKey, kRows> keys_;
  };

  size_t columns(size_t count) const { return kColumnsOfAnElement * elements_to_send(count, k_, ratio_); }
  // A sketch that is as long as the tensor would only be worse.
  bool is_sketched(size_t count) const { return kRows * columns(count) < count; }

  uint64_t k_;
  double ratio_;
  uint64_t seed_;
};

}  // namespace

namespace methods {

extern constexpr Method kCountSketch = {
    .name = "countsketch",
    .memory = "residual",
    .options = {&kRatio, &kK, &kSeed},
    .make = make_compressor<CountSketch>,
    .examples = {"ratio=0.001"},
    .sends = "a count sketch: 5 rows of 10 k signed sums",
    .bytes = "200 k",
    .when = "a baseline; use `ratio` 0.001",
    .formula =
        "of the summed sketches, the k elements with the largest medians over the five rows (Charikar et "
        "al., "
        "ICALP 2002; FetchSGD, Rothchild et al., ICML 2020)",
    .bound = "a row's estimate is unbiased, with a variance of at most |x|² / (10 k)"};

}  // namespace methods

}  // namespace netsum::compress
