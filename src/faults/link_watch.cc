#include "src/faults/link_watch.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace netsum::faults {
namespace {

// How far p0 is above the others' loss, and p1 above p0: chance alone must not make the difference.
constexpr double kMargin = 1.5, kRatio = 4;
// A p1 of 0.8: with so few packets, or so much loss, nothing can be told.
constexpr double kMostUsual = 0.2;
// Means of fewer contributions say little.
constexpr double kEnough = 256;
constexpr double kSlow = 3, kMostSlow = 6;  // in kContributions
// Of Beginnings.
constexpr uint64_t kEnoughBeginnings = 64;
constexpr double kBeginsLate = 0.5, kGrows = 4, kWindow = 256;
// How many packets a call of a busy host finds at least, and how many times as many as those of the others; how many times as many
// a call behind a slow link finds at most.
constexpr double kQueue = 4, kTimesMore = 2, kMostOfLink = 1.5;

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
  draw_line(totals.begin, member);
  if (totals.receive_calls >= before.receive_calls && totals.packets_received >= before.packets_received) {
    member->calls += static_cast<double>(totals.receive_calls - before.receive_calls);
    member->packets += static_cast<double>(totals.packets_received - before.packets_received);
    while (member->calls > kCallMemory) {
      member->calls /= 2;
      member->packets /= 2;
    }
  }
  member->before = totals;
}

void LinkWatch::draw_line(const Beginnings& now, Member* member) {
  Beginnings& since = member->anchor;
  if (now.count < since.count || now.y_us < since.y_us || now.xy_us < since.xy_us) since = {};
  const Beginnings added = now - since;
  if (added.count < kEnoughBeginnings) return;
  std::tie(member->a_us, member->b_us) = line_through(added);
  since = now;
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

std::pair<double, double> line_through(const Beginnings& sums) {
  if (sums.count == 0) return {};
  const auto n = static_cast<double>(sums.count), x = static_cast<double>(sums.x),
             y = static_cast<double>(sums.y_us);
  const double spread = n * static_cast<double>(sums.xx) - x * x;
  const double b = spread <= 0 ? 0 : (n * static_cast<double>(sums.xy_us) - x * y) / spread;
  return {(y - b * x) / n, b};
}

// Late as a whole, by as much as it is later, and over its whole window not a quarter of that later.
bool LinkWatch::only_begins_late(size_t number) const {
  const Member& member = members_[number];
  return member.a_us > kBeginsLate * member.late && member.b_us * kWindow < member.a_us / kGrows;
}

Kind cause_of(double packets_per_call, double others) {
  if (packets_per_call <= 0 || others <= 0) return Kind::kSlow;
  if (packets_per_call >= kTimesMore * others && packets_per_call >= kQueue) return Kind::kSlowHost;
  return packets_per_call <= kMostOfLink * others ? Kind::kSlowLink : Kind::kSlow;
}

Kind LinkWatch::cause(size_t member) const {
  std::vector<double> others;
  for (size_t other = 0; other < members_.size(); ++other)
    if (other != member) others.push_back(members_[other].packets_per_call());
  return cause_of(members_[member].packets_per_call(), median(std::move(others)));
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
    if (member.slow && !only_begins_late(number))
      found.push_back({number, cause(number), member.late, member.usual});
  }
  return found;
}

}  // namespace netsum::faults
