#include "src/plan/pack.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "src/plan/packing_program.h"
#include "src/plan/tree_search.h"

namespace netsum::plan {
namespace {

constexpr double kNearlyOne = 1 - 1e-9;  // a tree that costs more does not improve the program
constexpr double kCentre = 0.9;          // part of the best prices so far in those at which trees are chosen
constexpr double kDearer = 0.1;          // what a tree adds to the price of the row that limits it
constexpr double kLeastPart = 0.01;
constexpr size_t kMostRounds = 20'000;
constexpr size_t kMostProofs = 50;

template <typename Number>
auto cheapest(const TreeSearch<Number>& search, TreeKind kind, size_t root) {
  switch (kind) {
    case TreeKind::kBroadcast:
      return search.cheapest_from(root);
    case TreeKind::kPairs:
      return search.cheapest_pair();
    default:
      return search.cheapest();
  }
}

class Packer {
 public:
  Packer(const Graph& graph, TreeKind kind, size_t root)
      : kind_(kind),
        root_(root),
        rows_(graph, kind == TreeKind::kTwoWay),
        program_(rows_.limit),
        search_(graph, rows_),
        proof_(graph, rows_) {
    for (const int64_t limit : rows_.limit) centre_.push_back(1 / static_cast<double>(limit));
  }

  Result<Packing> run() {
    warm_up();
    if (Status s = improve(); !s.ok()) return s;
    Packing packing = certify();
    for (size_t i = 0; i < kMostProofs && proof_tree_ && packing.rate < packing.most; ++i) {
      program_.enter(note(std::move(*proof_tree_)));
      if (Status s = improve(); !s.ok()) return s;
      packing = better(packing, certify());
    }
    return packing;
  }

 private:
  // Multiplicative weights (Garg and Koenemann 1998): every tree makes the rows that it loads dearer. Its trees load all
  // rows about alike, so the program does not begin with a few of them.
  void warm_up() {
    std::vector<double> prices = centre_;
    const size_t rounds = 4 * prices.size();
    for (size_t round = 0; round < rounds; ++round) {
      search_.set_prices(prices);
      auto found = cheapest(search_, kind_, root_);
      if (!found || found->price <= 0) return;
      move_centre(prices, found->price);
      std::vector<double> load(prices.size());
      for (const size_t row : rows_of(rows_, found->tree))
        load[row] += 1 / static_cast<double>(rows_.limit[row]);
      const double most = *std::max_element(load.begin(), load.end());
      for (size_t row = 0; row < load.size(); ++row) prices[row] *= 1 + kDearer * load[row] / most;
      note(std::move(found->tree));
    }
  }

  // Adds trees until the program in doubles has no better one. Trees are chosen at prices between the program's and those
  // with the best bound so far (Wentges 1997), because the program's own jump from a few arcs to others.
  Status improve() {
    double part = kCentre;
    for (size_t round = 0; round < kMostRounds; ++round) {
      if (program_.enter_known()) continue;
      std::vector<double> prices = program_.prices();
      for (double& price : prices) price = std::max(price, 0.0);
      std::vector<double> mixed = prices;
      for (size_t row = 0; row < mixed.size(); ++row) mixed[row] += part * (centre_[row] - mixed[row]);
      search_.set_prices(mixed);
      auto found = cheapest(search_, kind_, root_);
      if (!found) {
        return {ErrorCode::kUnreachable,
                "no tree joins all ranks: some must not relay, or links lead in one direction only"};
      }
      const bool nearer = move_centre(mixed, found->price);
      if (cost(found->tree, prices) < kNearlyOne) {
        program_.enter(note(std::move(found->tree)));
        part = kCentre;
      } else if (part == 0) {
        break;
      } else if (!nearer) {
        part = part < kLeastPart ? 0 : part / 2;
      }
    }
    return {};
  }

  double cost(const Tree& tree, const std::vector<double>& prices) const {
    double sum = 0;
    for (const size_t row : rows_of(rows_, tree)) sum += prices[row];
    return sum;
  }

