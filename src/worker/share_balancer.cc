#include "src/worker/share_balancer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/base/assert.h"

namespace netsum {
namespace {

// Parts of kThousand, averaged over all ranks.
constexpr int64_t kMostlyHeld = 700, kHardlyHeld = 300;
// The same of trees, if none is between them: one that could be faster by a sixth is held back for a third of the time.
constexpr int64_t kOftenHeld = 350, kNeverHeld = 50;
// The part of the weights, one in so many, whose stripes may be neither mostly nor hardly held back.
constexpr uint32_t kUnclear = 5;

}  // namespace

ShareBalancer::ShareBalancer(std::span<const uint32_t> weights, bool trees)
    : trees_(trees), weights_(weights.begin(), weights.end()), steps_(weights.size()) {
  NETSUM_ASSERT(weights_.size() > 1 && std::count(weights_.begin(), weights_.end(), 0u) == 0);
  normalize();
}

std::vector<int32_t> ShareBalancer::measurement(std::span<const int64_t> held_us,
                                                std::span<const int64_t> active_us) {
  std::vector<int32_t> elements(held_us.size() + 1);
  if (*std::min_element(active_us.begin(), active_us.end()) <= 0) return elements;
  for (size_t i = 0; i < held_us.size(); ++i) {
    elements[i] =
        static_cast<int32_t>(std::clamp<int64_t>(held_us[i] * kThousand / active_us[i], 0, kThousand));
  }
  elements[held_us.size()] = 1;
  return elements;
}

bool ShareBalancer::take(std::span<const int32_t> sums) {
  return sums.back() > 0 && move(directions(sums));
}

std::vector<bool> ShareBalancer::holding_back(std::span<const int32_t> sums) const {
  const std::vector<int> moves = directions(sums);
  const bool clear = std::any_of(moves.begin(), moves.end(), [](int move) { return move != 0; });
  std::vector<bool> holding(moves.size());
  for (size_t i = 0; i < moves.size(); ++i)
    holding[i] = clear && sums[i] != kNotMeasured && sums[i] / sums.back() <= kHardlyHeld;
  return holding;
}

// Only a clear picture counts: some stripes are mostly held back, and almost all others hardly ever are. The smaller part of
// the weights is wrong.
std::vector<int> ShareBalancer::directions(std::span<const int32_t> sums) const {
  NETSUM_ASSERT(sums.size() == weights_.size() + 1);
  const std::span<const int32_t> held = sums.first(weights_.size());
  const int32_t ranks = sums.back();
  if (ranks <= 0) return std::vector<int>(held.size());
  const auto clear_moves = [&](int64_t often, int64_t seldom) {
    uint32_t mostly = 0, hardly = 0, all = 0;
    std::vector<int> moves(held.size());
    for (size_t i = 0; i < held.size(); ++i) {
      if (held[i] == kNotMeasured) continue;
      all += weights_[i];
      if (held[i] / ranks >= often) {
        moves[i] = 1;
        mostly += weights_[i];
      } else if (held[i] / ranks <= seldom) {
        moves[i] = -1;
        hardly += weights_[i];
      }
    }
    const bool clear = mostly > 0 && hardly > 0 && all - mostly - hardly <= all / kUnclear;
    const int wrong = clear ? (mostly < hardly ? 1 : -1) : 0;
    for (int& move : moves) move = move == wrong ? move : 0;
    return std::pair(clear, moves);
  };
  const auto [clear, moves] = clear_moves(kMostlyHeld, kHardlyHeld);
  return clear || !trees_ ? moves : clear_moves(kOftenHeld, kNeverHeld).second;
}

// Only what was seen twice counts.
bool ShareBalancer::move(const std::vector<int>& directions) {
  bool moved = false;
  for (size_t i = 0; i < weights_.size(); ++i) {
    Step& step = steps_[i];
    const int before = std::exchange(step.seen, directions[i]);
    if (directions[i] == 0 || before != directions[i]) continue;
    if (step.direction == directions[i]) {
      step.size = std::min(step.size * 3 / 2, kLargestStep);
    } else if (step.direction != 0) {
      step.size = std::max(step.size / 2, kSmallestStep);
    }
    step.direction = directions[i];
    const uint32_t factor = directions[i] > 0 ? kWhole + step.size : kWhole - step.size;
    weights_[i] = weights_[i] * factor / kWhole;
    moved = true;
  }
  if (moved) normalize();
  return moved;
}

// To the sum kSum, almost: each is rounded down, but to 1 at least.
void ShareBalancer::normalize() {
  const uint64_t sum = std::accumulate(weights_.begin(), weights_.end(), uint64_t{0});
  NETSUM_ASSERT(sum > 0);
  for (uint32_t& weight : weights_)
    weight = std::max(1u, static_cast<uint32_t>(uint64_t{weight} * kSum / sum));
}

}  // namespace netsum
