#include "src/host/local_sum.h"

#include <algorithm>

namespace netsum {

LocalSum::LocalSum(uint32_t payload_bytes)
    : payload_bytes_(payload_bytes),
      lanes_(payload_bytes),
      high_lanes_(payload_bytes),
      scales_(payload_bytes) {}

bool LocalSum::run(const Operation& operation) {
  const size_t per_chunk = operation.chunk_elements(payload_bytes_);
  bool fits = true;
  for (size_t begin = 0; begin < operation.count(); begin += per_chunk) {
    fits &= run_chunk(operation, begin, std::min(per_chunk, operation.count() - begin));
  }
  return fits;
}

// The same choice of lanes as Stripe::next_step() makes.
bool LocalSum::run_chunk(const Operation& operation, size_t begin, size_t n) {
  operation.scan(begin, n, scales_.data());
  uint8_t* lanes = lanes_.data();
  if (!Operation::any_wide(scales_.data(), operation.blocks(begin, n))) {
    operation.to_narrow_lanes(begin, n, scales_.data(), lanes);
    operation.from_narrow_lanes(lanes, begin, n, scales_.data());
    return true;
  }
  bool fits = true;
  const size_t most = payload_bytes_ / operation.wide_lane_bytes();
  for (size_t at = begin; at < begin + n; at += most) {
    const size_t piece = std::min(most, begin + n - at);
    if (operation.type() == DataType::kInt64) {
      operation.to_half_lanes(at, piece, 0, lanes);
      operation.to_half_lanes(at, piece, 1, high_lanes_.data());
      fits &= operation.from_half_lanes(lanes, high_lanes_.data(), at, piece);
    } else {
      const uint8_t* scales = &scales_[2 * operation.block_of(begin, at)];
      operation.to_wide_lanes(at, piece, scales, lanes);
      fits &= operation.from_wide_lanes(lanes, at, piece, scales);
    }
  }
  return fits;
}

}  // namespace netsum
