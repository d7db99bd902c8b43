#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "src/base/assert.h"
#include "src/kernels/kernels.h"

namespace netsum::kernels {
namespace {

// The exact sum, if it fits the type.
template <typename Element, typename Wide>
bool sum_integers(const Values& values, uint8_t* out) {
  bool fits = true;
  for (size_t i = 0; i < values.count; ++i) {
    Wide sum = 0;
    for (int member = 0; member < values.members; ++member) {
      Element element;
      std::memcpy(&element, values.of(member) + i * sizeof element, sizeof element);
      sum += element;
    }
    fits &= sum >= std::numeric_limits<Element>::min() && sum <= std::numeric_limits<Element>::max();
    const auto result = static_cast<Element>(sum);
    std::memcpy(out + i * sizeof result, &result, sizeof result);
  }
  return fits;
}

}  // namespace

bool sum_values(DataType type, int lane_bits, bool average, const Values& values, std::span<uint8_t> scratch,
                void* out) {
  auto* const bytes = static_cast<uint8_t*>(out);
  if (type == DataType::kInt32) return sum_integers<int32_t, int64_t>(values, bytes);
  if (type == DataType::kInt64) return sum_integers<int64_t, __int128>(values, bytes);

  const size_t n = values.count;
  const int members = values.members;
  BlockScale agreed;
  for (int member = 0; member < members; ++member) {
    const BlockScale own = scan(type, values.of(member), n, members);
    agreed.exponent = std::max(agreed.exponent, own.exponent);
    agreed.wide = std::max(agreed.wide, own.wide);
  }
  const bool halves = lane_bits == 16;
  const auto encode = agreed.wide != 0 ? (halves ? to_wide_lanes32 : to_lanes64)
                      : halves         ? to_lanes16
                                       : to_lanes32;
  const size_t lane_bytes = (halves ? 2 : 4) * (agreed.wide != 0 ? 2 : 1);
  NETSUM_ASSERT(2 * n * lane_bytes <= scratch.size());
  uint8_t* const sum = scratch.data();
  uint8_t* const lanes = sum + n * lane_bytes;
  encode(type, values.of(0), n, agreed.exponent, members, sum);
  for (int member = 1; member < members; ++member) {
    encode(type, values.of(member), n, agreed.exponent, members, lanes);
    const bool overflow = add_lanes(lane_bytes, sum, lanes, n * lane_bytes);
    NETSUM_ASSERT(!overflow);  // lanes have headroom for so many members
  }
  if (!agreed.wide) {
    (halves ? from_lanes16 : from_lanes32)(type, sum, n, agreed.exponent, members, average, out);
  } else if (halves) {
    from_wide_lanes32(type, sum, n, agreed.exponent, members, average, out);
  } else {
    return from_lanes64(type, sum, n, agreed.exponent, members, average, out);
  }
  return true;
}

}  // namespace netsum::kernels
