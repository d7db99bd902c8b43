#include "src/kernels/weighted.h"

#include <cstring>

#include "src/base/assert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/weighted.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// The high halves of 64-bit words, where MulEven takes them from.
template <class D>
HWY_INLINE hn::VFromD<D> odd_to_even(D d, hn::VFromD<D> v) {
  const hn::Repartition<uint64_t, D> d64;
  return hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, v)));
}

template <typename T, class D>
HWY_INLINE hn::VFromD<D> load_as_int32(D d, const uint8_t* from) {
  if constexpr (sizeof(T) == 4) {
    return load(d, from);
  } else {
    return hn::PromoteTo(d, load(hn::Rebind<T, D>(), from));
  }
}
#endif

// Of lanes of up to 32 bits: every product fits 64 bits.
template <typename T>
HWY_INLINE uint64_t narrow_sum(const uint8_t* lanes, size_t n, const int32_t* weights) {
  uint64_t total = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<int32_t> d;
  const hn::Repartition<int64_t, decltype(d)> d64;
  const size_t step = hn::Lanes(d);
  auto even = hn::Zero(d64), odd = hn::Zero(d64);
  for (; i + step <= n; i += step) {
    const auto lane = load_as_int32<T>(d, lanes + i * sizeof(T));
    const auto weight = hn::LoadU(d, weights + i);
    even = hn::Add(even, hn::MulEven(lane, weight));
    odd = hn::Add(odd, hn::MulEven(odd_to_even(d, lane), odd_to_even(d, weight)));
  }
  total = static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(d64, hn::Add(even, odd))));
#endif
  for (; i < n; ++i) {
    T lane;
    std::memcpy(&lane, lanes + i * sizeof lane, sizeof lane);
    total += static_cast<uint64_t>(int64_t{lane} * weights[i]);
  }
  return total;
}

uint64_t sum8(const uint8_t* lanes, size_t n, const int32_t* weights) {
  return narrow_sum<int8_t>(lanes, n, weights);
}
uint64_t sum16(const uint8_t* lanes, size_t n, const int32_t* weights) {
  return narrow_sum<int16_t>(lanes, n, weights);
}
uint64_t sum32(const uint8_t* lanes, size_t n, const int32_t* weights) {
  return narrow_sum<int32_t>(lanes, n, weights);
}

// A lane is s + 2^32 (h + c) with s its low half as a signed number, h its high half, and c the sign of s. So all products are
// of two signed 32-bit numbers. *low: the low 32 bits of the products with s, added up; *high: what counts 2^32 times.
void sum64(const uint8_t* lanes, size_t n, const int32_t* weights, uint64_t* low, uint64_t* high) {
  *low = *high = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<int64_t> d;
  const hn::Repartition<int32_t, decltype(d)> d32;
  const hn::Rebind<int32_t, decltype(d)> half;
  const size_t step = hn::Lanes(d);
  const auto low_mask = hn::Set(d, 0xFFFFFFFFll);
  const auto sign = hn::Set(d, 0x80000000ll);
  auto lows = hn::Zero(d), highs = hn::Zero(d);
  for (; i + step <= n; i += step) {
    const auto lane = load(d, lanes + i * 8);
    const auto weight = hn::PromoteTo(d, hn::LoadU(half, weights + i));
    const auto words = hn::BitCast(d32, lane), weights32 = hn::BitCast(d32, weight);
    const auto product = hn::MulEven(words, weights32);
    const auto upper = hn::MulEven(odd_to_even(d32, words), weights32);
    const auto carried = hn::IfThenElseZero(hn::TestBit(lane, sign), weight);
    lows = hn::Add(lows, hn::And(product, low_mask));
    highs = hn::Add(hn::Add(highs, hn::ShiftRight<32>(product)), hn::Add(upper, carried));
  }
  *low = static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(d, lows)));
  *high = static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(d, highs)));
#endif
  for (; i < n; ++i) {
    int64_t lane;
    std::memcpy(&lane, lanes + i * 8, 8);
    const auto product = static_cast<__int128>(lane) * weights[i];
    *low += static_cast<uint64_t>(product) & 0xFFFFFFFF;
    *high += static_cast<uint64_t>(product >> 32);
  }
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(sum8);
HWY_EXPORT(sum16);
HWY_EXPORT(sum32);
HWY_EXPORT(sum64);

}  // namespace

Uint128 weighted_sum(size_t lane_bytes, const uint8_t* lanes, size_t n, const int32_t* weights) {
  switch (lane_bytes) {
    case 1:
      return HWY_DYNAMIC_DISPATCH(sum8)(lanes, n, weights);
    case 2:
      return HWY_DYNAMIC_DISPATCH(sum16)(lanes, n, weights);
    case 4:
      return HWY_DYNAMIC_DISPATCH(sum32)(lanes, n, weights);
    default: {
      NETSUM_ASSERT(lane_bytes == 8);
      uint64_t low, high;
      HWY_DYNAMIC_DISPATCH(sum64)(lanes, n, weights, &low, &high);
      return (Uint128{low} + (Uint128{high} << 32)) & ((Uint128{1} << 96) - 1);
    }
  }
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
