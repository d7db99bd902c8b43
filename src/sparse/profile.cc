#include "src/sparse/profile.h"

#include <algorithm>

namespace netsum::sparse {
namespace {

// With so much of the bytes of the dense tensor, an index is worth its processor time.
constexpr double kWorthwhile = 0.95;
// A dense tensor is counted again after so many operations, and tried again after so many counts, or when the ranks have
// this part of what they had: a count costs a round trip and a scan, a trial up to 3 % of the bytes.
constexpr uint32_t kCountPeriod = 16;
constexpr uint32_t kTrialPeriod = 4 * kCountPeriod;
constexpr double kMuchSparser = 0.75;
// The part of its greatest possible size that a union is expected to have at least, whatever it was last: otherwise the levels
// that suit a few rows of a large table would have so large blocks that the index of a few more fills the memory.
constexpr double kSurprise = 0.125;
// A sparse tensor is counted when a rank has more than so many times its units of the last count, and kFewUnits, or when the
// union has less than this part of its units then.
constexpr uint64_t kMuchMore = 2;
constexpr uint64_t kFewUnits = 8;
constexpr double kMuchLess = 0.25;

}  // namespace

double union_of_random_sets(const Shape& shape, uint64_t stored) {
  if (shape.positions == 0) return 0;
  const double each =
      std::min(1.0, static_cast<double>(stored) / shape.ranks / static_cast<double>(shape.positions));
  double united = 0;  // part of the positions
  for (int rank = 0; rank < shape.ranks; ++rank) united += (1 - united) * each;
  return united * static_cast<double>(shape.positions);
}

bool Profile::wants_count() {
  if (!dense_) return !known_;
  return dense_operations_++ % kCountPeriod == kCountPeriod - 1;
}

bool Profile::prefers_dense(const Shape& shape, uint64_t stored) {
  if (!dense_) {
    if (known_) return false;
    // The union is at least what a rank has on average, and the index is at least nothing.
    const double least = static_cast<double>(stored) / shape.ranks * shape.unit_bytes;
    if (least <= kWorthwhile * shape.dense_bytes()) return false;
    dense_ = true;
    stored_ = static_cast<double>(stored);
    return true;
  }
  if (stored == 0) return true;
  const auto now = static_cast<double>(stored);
  const bool sparser = stored_ > 0 && now < kMuchSparser * stored_;
  if (stored_ == 0) stored_ = now;
  const double least = now / shape.ranks * shape.unit_bytes;
  const bool due = dense_operations_ >= kTrialPeriod && least < kWorthwhile * shape.dense_bytes();
  return !sparser && !due;
}

Occupancy Profile::expected(const Shape& shape, uint64_t stored) const {
  if (!known_) return Occupancy::of_random_set(shape.positions, union_of_random_sets(shape, stored));
  Occupancy expected = occupancy_;
  for (size_t s = 0; s < expected.blocks.size(); ++s) {
    const double all = static_cast<double>(shape.positions) / static_cast<double>(uint64_t{1} << s);
    expected.blocks[s] = std::max(expected.blocks[s], kSurprise * std::min(static_cast<double>(stored), all));
  }
  return expected;
}

uint64_t Profile::last_count() const {
  return occupancy_.blocks[0] >= kMuchLess * united_ ? static_cast<uint64_t>(stored_) : 0;
}

bool Profile::fits(uint64_t own) const {
  return own <= kMuchMore * own_ + kFewUnits;
}

uint64_t Profile::to_count(uint64_t own) const {
  return last_count() > 0 ? std::max(own, own_) : own;
}

void Profile::learn(const Shape& shape, const Occupancy& occupancy, double index_bytes, uint64_t stored) {
  known_ = true;
  occupancy_ = occupancy;
  dense_ = occupancy.blocks[0] * shape.unit_bytes + index_bytes > kWorthwhile * shape.dense_bytes();
  stored_ = static_cast<double>(stored);
  dense_operations_ = 0;
}

void Profile::counted(uint64_t own) {
  own_ = own;
  united_ = occupancy_.blocks[0];
}

}  // namespace netsum::sparse
