#include "src/host/local_sum.h"

#include <algorithm>

namespace netsum {

LocalSum::LocalSum(uint32_t payload_bytes)
    : payload_bytes_(payload_bytes), lanes_(payload_bytes), high_lanes_(payload_bytes) {}

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
  const kernels::BlockScale scale = operation.scan(begin, n);
  uint8_t* lanes = lanes_.data();
  if (scale.wide == 0) {
    operation.to_narrow_lanes(begin, n, scale.exponent, lanes);
    operation.from_narrow_lanes(lanes, begin, n, scale.exponent);
    return true;
  }
  bool fits = true;
  const size_t most = payload_bytes_ / operation.wide_lane_bytes();
  for (size_t end = begin + n; begin < end; begin += most) {
    const size_t piece = std::min(most, end - begin);
    if (operation.type() == DataType::kInt64) {
      operation.to_half_lanes(begin, piece, 0, lanes);
      operation.to_half_lanes(begin, piece, 1, high_lanes_.data());
      fits &= operation.from_half_lanes(lanes, high_lanes_.data(), begin, piece);
    } else {
      operation.to_wide_lanes(begin, piece, scale.exponent, lanes);
      fits &= operation.from_wide_lanes(lanes, begin, piece, scale.exponent);
    }
  }
  return fits;
}

}  // namespace netsum
