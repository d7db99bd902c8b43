// The largest magnitude of a block, vectorised.
#include <algorithm>
#include <bit>
#include <limits>

#include "src/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/scan.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

// Magnitudes of floating-point numbers order like integers, so the largest is an integer maximum.
// T: signed integer of the element's size. Returns the bits of the largest magnitude below `infinity`, and
// whether any element is not below it.
template <typename T>
T max_finite(const uint8_t* in, size_t n, T infinity, bool* has_special) {
  const hn::ScalableTag<T> d;
  const auto magnitude_mask = hn::Set(d, std::numeric_limits<T>::max());
  auto largest = hn::Zero(d);
  for_each_vector<sizeof(T)>(n, hn::Lanes(d), in, [&](const uint8_t* from) HWY_ATTR {
    will_read(from);
    largest = hn::Max(largest, hn::And(load(d, from), magnitude_mask));
  });
  const T result = hn::GetLane(hn::MaxOfLanes(d, largest));
  *has_special = result >= infinity;
  if (!*has_special) return result;
  // Rare, so a second pass rather than a comparison for every element.
  const auto limit = hn::Set(d, infinity);
  largest = hn::Zero(d);
  for_each_vector<sizeof(T)>(n, hn::Lanes(d), in, [&](const uint8_t* from) HWY_ATTR {
    const auto magnitude = hn::And(load(d, from), magnitude_mask);
    largest = hn::Max(largest, hn::IfThenElseZero(hn::Lt(magnitude, limit), magnitude));
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

template <typename T>
bool any_beyond(const uint8_t* in, size_t n, T limit) {
  const hn::ScalableTag<T> d;
  const auto high = hn::Set(d, limit);
  const auto low = hn::Set(d, static_cast<T>(-limit));
  auto beyond = hn::Zero(d);
  for_each_vector<sizeof(T)>(n, hn::Lanes(d), in, [&](const uint8_t* from) HWY_ATTR {
    const auto x = load(d, from);
    beyond = hn::Or(beyond, hn::VecFromMask(d, hn::Or(hn::Gt(x, high), hn::Lt(x, low))));
  });
  return !hn::AllTrue(d, hn::Eq(beyond, hn::Zero(d)));
}

BlockScale scan_block(DataType type, const uint8_t* in, size_t n, int members) {
  bool wide = false;
  uint32_t exponent = 0;
  switch (type) {
    case DataType::kFloat32: {
      const auto bits = static_cast<uint32_t>(max_finite<int32_t>(in, n, 0x7F800000, &wide));
      exponent = bits == 0 ? 0 : std::max(bits >> 23, 1u);
      break;
    }
    case DataType::kBFloat16: {
      const auto bits = static_cast<uint32_t>(max_finite<int16_t>(in, n, 0x7F80, &wide));
      exponent = bits == 0 ? 0 : std::max(bits >> 7, 1u);
      break;
    }
    case DataType::kFloat16: {
      const auto bits = static_cast<uint16_t>(max_finite<int16_t>(in, n, 0x7C00, &wide));
      exponent = std::bit_cast<uint32_t>(float16_to_float(bits)) >> 23;
      break;
    }
    case DataType::kInt32:
      wide = any_beyond<int32_t>(in, n, std::numeric_limits<int32_t>::max() / members);
      exponent = any_beyond<int32_t>(in, n, 0);
      break;
    case DataType::kInt64:
      wide = any_beyond<int64_t>(in, n, std::numeric_limits<int64_t>::max() / members);
      exponent = any_beyond<int64_t>(in, n, 0);
      break;
    case DataType::kByte:  // never summed
      break;
  }
  return {.exponent = static_cast<uint8_t>(exponent), .wide = static_cast<uint8_t>(wide)};
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(scan_block);

}  // namespace

BlockScale scan(DataType type, const void* in, size_t n, int members) {
  return HWY_DYNAMIC_DISPATCH(scan_block)(type, static_cast<const uint8_t*>(in), n, members);
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
