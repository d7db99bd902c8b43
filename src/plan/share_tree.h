// The linear program of the shares, solved in whole numbers.
//
// Unknown are the shares of the gradient that each leaf (a port of a place, or an embedded shard) sums. Every link, and
// every limit of a place, is a constraint on the shares below one node of a tree:
//
//   fixed + slope * (shares below the node) <= time * rate
//
// where the left side is the link's load in units of the gradient. Nodes are a rack, a place with all its ports, and a
// leaf; the shares below the root sum to 1. For a given time each node has thus a smallest and a largest share, and a
// pass from the leaves to the root says whether the program has a solution. The smallest such time is found by
// bisection. Shares are multiples of 1 / period, because the weights of a ChunkMap are: the solution is the best among
// all weights with this sum. A long period gives the solution in real numbers.
//
// Only additions, multiplications, divisions and comparisons of doubles, in a fixed order: the same result on every
// host. Thread rule: const functions use scratch memory, so one thread at a time.
#ifndef NETSUM_SRC_PLAN_SHARE_TREE_H_
#define NETSUM_SRC_PLAN_SHARE_TREE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace netsum::plan {

// The order in which leaves are preferred if the time allows a choice: a switch's share costs nobody's link, a shard's
// costs a rank's link and CPU.
enum class Preference : uint8_t { kSwitch, kSpareHost, kShard, kNone };

class ShareTree {
 public:
  struct Constraint {
    std::string name;
    double fixed = 0;
    double slope = 0;
    double rate = 0;
  };
  // For each preference, the fraction of its leaves' largest shares that a solution may use.
  using Use = std::array<double, 4>;
  static constexpr Use kAll = {1, 1, 1, 1};

  static constexpr int64_t kRealNumbers = int64_t{1} << 48;
  static constexpr int kRoot = 0;

  ShareTree();
  // Parents are added before their children. An inner node has no preference (kNone).
  int add(int parent, Preference preference);
  // The constraints of a node differ at most in their rates and slopes: their fixed loads, over the slope, are the same.
  // A load that differs otherwise gets a node of its own.
  void constrain(int node, Constraint constraint);

  bool feasible(double time, int64_t period, const Use& use) const;
  // The smallest time from `low` on for which feasible() with all use, to 12 digits. `high` is feasible.
  double smallest_time(double low, double high, int64_t period) const;
  // A time for which any shares are feasible.
  double ample_time() const;
  // The smallest use that is feasible: first of shards, then of spare hosts.
  Use smallest_use(double time, int64_t period) const;
  // [node]: a solution, in multiples of 1 / period. Requires feasible().
  std::vector<int64_t> solve(double time, int64_t period, const Use& use) const;

  size_t size() const { return nodes_.size(); }
  // -1 above the root.
  int parent(int node) const { return nodes_[static_cast<size_t>(node)].parent; }
  const std::vector<std::pair<int, Constraint>>& constraints() const { return constraints_; }

 private:
  // A share's limit, times the period: (time * rate - fixed) * period. Both are divided by the slope's magnitude.
  struct Bound {
    bool any = false;
    double fixed = 0;
    double rate = 0;
  };
  struct Node {
    int parent = -1;
    Preference preference = Preference::kNone;
    Bound upper;
    Bound lower;  // the same with the other sign: (fixed - time * rate) * period
  };
  struct Range {
    int64_t least = 0;
    int64_t most = 0;
  };

  static void tighten(Bound& known, Bound bound);

  std::vector<Node> nodes_;
  std::vector<std::pair<int, Constraint>> constraints_;
  double min_time_ = 0;               // from constraints whose load does not depend on the shares
  mutable std::vector<Range> below_;  // scratch: sums over the children, then the node's range
};

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_SHARE_TREE_H_
