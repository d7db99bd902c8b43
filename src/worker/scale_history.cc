#include "src/worker/scale_history.h"

#include "src/base/assert.h"

namespace netsum {

bool ScaleHistory::Prediction::trusts(size_t begin, size_t count) const {
  if (!reliable || begin + count > bytes.size()) return false;
  const auto from = recurred.begin() + static_cast<ptrdiff_t>(begin);
  return std::all_of(from, from + static_cast<ptrdiff_t>(count), [](uint8_t n) { return n >= kTrusted; });
}

uint64_t ScaleHistory::find(uint64_t kind) {
  const size_t known = static_cast<size_t>(std::min<uint64_t>(begun_, kOperations - 1));
  size_t best = 0;  // equal_[0] is always 0
  for (size_t distance = 1; distance <= known; ++distance) {
    equal_[distance] = entry(begun_ - distance).kind == kind ? equal_[distance] + 1 : 0;
    if (equal_[distance] > equal_[best]) best = distance;
  }
  const bool follows = following_ < begun_ && begun_ - following_ <= known && entry(following_).kind == kind;
  if (follows && followed_equal_ >= equal_[best]) {
    ++followed_equal_;
  } else if (best > 0) {
    following_ = begun_ - best;
    followed_equal_ = equal_[best];
  } else {
    followed_equal_ /= 2;
    return begun_;
  }
  return following_++;
}

ScaleHistory::Prediction ScaleHistory::begin(uint64_t kind) {
  const uint64_t found = find(kind);
  prediction_ = {};
  if (found != begun_) prediction_ = {entry(found).bytes, entry(found).recurred, entry(found).reliable};
  entry(begun_++).kind = kind;
  return prediction_;
}

void ScaleHistory::learn(std::span<const uint8_t> agreed) {
  NETSUM_ASSERT(begun_ > 0);
  Entry& now = entry(begun_ - 1);
  now.bytes.assign(agreed.begin(), agreed.end());
  now.recurred.assign(agreed.size(), 0);
  size_t trusted = 0, wrong = 0;
  if (prediction_.bytes.size() == agreed.size()) {
    for (size_t i = 0; i < agreed.size(); ++i) {
      const bool right = agreed[i] == prediction_.bytes[i];
      if (right) now.recurred[i] = std::min<uint8_t>(kMost, prediction_.recurred[i] + 1);
      trusted += prediction_.recurred[i] >= kTrusted ? 1 : 0;
      wrong += prediction_.recurred[i] >= kTrusted && !right ? 1 : 0;
    }
  }
  now.reliable = 32 * wrong <= trusted;
  prediction_ = {};
}

}  // namespace netsum