  // Keeps the prices with the least bound, scaled so that the cheapest tree costs 1.
  bool move_centre(const std::vector<double>& prices, double cheapest_price) {
    double all = 0;
    for (size_t row = 0; row < prices.size(); ++row)
      all += prices[row] * static_cast<double>(rows_.limit[row]);
    if (!(all < bound_ * cheapest_price * (1 - 1e-12))) return false;
    bound_ = all / cheapest_price;
    for (size_t row = 0; row < prices.size(); ++row) centre_[row] = prices[row] / cheapest_price;
    return true;
  }

  // Returns the tree's number.
  size_t note(Tree tree) {
    const auto [known, fresh] = known_.emplace(tree, trees_.size());
    if (fresh) {
      program_.add(rows_of(rows_, tree));
      trees_.push_back(std::move(tree));
    }
    return known->second;
  }

  // What the trees and prices of the program are worth in whole numbers. Any uses, scaled down until they fit, are a
  // packing; and any prices are a bound, because each tree costs at least what the cheapest one does.
  Packing certify() {
    Packing packing;
    Scaled uses = program_.exact_uses();
    std::vector<Integer> load(rows_.limit.size());
    Integer sum = 0;
    for (size_t i = 0; i < trees_.size(); ++i) {
      if (uses.over[i] <= 0) {
        uses.over[i] = 0;
        continue;
      }
      sum += uses.over[i];
      for (const size_t row : rows_of(rows_, trees_[i])) load[row] += uses.over[i];
    }
    Fraction scale(1, uses.under);
    for (size_t row = 0; row < load.size(); ++row) {
      if (load[row] > 0) scale = std::min(scale, Fraction(rows_.limit[row], load[row]));
    }
    for (size_t i = 0; i < trees_.size(); ++i) {
      if (uses.over[i] == 0) continue;
      packing.trees.push_back(trees_[i]);
      packing.rates.push_back(Fraction(uses.over[i]) * scale);
    }
    packing.rate = Fraction(sum) * scale;
    packing.most = price_bound();
    return packing;
  }

  Fraction price_bound() {
    Scaled prices = program_.exact_prices();
    Integer all = 0;
    for (size_t row = 0; row < prices.over.size(); ++row) {
      if (prices.over[row] < 0) prices.over[row] = 0;
      all += prices.over[row] * rows_.limit[row];
    }
    proof_.set_prices(prices.over);
    auto found = cheapest(proof_, kind_, root_);
    if (!found || found->price == 0) {
      proof_tree_.reset();
      return Fraction(Integer(1) << 200);
    }
    proof_tree_ = std::move(found->tree);
    return Fraction(all, found->price);
  }

  static Packing better(const Packing& before, Packing after) {
    const Fraction most = std::min(before.most, after.most);
    if (after.rate < before.rate) {
      after.trees = before.trees;
      after.rates = before.rates;
      after.rate = before.rate;
    }
    after.most = most;
    return after;
  }

  const TreeKind kind_;
  const size_t root_;
  const Rows rows_;
  PackingProgram program_;
  TreeSearch<double> search_;
  TreeSearch<Integer> proof_;
  std::vector<double> centre_;  // [row]: prices
  double bound_ = INFINITY;     // of the sum of uses, by these prices
  std::vector<Tree> trees_;
  std::map<Tree, size_t> known_;    // numbers in trees_
  std::optional<Tree> proof_tree_;  // the cheapest one at the exact prices
};

}  // namespace

Result<Packing> pack(const Graph& graph, TreeKind kind, size_t root) {
  const size_t ranks = graph.ranks().size();
  if (ranks > kMostPackedRanks || graph.arcs.size() > kMostPackedArcs) {
    return Status(ErrorCode::kResourceExhausted, "the graph has " + std::to_string(ranks) + " ranks and " +
                                                     std::to_string(graph.arcs.size()) +
                                                     " arcs, too many to pack trees of any shape into it");
  }
  return Packer(graph, kind, root).run();
}

}  // namespace netsum::plan
