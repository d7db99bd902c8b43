#include "src/compress/control/cost_model.h"

#include <algorithm>

namespace netsum::compress {

int64_t Median::value() const {
  std::array<int64_t, kSize> sorted = samples_;
  const size_t count = std::min<uint64_t>(added_, kSize);
  if (count == 0) return 0;
  std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(count));
  return sorted[(count - 1) / 2];
}

void Median::save(std::vector<int64_t>* to) const {
  to->push_back(static_cast<int64_t>(added_));
  to->insert(to->end(), samples_.begin(), samples_.end());
}

void Median::restore(const int64_t** from) {
  added_ = static_cast<uint64_t>(*(*from)++);
  for (int64_t& sample : samples_) sample = *(*from)++;
}

int64_t step_ns(const Costs& costs, std::span<const BucketCost> buckets, const Levels& levels) {
  int64_t computed = 0, summed = 0, decoded = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const BucketCost& bucket = buckets[i];
    const LevelCost& level = costs.levels[levels[i]];
    const auto elements = static_cast<int64_t>(bucket.elements);
    const int64_t bytes = static_cast<int64_t>(bucket.other_bytes) + elements * level.milli_bytes / 1000;
    computed += bucket.compute_ns + elements * level.encode_ps / 1000;
    summed = std::max(summed, computed) + costs.latency_ns + bytes * costs.byte_ps / 1000 +
             elements * level.extra_ps / 1000;
    decoded = std::max(decoded, summed) + elements * level.decode_ps / 1000;
  }
  return std::max(computed, decoded);
}

namespace {

class Search {
 public:
  Search(const Costs& costs, std::span<const BucketCost> buckets)
      : costs_(costs), buckets_(buckets), levels_(buckets.size(), 0), ns_(step_ns(costs, buckets, levels_)) {}

  int64_t ns() const { return ns_; }
  const Levels& levels() const { return levels_; }

  // The best of the same level everywhere, then of each bucket in turn.
  void find_fastest() {
    for (size_t level = 1; level < costs_.levels.size(); ++level) {
      Levels same(buckets_.size());
      for (size_t i = 0; i < same.size(); ++i)
        same[i] = std::min(static_cast<uint8_t>(level), buckets_[i].most);
      const int64_t ns = step_ns(costs_, buckets_, same);
      if (ns >= ns_) continue;
      ns_ = ns;
      levels_ = std::move(same);
    }
    for (size_t i = 0; i < levels_.size(); ++i)
      for (uint8_t level = 0; level <= buckets_[i].most; ++level)
        if (const int64_t ns = with(i, level); ns < ns_) set(i, level, ns);
  }

  // The first buckets have the most time until the end of the backward pass.
  void relax(int64_t most_ns) {
    for (size_t i = 0; i < levels_.size(); ++i) {
      for (uint8_t level = 0; level < levels_[i]; ++level) {
        if (const int64_t ns = with(i, level); ns <= most_ns) {
          set(i, level, ns);
          break;
        }
      }
    }
  }

 private:
  int64_t with(size_t bucket, uint8_t level) {
    const uint8_t before = levels_[bucket];
    levels_[bucket] = level;
    const int64_t ns = step_ns(costs_, buckets_, levels_);
    levels_[bucket] = before;
    return ns;
  }
  void set(size_t bucket, uint8_t level, int64_t ns) {
    levels_[bucket] = level;
    ns_ = ns;
  }

  const Costs& costs_;
  std::span<const BucketCost> buckets_;
  Levels levels_;
  int64_t ns_;
};

}  // namespace

Choice choose(const Costs& costs, std::span<const BucketCost> buckets, int64_t payoff_permille,
              int64_t slack_percent) {
  Search search(costs, buckets);
  Choice choice{.levels = search.levels(), .ns = search.ns(), .uncompressed_ns = search.ns()};
  search.find_fastest();
  if (search.ns() > choice.uncompressed_ns / 1000 * (1000 - payoff_permille)) return choice;
  search.relax(search.ns() + search.ns() / 100 * slack_percent);
  choice.levels = search.levels();
  choice.ns = search.ns();
  return choice;
}

}  // namespace netsum::compress
