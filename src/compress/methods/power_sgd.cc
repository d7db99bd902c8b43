// A matrix of low rank: powersgd.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/random.h"

namespace netsum::compress {
namespace {

// A column whose norm is smaller, in proportion to what it was, depends on the columns before it.
constexpr double kDependent = 1e-6;

// The tensor is M, `rows` times `columns`. Its approximation is P Q^T: P has `rank` orthonormal columns of `rows` numbers, and Q
// = M^T P as many of `columns` numbers. Both are kept column by column.
struct Factors {
  size_t rows;
  size_t columns;
  size_t rank;

  size_t p_values() const { return rank * rows; }
  size_t q_values() const { return rank * columns; }
};

double dot(const float* a, const float* b, size_t n) {
  // In the same order on all ranks, so that all have the same bits. Several sums, so that the compiler can use vectors.
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (size_t lane = 0; lane < 8; ++lane)
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
  for (; i < n; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

// Gram and Schmidt's method. Columns that depend on those before them become 0.
void orthonormalize(float* columns, size_t n, size_t count) {
  for (size_t c = 0; c < count; ++c) {
    float* const column = columns + c * n;
    const double before = std::sqrt(dot(column, column, n));
    // Twice: what rounding has left is small, but may point to the other columns.
    for (int pass = 0; pass < 2; ++pass)
      for (size_t other = 0; other < c; ++other) {
        const auto share = static_cast<float>(dot(column, columns + other * n, n));
        for (size_t i = 0; i < n; ++i) column[i] -= share * columns[other * n + i];
      }
    const double norm = std::sqrt(dot(column, column, n));
    const bool is_dependent = norm <= kDependent * before;  // also of zeros, but not if anything is NaN
    for (size_t i = 0; i < n; ++i)
      column[i] = is_dependent ? 0.0f : static_cast<float>(static_cast<double>(column[i]) / norm);
  }
}

// The ranks average P = M Q, with the Q of the step before (a warm start), make its columns orthonormal, and average Q = M^T P. What
// remains, (I - P P^T) M, is never longer than M.
class PowerSgd : public Compressor {
 public:
  explicit PowerSgd(const CompressionOptions& options) : rank_(options.rank), seed_(options.seed) {}

  std::string_view name() const override { return "powersgd"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kLinear, .biased = true, .needs_memory = true};
  }
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    return {.count = factors(context, count).q_values()};
  }
  // Q, the sum of all payloads of the last step, of which only the direction counts; and P, between compress() and decompress().
  size_t state_values(const CompressionContext& context, size_t count) const override {
    const Factors f = factors(context, count);
    return f.q_values() + f.p_values();
  }
  size_t agreed_values(const CompressionContext& context, size_t count) const override {
    return factors(context, count).p_values();
  }
  Agreement agreement() const override { return Agreement::kMean; }

  // P = M Q, of this rank.
  void agree(const CompressionContext& context, std::span<const float> values, float* mine) const override {
    const Factors f = factors(context, values.size());
    float* const q = context.state.data();
    fill_empty_columns(context, f, q);
    for (size_t c = 0; c < f.rank; ++c)
      for (size_t r = 0; r < f.rows; ++r)
        mine[c * f.rows + r] =
            static_cast<float>(dot(values.data() + r * f.columns, q + c * f.columns, f.columns));
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> agreed, float* residual, void* payload,
                float* /*side*/) const override {
    const Factors f = factors(context, values.size());
    float* const p = context.state.data() + f.q_values();
    auto* const q = static_cast<float*>(payload);
    std::fill_n(context.state.data(), f.q_values(), 0.0f);  // agree() has used it
    std::copy(agreed.begin(), agreed.end(), p);
    orthonormalize(p, f.rows, f.rank);
    std::fill_n(q, f.q_values(), 0.0f);
    for (size_t c = 0; c < f.rank; ++c)
      for (size_t r = 0; r < f.rows; ++r)
        add_row(p[c * f.rows + r], values.data() + r * f.columns, f.columns, q + c * f.columns);
    if (residual == nullptr) return;
    if (residual != values.data() && !values.empty())
      std::memcpy(residual, values.data(), values.size_bytes());
    // If anything is not finite, on any rank, then so is P, and nothing useful is sent: all of it remains.
    const bool is_finite = all_finite({p, f.p_values()}) && all_finite({q, f.q_values()});
    if (is_finite)
      for (size_t c = 0; c < f.rank; ++c)
        for (size_t r = 0; r < f.rows; ++r)
          add_row(-p[c * f.rows + r], q + c * f.columns, f.columns, residual + r * f.columns);
    clear_not_finite(residual, values.size());
  }

  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const Factors f = factors(context, out.size());
    float* const sum = context.state.data();
    const float* const p = sum + f.q_values();
    const auto* const q = static_cast<const float*>(payload);
    const auto n = static_cast<float>(contributions);
    for (size_t i = 0; i < f.q_values(); ++i) sum[i] += q[i] / n;
    std::fill(out.begin(), out.end(), 0.0f);
    for (size_t c = 0; c < f.rank; ++c)
      for (size_t r = 0; r < f.rows; ++r)
        add_row(p[c * f.rows + r] / n, q + c * f.columns, f.columns, out.data() + r * f.columns);
    // The next step begins anew.
    if (!all_finite({sum, f.q_values()})) std::fill(context.state.begin(), context.state.end(), 0.0f);
  }

 private:
  Factors factors(const CompressionContext& context, size_t count) const {
    const size_t columns = count / context.rows;
    return {context.rows, columns, std::min({rank_, context.rows, columns})};
  }
  static void add_row(float factor, const float* from, size_t n, float* to) {
    for (size_t i = 0; i < n; ++i) to[i] += factor * from[i];
  }
  // At first, and wherever nothing was found: with random numbers, the same on all ranks.
  void fill_empty_columns(const CompressionContext& context, const Factors& f, float* q) const {
    const Random random({seed_, context.tensor, context.step});
    for (size_t c = 0; c < f.rank; ++c) {
      float* const column = q + c * f.columns;
      if (std::any_of(column, column + f.columns, [](float value) { return value != 0; })) continue;
      for (size_t i = 0; i < f.columns; ++i) column[i] = 2 * random.unit(c * f.columns + i) - 1;
    }
  }

  size_t rank_;
  uint64_t seed_;
};

}  // namespace

namespace methods {

constexpr Option kRank = {
    .name = "rank",
    .range = "between 1 and 1024",
    .help = "the rank of the matrix that is sent, at most its number of rows or columns",
    .allows = [](const CompressionOptions& o) { return o.rank >= 1 && o.rank <= 1024; }};

extern constexpr Method kPowerSgd = {
    .name = "powersgd",
    .memory = "residual",
    .options = {&kRank, &kSeed},
    .make = make_compressor<PowerSgd>,
    .sends = "a matrix of `rank` for a matrix of a rows and b columns",
    .bytes = "4 rank (a + b)",
    .when = "large matrices on slow links; a tensor of one row stays as it is",
    .formula =
        "P Pᵀ X: X is x as a matrix, P orthonormal columns of the ranks' "
        "mean of X Q, Q = Xᵀ P of the step before "
        "(Vogels et al., NeurIPS 2019)",
    .bound = "|x - C(x)| ≤ |x|; a matrix of that rank is exact"};

}  // namespace methods

}  // namespace netsum::compress
