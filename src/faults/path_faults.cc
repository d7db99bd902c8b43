#include "src/faults/path_faults.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "src/base/assert.h"

namespace netsum::faults {
namespace {

constexpr double kLeastLoss = 1e-6, kMostLoss = 0.999;
// Losses are searched on a grid, in steps of this factor, and then between the neighbours of the best one, which divides the
// interval by 1.6 each time.
constexpr double kStep = 1.5;
constexpr int kRefinements = 30;
// Of usual_loss().
constexpr double kAboveQuartile = 1.5, kLeastUsual = 1e-4, kMostUsualOfPath = 0.2;

// Of a link: number of the path, share.
using Over = std::vector<std::pair<size_t, double>>;
// Of one path, or of several: packets lost and kept, the probability that one passes without the link, the share.
using Counts = std::vector<std::tuple<double, double, double, double>>;

// How much more likely the counts of a path over the link are if the link loses q, beside what passes without it.
double evidence_of_path(double lost, double kept, double passes, double q) {
  return lost * std::log((1 - passes * (1 - q)) / (1 - passes)) + kept * std::log1p(-q);
}

// log(1 - share + share exp(evidence)).
double mixed(double evidence, double share) {
  if (share >= 1) return evidence;
  const double without = std::log1p(-share), with = std::log(share) + evidence;
  return std::max(without, with) + std::log1p(std::exp(-std::abs(without - with)));
}

double evidence_of(const Counts& counts, double q) {
  double sum = 0;
  for (const auto& [lost, kept, passes, share] : counts)
    sum += mixed(evidence_of_path(lost, kept, passes, q), share);
  return sum;
}

// Paths that certainly are over the link, and pass alike without it, count as one.
Counts counts_of(std::span<const PathCount> paths, const Over& over, const std::vector<double>& passes) {
  Counts counts;
  std::map<double, std::pair<double, double>> certain;
  for (const auto& [path, share] : over) {
    const auto lost = static_cast<double>(paths[path].lost), kept = static_cast<double>(paths[path].kept);
    if (share < 1) {
      counts.emplace_back(lost, kept, passes[path], share);
    } else {
      certain[passes[path]].first += lost;
      certain[passes[path]].second += kept;
    }
  }
  for (const auto& [alike, sums] : certain) counts.emplace_back(sums.first, sums.second, alike, 1);
  return counts;
}

// The loss of most evidence, and this evidence. Where routes are not known, there may be several maxima.
std::pair<double, double> most_likely(const Counts& counts) {
  constexpr double kPart = 0.618033988749895;
  double best = 0, q = 0;
  for (double at = kLeastLoss; at < kMostLoss; at *= kStep) {
    const double evidence = evidence_of(counts, at);
    if (evidence > best) std::tie(best, q) = std::pair(evidence, at);
  }
  if (q == 0) return {0, 0};
  double low = q / kStep, high = std::min(q * kStep, kMostLoss);
  for (int step = 0; step < kRefinements; ++step) {
    const double a = high - kPart * (high - low), b = low + kPart * (high - low);
    if (evidence_of(counts, a) > evidence_of(counts, b)) {
      high = b;
    } else {
      low = a;
    }
  }
  q = (low + high) / 2;
  return {evidence_of(counts, q), q};
}

double share_of(const PathCount& path, size_t link) {
  for (const auto& [number, share] : path.links)
    if (number == link) return share;
  return 0;
}

}  // namespace

double usual_loss(std::span<const PathCount> paths) {
  std::vector<double> losses;
  for (const PathCount& path : paths) {
    const auto lost = static_cast<double>(path.lost), all = lost + static_cast<double>(path.kept);
    // One more than were lost: few packets do not show that a path loses none.
    if (all > 0) losses.push_back((lost + 1) / (all + 1));
  }
  if (losses.empty()) return kLeastUsual;
  const auto quartile = losses.begin() + static_cast<std::ptrdiff_t>((losses.size() - 1) / 4);
  std::nth_element(losses.begin(), quartile, losses.end());
  return std::clamp(kAboveQuartile * *quartile, kLeastUsual, kMostUsualOfPath);
}

std::vector<BadLink> bad_links(std::span<const PathCount> paths, size_t links, double usual, size_t most) {
  NETSUM_ASSERT(usual > 0 && usual < 1);
  std::vector<Over> over(links);
  for (size_t path = 0; path < paths.size(); ++path) {
    for (const auto& [link, share] : paths[path].links) {
      NETSUM_ASSERT(link < links && share > 0);
      over[link].emplace_back(path, share);
    }
  }
  std::vector<double> passes(paths.size(), 1 - usual);
  std::vector<BadLink> bad;
  while (bad.size() < most) {
    std::vector<std::pair<double, double>> likely(links);  // evidence, loss
    for (size_t link = 0; link < links; ++link)
      likely[link] = most_likely(counts_of(paths, over[link], passes));
    const auto best = std::max_element(likely.begin(), likely.end());
    if (best == likely.end() || best->first < kBlame) break;
    BadLink found{.links = {}, .loss = best->second, .evidence = best->first};
    for (size_t link = 0; link < links; ++link)
      if (likely[link].first >= best->first - kLead) found.links.push_back(link);
    for (const auto& [path, share] : over[static_cast<size_t>(best - likely.begin())]) {
      // With the probability, after the counts, that the path is over the link.
      const double evidence =
          evidence_of_path(static_cast<double>(paths[path].lost), static_cast<double>(paths[path].kept),
                           passes[path], found.loss);
      const double is_over = share >= 1 ? 1 : std::exp(std::log(share) + evidence - mixed(evidence, share));
      passes[path] *= 1 - is_over * found.loss;
    }
    bad.push_back(std::move(found));
  }
  return bad;
}

size_t path_that_tells(std::span<const PathCount> candidates, size_t one, size_t other) {
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const PathCount& path) {
    return (share_of(path, one) >= 1) != (share_of(path, other) >= 1);
  });
  return static_cast<size_t>(found - candidates.begin());
}

}  // namespace netsum::faults
