// The master program of column generation: how often each tree is used, so that no row is overloaded and the sum of the
// uses is largest. A primal simplex in doubles finds the trees; their uses are then solved in whole numbers.
#ifndef NETSUM_SRC_PLAN_PACKING_PROGRAM_H_
#define NETSUM_SRC_PLAN_PACKING_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/plan/fraction.h"

namespace netsum::plan {

// Whole numbers with one denominator, which is above 0.
struct Scaled {
  std::vector<Integer> over;
  Integer under = 1;
};

class PackingProgram {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  // [row]: how much fits, above 0.
  explicit PackingProgram(const std::vector<int64_t>& limits);

  // A column is the rows that it loads by 1 for each unit; a row may be listed several times. Columns are numbered as added.
  void add(const std::vector<size_t>& column);
  // Lets a column enter the basis, in place of another one or of a row's slack.
  void enter(size_t column);
  // Lets the slack of the row with the least negative price enter, or else the cheapest column. False if none improves
  // the sum.
  bool enter_known();

  // [row], in units of 1 / limit: a column that costs less than 1 makes the sum larger.
  std::vector<double> prices() const;
  size_t columns() const { return columns_.size(); }
  // [column]: uses, and [row]: prices, of the present basis, solved exactly; rounded to 2^-50 if the basis has more
  // than kMostExact columns. They may be slightly below 0 where the basis is degenerate.
  Scaled exact_uses() const;
  Scaled exact_prices() const;

 private:
  static constexpr size_t kMostExact = 160;

  struct Entry {
    size_t row = 0;
    uint32_t count = 0;
  };

  void pivot(const std::vector<double>& direction, size_t entering);
  void invert_again();
  double* inverse_row(size_t i) { return inverse_.data() + i * rows_; }
  const double* inverse_row(size_t i) const { return inverse_.data() + i * rows_; }
  std::vector<size_t> tight_rows() const;
  std::vector<size_t> basic_columns() const;
  std::vector<std::vector<Integer>> tight_matrix(const std::vector<size_t>& rows,
                                                 const std::vector<size_t>& columns) const;

  const size_t rows_;
  const std::vector<int64_t> limits_;
  double largest_ = 1;
  std::vector<double> scaled_;  // limits by the largest one, slightly perturbed against ties
  std::vector<std::vector<Entry>> columns_;
  std::vector<size_t> basis_;    // [position]: row of a slack, or rows_ + column
  std::vector<double> inverse_;  // of the basis
  std::vector<double> values_;   // [position]
  size_t pivots_ = 0;
};

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_PACKING_PROGRAM_H_
