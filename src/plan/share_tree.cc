#include "src/plan/share_tree.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/assert.h"

namespace netsum::plan {
namespace {

// Bisection ends at this relative width, which is above the rounding errors.
constexpr double kWidth = 1e-12;

}  // namespace

ShareTree::ShareTree() {
  nodes_.emplace_back();
}

int ShareTree::add(int parent, Preference preference) {
  const int node = static_cast<int>(nodes_.size());
  NETSUM_ASSERT(parent >= 0 && parent < node);
  nodes_.push_back({.parent = parent, .preference = preference, .upper = {}, .lower = {}});
  return node;
}

void ShareTree::constrain(int node, Constraint constraint) {
  Node& at = nodes_[static_cast<size_t>(node)];
  const double slope = constraint.slope;
  if (slope == 0) {
    min_time_ = std::max(min_time_, constraint.fixed / constraint.rate);
  } else {
    tighten(slope > 0 ? at.upper : at.lower,
            {true, constraint.fixed / std::abs(slope), constraint.rate / std::abs(slope)});
  }
  constraints_.emplace_back(node, std::move(constraint));
}

// Both directions of a link constrain the same shares, so only the slower one matters.
void ShareTree::tighten(Bound& known, Bound bound) {
  NETSUM_ASSERT(!known.any || known.fixed == bound.fixed);
  if (!known.any || bound.rate < known.rate) known = bound;
}

bool ShareTree::feasible(double time, int64_t period, const Use& use) const {
  if (time < min_time_) return false;
  const auto scale = static_cast<double>(period);
  below_.assign(nodes_.size(), Range{});
  for (size_t n = nodes_.size(); n-- > 0;) {
    const Node& node = nodes_[n];
    Range& range = below_[n];
    if (node.preference != Preference::kInnerNode) range.most = period;
    if (node.upper.any) {
      const double most = (time * node.upper.rate - node.upper.fixed) * scale;
      if (most < 0) return false;  // the fixed load alone takes longer
      range.most = std::min(range.most, static_cast<int64_t>(std::min(most, scale)));
    }
    if (node.lower.any) {
      const double least = std::ceil((node.lower.fixed - time * node.lower.rate) * scale);
      if (least > scale) return false;
      range.least = std::max(range.least, static_cast<int64_t>(std::max(least, 0.0)));
    }
    const double part = use[static_cast<size_t>(node.preference)];
    if (part < 1) range.most = static_cast<int64_t>(static_cast<double>(range.most) * part);
    range.most = std::min(range.most, period);
    if (range.least > range.most) return false;
    if (n == kRoot) break;
    Range& parent = below_[static_cast<size_t>(node.parent)];
    parent.least += range.least;
    parent.most += range.most;
  }
  return below_[kRoot].least <= period && below_[kRoot].most >= period;
}

double ShareTree::smallest_time(double low, double high, int64_t period) const {
  low = std::max(low, min_time_);
  if (feasible(low, period, kAll)) return low;
  while (high - low > high * kWidth) {
    const double middle = low + (high - low) / 2;
    (feasible(middle, period, kAll) ? high : low) = middle;
  }
  return high;
}

double ShareTree::ample_time() const {
  double time = min_time_;
  for (const auto& [node, constraint] : constraints_) {
    time = std::max(time, (std::abs(constraint.fixed) + std::abs(constraint.slope)) / constraint.rate);
  }
  return 2 * time;  // room for rounding
}

ShareTree::Use ShareTree::smallest_use(double time, int64_t period) const {
  Use use = kAll;
  for (const Preference preference : {Preference::kShard, Preference::kSpareHost, Preference::kSwitch}) {
    double& part = use[static_cast<size_t>(preference)];
    double low = 0;
    double high = 1;
    part = low;
    if (feasible(time, period, use)) continue;
    while (high - low > 1e-9) {
      part = low + (high - low) / 2;
      (feasible(time, period, use) ? high : low) = part;
    }
    part = high;
  }
  return use;
}

std::vector<int64_t> ShareTree::solve(double time, int64_t period, const Use& use) const {
  NETSUM_ASSERT(feasible(time, period, use));
  // From the root down: each child gets its minimum, and the rest is divided in proportion to the remaining ranges of the
  // children, so that the shares of equal leaves differ by one unit at most.
  std::vector<int64_t> shares(nodes_.size());
  std::vector<std::vector<size_t>> children(nodes_.size());
  for (size_t n = 1; n < nodes_.size(); ++n) children[static_cast<size_t>(nodes_[n].parent)].push_back(n);
  shares[kRoot] = period;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    int64_t rest = shares[n];
    int64_t room = 0;
    for (const size_t child : children[n]) {
      shares[child] = below_[child].least;
      rest -= below_[child].least;
      room += below_[child].most - below_[child].least;
    }
    for (const size_t child : children[n]) {
      const int64_t own = below_[child].most - below_[child].least;
      if (own == 0) continue;
      // At least what the remaining children cannot take, and at most what this one can.
      const double fraction = static_cast<double>(own) / static_cast<double>(room);
      int64_t more = std::llround(static_cast<double>(rest) * fraction);
      more = std::clamp(more, std::max<int64_t>(0, rest - (room - own)), std::min(own, rest));
      shares[child] += more;
      rest -= more;
      room -= own;
    }
  }
  return shares;
}

}  // namespace netsum::plan
