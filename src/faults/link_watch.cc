#include "src/faults/link_watch.h"

#include <algorithm>
#include <cmath>

namespace netsum::faults {
namespace {

// How far p0 is above the others' loss, and p1 above p0: chance alone must not make the difference.
constexpr double kMargin = 1.5, kRatio = 4;
// A p1 of 0.8: with so few packets, or so much loss, nothing can be told.
constexpr double kMostUsual = 0.2;
// Means of fewer contributions say little.
constexpr double kEnough = 256;
constexpr double kSlow = 3, kMostSlow = 6;  // in kContributions

// Of the others' values; 0 if there are none.
double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void LinkWatch::take(const MemberTotals& totals, Member* member) {
  const MemberTotals& before = member->before;
  for (size_t direction = 0; direction < kDirections; ++direction) {
    Edge& edge = member->edges[direction];
    const bool anew =
        totals.kept[direction] < before.kept[direction] || totals.lost[direction] < before.lost[direction];
    edge.new_kept = anew ? 0 : static_cast<double>(totals.kept[direction] - before.kept[direction]);
    edge.new_lost = anew ? 0 : static_cast<double>(totals.lost[direction] - before.lost[direction]);
    edge.kept += edge.new_kept;
    edge.lost += edge.new_lost;
    while (edge.kept > kMemory) {
      edge.kept /= 2;
      edge.lost /= 2;
    }
  }
  if (totals.contributions >= before.contributions && totals.late_us >= before.late_us) {
    member->contributions += static_cast<double>(totals.contributions - before.contributions);
    member->late_us += static_cast<double>(totals.late_us - before.late_us);
  }
  member->before = totals;
}

void LinkWatch::observe(std::span<const MemberTotals> totals) {
  if (members_.size() != totals.size()) members_.assign(totals.size(), {});
  for (size_t member = 0; member < totals.size(); ++member) take(totals[member], &members_[member]);
  for (size_t direction = 0; direction < kDirections; ++direction) test_losses(direction);
  test_lateness();
}

void LinkWatch::test_losses(size_t direction) {
  for (size_t member = 0; member < members_.size(); ++member) {
    std::vector<double> losses;
    for (size_t other = 0; other < members_.size(); ++other) {
      const Edge& edge = members_[other].edges[direction];
      // One more than were lost: few packets do not show that an edge loses none.
      if (other != member) losses.push_back((edge.lost + 1) / (edge.lost + edge.kept + 1));
    }
    Edge& edge = members_[member].edges[direction];
    edge.usual = median(std::move(losses));
    const double p0 = std::clamp(kMargin * edge.usual, kUsualLoss, kMostUsual);
    const double p1 = std::max(kBadLoss, kRatio * p0);
    const double evidence = edge.new_lost * std::log(p1 / p0) + edge.new_kept * std::log((1 - p1) / (1 - p0));
    edge.sum = std::clamp(edge.sum + evidence, 0.0, kMost);
    if (edge.sum >= kAlarm) edge.bad = true;
    if (edge.sum == 0) edge.bad = false;
  }
}

void LinkWatch::test_lateness() {
  const bool enough = std::all_of(members_.begin(), members_.end(),
                                  [](const Member& member) { return member.contributions >= kEnough; });
  if (!enough || members_.size() < 2) return;
  for (Member& member : members_) member.late = member.late_us / member.contributions;
  for (Member& member : members_) {
    std::vector<double> others;
    for (const Member& other : members_)
      if (&other != &member) others.push_back(other.late);
    member.usual = median(std::move(others));
    const bool later = member.late > kTimesLater * member.usual + kLaterUs;
    const double evidence = member.contributions / kContributions;
    member.sum = std::clamp(member.sum + (later ? evidence : -evidence), 0.0, kMostSlow);
    if (member.sum >= kSlow) member.slow = true;
    if (member.sum == 0) member.slow = false;
  }
  for (Member& member : members_) member.contributions = member.late_us = 0;
}

std::vector<Fault> LinkWatch::faults() const {
  std::vector<Fault> found;
  for (size_t number = 0; number < members_.size(); ++number) {
    const Member& member = members_[number];
    for (size_t direction = 0; direction < kDirections; ++direction) {
      const Edge& edge = member.edges[direction];
      if (!edge.bad) continue;
      const double loss = edge.lost / std::max(1.0, edge.lost + edge.kept);
      found.push_back({number, static_cast<Kind>(direction), loss, edge.usual});
    }
    if (member.slow) found.push_back({number, Kind::kSlow, member.late, member.usual});
  }
  return found;
}

}  // namespace netsum::faults
