#include "src/plan/packing_program.h"

#include <algorithm>
#include <cmath>

#include "src/base/assert.h"
#include "src/base/rng.h"

namespace netsum::plan {
namespace {

constexpr double kTiny = 1e-9;
constexpr double kSameRatio = 1e-13;
constexpr double kPerturbation = 1e-7;
constexpr size_t kInvertAfter = 200;  // pivots

// Solves a regular system in whole numbers (Bareiss 1968): every division is exact.
Scaled solve(std::vector<std::vector<Integer>> rows) {
  const size_t size = rows.size();
  Integer before = 1;
  for (size_t i = 0; i < size; ++i) {
    size_t pivot = i;
    while (pivot < size && rows[pivot][i] == 0) ++pivot;
    if (pivot == size)
      return {std::vector<Integer>(size), 1};  // singular: no solution is as good as another one
    std::swap(rows[i], rows[pivot]);
    for (size_t j = 0; j < size; ++j) {
      if (j == i) continue;
      const Integer factor = rows[j][i];
      for (size_t k = i + 1; k <= size; ++k) {
        rows[j][k] = (rows[j][k] * rows[i][i] - factor * rows[i][k]) / before;
      }
      rows[j][i] = 0;
      if (j < i) rows[j][j] = rows[i][i];
    }
    before = rows[i][i];
  }
  Scaled solution{{}, before < 0 ? Integer(-before) : before};
  for (const auto& row : rows) solution.over.push_back(before < 0 ? Integer(-row[size]) : row[size]);
  return solution;
}

Integer rounded(double value) {
  return Integer(std::llround(std::ldexp(value, 50)));
}

}  // namespace

PackingProgram::PackingProgram(const std::vector<int64_t>& limits) : rows_(limits.size()), limits_(limits) {
  for (const int64_t limit : limits) largest_ = std::max(largest_, static_cast<double>(limit));
  Rng rng(1);
  for (size_t i = 0; i < rows_; ++i) {
    scaled_.push_back(static_cast<double>(limits[i]) / largest_ * (1 + kPerturbation * rng.unit()));
    basis_.push_back(i);
  }
  invert_again();
}

void PackingProgram::add(const std::vector<size_t>& column) {
  std::vector<size_t> sorted = column;
  std::sort(sorted.begin(), sorted.end());
  std::vector<Entry> entries;
  for (const size_t row : sorted) {
    if (entries.empty() || entries.back().row != row) entries.push_back({row, 0});
    ++entries.back().count;
  }
  columns_.push_back(std::move(entries));
}

void PackingProgram::enter(size_t column) {
  std::vector<double> direction(rows_);
  for (size_t i = 0; i < rows_; ++i) {
    for (const Entry& entry : columns_[column]) direction[i] += inverse_row(i)[entry.row] * entry.count;
  }
  pivot(direction, rows_ + column);
}

bool PackingProgram::enter_known() {
  const std::vector<double> all = prices();
  const auto least = std::min_element(all.begin(), all.end());
  if (least != all.end() && *least < -kTiny) {
    const auto row = static_cast<size_t>(least - all.begin());
    std::vector<double> direction(rows_);
    for (size_t i = 0; i < rows_; ++i) direction[i] = inverse_row(i)[row];
    pivot(direction, row);
    return true;
  }
  size_t best = kNone;
  double best_cost = 1 - kTiny;
  for (size_t column = 0; column < columns_.size(); ++column) {
    double cost = 0;
    for (const Entry& entry : columns_[column]) cost += all[entry.row] * entry.count;
    if (cost >= best_cost) continue;
    best_cost = cost;
    best = column;
  }
  if (best != kNone) enter(best);
  return best != kNone;
}

void PackingProgram::pivot(const std::vector<double>& direction, size_t entering) {
  size_t leaving = kNone;
  double step = 0;
  for (size_t i = 0; i < rows_; ++i) {
    if (direction[i] <= kTiny) continue;
    const double ratio = std::max(0.0, values_[i]) / direction[i];
    // Of equal ratios, the largest pivot keeps the inverse accurate.
    if (leaving == kNone || ratio < step - kSameRatio ||
        (ratio <= step + kSameRatio && direction[i] > direction[leaving])) {
      step = leaving == kNone ? ratio : std::min(step, ratio);
      leaving = i;
    }
  }
  if (leaving == kNone) return;  // nothing limits it; callers only enter what loads a row
  double* pivot_row = inverse_row(leaving);
  for (size_t k = 0; k < rows_; ++k) pivot_row[k] /= direction[leaving];
  for (size_t i = 0; i < rows_; ++i) {
    if (i == leaving || direction[i] == 0) continue;
    double* row = inverse_row(i);
    for (size_t k = 0; k < rows_; ++k) row[k] -= direction[i] * pivot_row[k];
    values_[i] -= direction[i] * step;
  }
  values_[leaving] = step;
  basis_[leaving] = entering;
  if (++pivots_ % kInvertAfter == 0) invert_again();
}

// Gauss-Jordan on the basis, with row exchanges.
void PackingProgram::invert_again() {
  std::vector<double> basis(rows_ * rows_);
  for (size_t i = 0; i < rows_; ++i) {
    if (basis_[i] < rows_) {
      basis[basis_[i] * rows_ + i] = 1;
    } else {
      for (const Entry& entry : columns_[basis_[i] - rows_]) basis[entry.row * rows_ + i] = entry.count;
    }
  }
  inverse_.assign(rows_ * rows_, 0);
  for (size_t i = 0; i < rows_; ++i) inverse_[i * rows_ + i] = 1;
  const auto combine = [&](std::vector<double>& matrix, size_t target, size_t source, double factor) {
    for (size_t k = 0; k < rows_; ++k) matrix[target * rows_ + k] -= factor * matrix[source * rows_ + k];
  };
  for (size_t i = 0; i < rows_; ++i) {
    size_t best = i;
    for (size_t j = i; j < rows_; ++j) {
      if (std::abs(basis[j * rows_ + i]) > std::abs(basis[best * rows_ + i])) best = j;
    }
    for (size_t k = 0; k < rows_ && best != i; ++k) {
      std::swap(basis[i * rows_ + k], basis[best * rows_ + k]);
      std::swap(inverse_[i * rows_ + k], inverse_[best * rows_ + k]);
    }
    const double pivot = basis[i * rows_ + i];
    if (pivot == 0) break;  // the basis has become singular by rounding; certify() measures what it is worth
    combine(basis, i, i, 1 - 1 / pivot);
    combine(inverse_, i, i, 1 - 1 / pivot);
    for (size_t j = 0; j < rows_; ++j) {
      const double factor = basis[j * rows_ + i];
      if (j == i || factor == 0) continue;
      combine(basis, j, i, factor);
      combine(inverse_, j, i, factor);
    }
  }
  values_.assign(rows_, 0);
  for (size_t i = 0; i < rows_; ++i) {
    for (size_t k = 0; k < rows_; ++k) values_[i] += inverse_[i * rows_ + k] * scaled_[k];
  }
}

std::vector<double> PackingProgram::prices() const {
  std::vector<double> sum(rows_);
  for (size_t i = 0; i < rows_; ++i) {
    if (basis_[i] < rows_) continue;
    for (size_t k = 0; k < rows_; ++k) sum[k] += inverse_row(i)[k];
  }
  return sum;
}

std::vector<size_t> PackingProgram::tight_rows() const {
  std::vector<bool> slack(rows_);
  for (const size_t each : basis_) {
    if (each < rows_) slack[each] = true;
  }
  std::vector<size_t> tight;
  for (size_t row = 0; row < rows_; ++row) {
    if (!slack[row]) tight.push_back(row);
  }
  return tight;
}

std::vector<size_t> PackingProgram::basic_columns() const {
  std::vector<size_t> columns;
  for (const size_t each : basis_) {
    if (each >= rows_) columns.push_back(each - rows_);
  }
  return columns;
}

std::vector<std::vector<Integer>> PackingProgram::tight_matrix(const std::vector<size_t>& rows,
                                                               const std::vector<size_t>& columns) const {
  std::vector<size_t> position(rows_, kNone);
  for (size_t i = 0; i < rows.size(); ++i) position[rows[i]] = i;
  std::vector<std::vector<Integer>> matrix(rows.size(), std::vector<Integer>(columns.size() + 1));
  for (size_t j = 0; j < columns.size(); ++j) {
    for (const Entry& entry : columns_[columns[j]]) {
      if (position[entry.row] != kNone) matrix[position[entry.row]][j] = entry.count;
    }
  }
  return matrix;
}

Scaled PackingProgram::exact_uses() const {
  const std::vector<size_t> rows = tight_rows(), columns = basic_columns();
  Scaled uses{std::vector<Integer>(columns_.size()), 1};
  if (columns.size() > kMostExact) {
    uses.under = Integer(1) << 50;
    for (size_t i = 0; i < rows_; ++i) {
      if (basis_[i] >= rows_)
        uses.over[basis_[i] - rows_] = rounded(std::max(0.0, values_[i])) * Integer(largest_);
    }
    return uses;
  }
  auto system = tight_matrix(rows, columns);
  for (size_t i = 0; i < rows.size(); ++i) system[i].back() = limits_[rows[i]];
  const Scaled solution = solve(std::move(system));
  for (size_t j = 0; j < columns.size(); ++j) uses.over[columns[j]] = solution.over[j];
  uses.under = solution.under;
  return uses;
}

Scaled PackingProgram::exact_prices() const {
  const std::vector<size_t> rows = tight_rows(), columns = basic_columns();
  Scaled exact{std::vector<Integer>(rows_), 1};
  if (columns.size() > kMostExact) {
    const std::vector<double> all = prices();
    for (size_t row = 0; row < rows_; ++row) exact.over[row] = rounded(std::max(0.0, all[row]));
    exact.under = Integer(1) << 50;
    return exact;
  }
  const auto matrix = tight_matrix(rows, columns);
  std::vector<std::vector<Integer>> turned(columns.size(), std::vector<Integer>(rows.size() + 1, 1));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < columns.size(); ++j) turned[j][i] = matrix[i][j];
  }
  const Scaled solution = solve(std::move(turned));
  for (size_t i = 0; i < rows.size(); ++i) exact.over[rows[i]] = solution.over[i];
  exact.under = solution.under;
  return exact;
}

}  // namespace netsum::plan
