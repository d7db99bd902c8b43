// The linear program of the shares, solved in integers.
//
// The unknowns are the shares of the gradient that the leaves (a port of a place, or an embedded shard) sum. Every link,
// and every limit of a place, is a constraint on the shares below one node of a tree:
//
//   fixed + slope * (shares below the node) <= time * rate
//
// where the left side is the link's load in units of the gradient. A node is a rack, a place with all its ports, or a
// leaf; the shares below the root sum to 1. For a given time, each node thus has a smallest and a largest share, and a
// pass from the leaves to the root decides whether the program has a solution. Bisection finds the smallest such time.
// Shares are multiples of 1 / period, like the weights of a ChunkMap, so the solution is the best among all weights with
// this sum. A long period approximates the solution in real numbers.
//
// The computation only adds, multiplies, divides and compares doubles, in a fixed order, so every host gets the same
// result. Thread rule: one thread at a time, because const functions use scratch memory.
#ifndef NETSUM_SRC_PLAN_SHARE_TREE_H_
#define NETSUM_SRC_PLAN_SHARE_TREE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace netsum::plan {

// The order in which leaves are preferred among solutions with equal times. The share of a switch loads no further link,
// that of a shard loads a rank's link and CPU.
enum class Preference : uint8_t { kSwitch, kSpareHost, kShard, kInnerNode };

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
  // Adds a node below `parent`, and returns its number. An inner node has no preference (kInnerNode).
  int add(int parent, Preference preference);
  // All constraints of a node must have the same ratio of fixed load to slope. Add another node for one that has not.
  void constrain(int node, Constraint constraint);

  // Whether shares with this time exist.
  bool feasible(double time, int64_t period, const Use& use) const;
  // The smallest feasible time in [low, high] with kAll, to 12 digits. `high` must be feasible.
  double smallest_time(double low, double high, int64_t period) const;
  // A time for which any shares are feasible.
  double ample_time() const;
  // Minimises first the use of shards, then that of spare hosts, then that of switches. The leaves of a preference take
  // parts in proportion to their capacities.
  Use smallest_use(double time, int64_t period) const;
  // [node]: the shares of a solution, in units of 1 / period. Requires feasible().
  std::vector<int64_t> solve(double time, int64_t period, const Use& use) const;

  size_t size() const { return nodes_.size(); }
  // -1 above the root.
  int parent(int node) const { return nodes_[static_cast<size_t>(node)].parent; }
  const std::vector<std::pair<int, Constraint>>& constraints() const { return constraints_; }

 private:
  // The limit (time * rate - fixed) * period of a share in units of 1 / period; `rate` and `fixed` are divided by the
  // absolute value of the slope.
  struct Bound {
    bool any = false;
    double fixed = 0;
    double rate = 0;
  };
  struct Node {
    int parent = -1;
    Preference preference = Preference::kInnerNode;
    Bound upper;
    Bound lower;  // from a negative slope: (fixed - time * rate) * period
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
