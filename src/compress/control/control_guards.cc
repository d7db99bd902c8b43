#include "src/compress/control/control_guards.h"

#include <algorithm>
#include <cmath>

namespace netsum::compress {
namespace {

// 256 times the binary logarithms of a half, and of one and a half.
constexpr int64_t kHalved = -256, kHalfMore = 150;
// For so many steps a bucket whose residual was too large stays below its level: twice as many each time.
constexpr uint64_t kFirstCap = 4 * Guards::kNormPeriod, kLongestCap = 64 * Guards::kNormPeriod;

template <size_t kSize>
int64_t median_of(const std::array<int64_t, kSize>& logs, size_t begin, size_t count) {
  std::array<int64_t, kSize> sorted = logs;
  const auto first = sorted.begin() + static_cast<ptrdiff_t>(begin);
  std::sort(first, first + static_cast<ptrdiff_t>(count));
  return first[static_cast<ptrdiff_t>(count / 2)];
}

}  // namespace

void Guards::learn(const BucketNumbers& numbers, const CompressionControlOptions& options, uint8_t level,
                   uint64_t step) {
  if (numbers.gradient_log == kNoNorm) return;
  std::copy_backward(logs_.begin(), logs_.end() - 1, logs_.end());
  logs_.front() = numbers.gradient_log;
  ++norms_;
  const auto cap_log = static_cast<int64_t>(std::lround(256 * std::log2(options.residual_cap)));
  const bool above = numbers.residual_log != kNoNorm &&
                     static_cast<int64_t>(numbers.residual_log) - numbers.gradient_log > cap_log;
  if (!above || level == 0 || step < capped_until_) return;
  capped_for_ = std::clamp(2 * capped_for_, kFirstCap, kLongestCap);
  capped_until_ = step + capped_for_;
  capped_level_ = static_cast<uint8_t>(level - 1);
}

bool Guards::critical() const {
  if (norms_ < 2 * kHalf) return false;
  const int64_t change = median_of(logs_, 0, kHalf) - median_of(logs_, kHalf, kHalf);
  return change <= kHalved || change >= kHalfMore;
}

uint8_t Guards::most(const CompressionControlOptions& options, uint64_t step) const {
  if (step <= options.warmup_steps) return 0;
  size_t most = options.levels.size() - 1;
  if (critical()) most = std::min<size_t>(most, options.critical_level);
  if (step < capped_until_) most = std::min<size_t>(most, capped_level_);
  return static_cast<uint8_t>(most);
}

void Guards::save(std::vector<int64_t>* to) const {
  to->insert(to->end(), logs_.begin(), logs_.end());
  for (const uint64_t number : {norms_, uint64_t{capped_level_}, capped_until_, capped_for_})
    to->push_back(static_cast<int64_t>(number));
}

void Guards::restore(const int64_t** from) {
  for (int64_t& log : logs_) log = *(*from)++;
  norms_ = static_cast<uint64_t>(*(*from)++);
  capped_level_ = static_cast<uint8_t>(*(*from)++);
  capped_until_ = static_cast<uint64_t>(*(*from)++);
  capped_for_ = static_cast<uint64_t>(*(*from)++);
}

}  // namespace netsum::compress
