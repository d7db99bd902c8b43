#include "src/plan/rounding.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "src/plan/tree_search.h"

namespace netsum::plan {
namespace {

constexpr double kRoundingError = 1e-12;
constexpr double kNearFractional = 1.0029;  // times the time of fractional weights: not improved further
constexpr size_t kMostFilledPeriods = 24;
constexpr double kSteep = 2;  // how much dearer, as a logarithm, a row is with one chunk more

class Rounder {
 public:
  Rounder(const Graph& graph, TreeKind kind, size_t root, const Packing& packing)
      : kind_(kind), root_(root), rows_(graph, kind == TreeKind::kTwoWay), search_(graph, rows_) {
    for (size_t i = 0; i < packing.trees.size(); ++i) {
      note(packing.trees[i]);
      parts_.push_back((packing.rates[i] / packing.rate).to_double());
    }
    optimum_ = 1 / packing.rate.to_double();
  }

  std::vector<Tree> best(uint32_t most_period) {
    for (uint32_t period = 1; period <= most_period; ++period) consider(largest_remainder(period));
    for (const uint32_t period : roomy_periods(most_period)) {
      if (best_time_ <= optimum_ * kNearFractional) break;
      consider(filled(period));
    }
    uint32_t common = 0;
    for (const uint32_t weight : best_) common = std::gcd(common, weight);
    std::vector<Tree> trees;
    for (size_t i = 0; i < best_.size(); ++i) {
      if (best_[i] == 0) continue;
      trees.push_back(trees_[i]);
      trees.back().weight = best_[i] / common;
    }
    return trees;
  }

 private:
  // Returns the tree's number.
  size_t note(const Tree& tree) {
    const auto [known, fresh] = numbers_.emplace(tree, trees_.size());
    if (fresh) {
      trees_.push_back(tree);
      rows_of_tree_.push_back(rows_of(rows_, tree));
    }
    return known->second;
  }

  void consider(const std::vector<uint32_t>& weights) {
    const double time = time_of(weights);
    if (time >= best_time_ * (1 - kRoundingError)) return;
    best_time_ = time;
    best_ = weights;
  }

  std::vector<uint32_t> whole_parts(uint32_t period, std::vector<std::pair<double, size_t>>* rests,
                                    uint32_t* left) const {
    std::vector<uint32_t> weights;
    *left = period;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const double exact = parts_[i] * period,
                   whole = std::min<double>(std::floor(exact + kRoundingError), *left);
      weights.push_back(static_cast<uint32_t>(whole));
      *left -= weights.back();
      rests->emplace_back(whole - exact, i);
    }
    return weights;
  }

  std::vector<uint32_t> largest_remainder(uint32_t period) const {
    std::vector<std::pair<double, size_t>> rests;
    uint32_t left = 0;
    std::vector<uint32_t> weights = whole_parts(period, &rests, &left);
    std::sort(rests.begin(), rests.end());
    for (size_t i = 0; left > 0; ++i, --left) ++weights[rests[i % rests.size()].second];
    return weights;
  }

  // How many chunks a row carries if it loses no more than is accepted.
  double most_chunks(size_t row, uint32_t period) const {
    return std::floor(optimum_ * kNearFractional * static_cast<double>(rows_.limit[row]) * period +
                      kRoundingError);
  }

  // The periods in which whole numbers leave the rows most room, best first.
  std::vector<uint32_t> roomy_periods(uint32_t most_period) const {
    std::vector<std::pair<double, uint32_t>> found;
    for (uint32_t period = 1; period <= most_period; ++period) {
      double least = INFINITY;
      for (size_t row = 0; row < rows_.limit.size(); ++row) {
        const double exact = optimum_ * static_cast<double>(rows_.limit[row]) * period;
        least = std::min(least, (most_chunks(row, period) - exact) / exact);
      }
      found.emplace_back(-least, period);
    }
    std::sort(found.begin(), found.end());
    std::vector<uint32_t> periods;
    for (size_t i = 0; i < found.size() && i < kMostFilledPeriods; ++i) periods.push_back(found[i].second);
    return periods;
  }

  // What whole parts leave is filled with the trees that are cheapest where rows are dearer the fuller they are.
  std::vector<uint32_t> filled(uint32_t period) {
    std::vector<std::pair<double, size_t>> rests;
    uint32_t left = 0;
    std::vector<uint32_t> weights = whole_parts(period, &rests, &left);
    std::vector<double> load(rows_.limit.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      for (const size_t row : rows_of_tree_[i]) load[row] += weights[i];
    }
    std::vector<double> prices(load.size());
    for (; left > 0; --left) {
      for (size_t row = 0; row < load.size(); ++row) {
        prices[row] = std::exp(std::clamp(kSteep * (load[row] - most_chunks(row, period)), -300.0, 300.0));
      }
      search_.set_prices(prices);
      auto found = kind_ == TreeKind::kBroadcast ? search_.cheapest_from(root_) : search_.cheapest();
      if (!found) break;
      const size_t tree = note(found->tree);
      weights.resize(trees_.size());
      ++weights[tree];
      for (const size_t row : rows_of_tree_[tree]) load[row] += 1;
    }
    return weights;
  }

  double time_of(const std::vector<uint32_t>& weights) const {
    std::vector<double> load(rows_.limit.size());
    double period = 0, longest = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      period += weights[i];
      for (const size_t row : rows_of_tree_[i]) load[row] += weights[i];
    }
    for (size_t row = 0; row < load.size(); ++row) {
      longest = std::max(longest, load[row] / static_cast<double>(rows_.limit[row]));
    }
    return longest / period;
  }

  const TreeKind kind_;
  const size_t root_;
  const Rows rows_;
  TreeSearch<double> search_;
  std::map<Tree, size_t> numbers_;
  std::vector<Tree> trees_;
  std::vector<std::vector<size_t>> rows_of_tree_;
  std::vector<double> parts_;  // [tree of the packing]; they sum to 1
  double optimum_ = 0;
  double best_time_ = INFINITY;
  std::vector<uint32_t> best_;
};

}  // namespace

std::vector<Tree> with_whole_weights(const Graph& graph, TreeKind kind, size_t root, const Packing& packing,
                                     uint32_t most_period) {
  return Rounder(graph, kind, root, packing).best(most_period);
}

}  // namespace netsum::plan
