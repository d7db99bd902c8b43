// What happens to lanes: adding, maxima, the two halves of int64, and the NH hash, vectorised; and
// copying.
#include <algorithm>

#include "hwy/cache_control.h"
#include "src/base/assert.h"
#include "src/kernels/kernels.h"
#include "wire/ids.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/lanes.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

// Calls body(acc, lanes) for each vector of both, the rest in zero-padded buffers; `acc` is written back.
template <size_t kBytes, class Body>
HWY_INLINE void for_each_pair(uint8_t* acc, const uint8_t* lanes, size_t n, size_t step, const Body& body) {
  size_t i = 0;
  for (; i + step <= n; i += step) body(acc + i * kBytes, lanes + i * kBytes);
  if (i == n) return;
  HWY_ALIGN uint8_t last_acc[HWY_MAX_BYTES] = {};
  HWY_ALIGN uint8_t last_lanes[HWY_MAX_BYTES] = {};
  const size_t rest = (n - i) * kBytes;
  std::memcpy(last_acc, acc + i * kBytes, rest);
  std::memcpy(last_lanes, lanes + i * kBytes, rest);
  body(last_acc, last_lanes);
  std::memcpy(acc + i * kBytes, last_acc, rest);
}

template <typename T>
HWY_INLINE bool add(uint8_t* acc, const uint8_t* lanes, size_t n) {
  const hn::ScalableTag<T> d;
  auto overflow = hn::Zero(d);
  for_each_pair<sizeof(T)>(acc, lanes, n, hn::Lanes(d), [&](uint8_t* to, const uint8_t* from) HWY_ATTR {
    const auto a = load(d, to);
    const auto b = load(d, from);
    const auto sum = hn::Add(a, b);
    // It overflowed where the sum's sign is neither operand's.
    overflow = hn::Or(overflow, hn::And(hn::Xor(a, sum), hn::Xor(b, sum)));
    store(sum, d, to);
  });
  return !hn::AllFalse(d, hn::Lt(overflow, hn::Zero(d)));
}

bool add8(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return add<int8_t>(acc, lanes, n);
}
bool add16(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return add<int16_t>(acc, lanes, n);
}
bool add32(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return add<int32_t>(acc, lanes, n);
}
bool add64(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return add<int64_t>(acc, lanes, n);
}

template <typename T>
HWY_INLINE void max(uint8_t* acc, const uint8_t* lanes, size_t n) {
  const hn::ScalableTag<T> d;
  for_each_pair<sizeof(T)>(acc, lanes, n, hn::Lanes(d), [&](uint8_t* to, const uint8_t* from) HWY_ATTR {
    store(hn::Max(load(d, to), load(d, from)), d, to);
  });
}

void max8(uint8_t* acc, const uint8_t* lanes, size_t n) {
  max<uint8_t>(acc, lanes, n);
}
void max16(uint8_t* acc, const uint8_t* lanes, size_t n) {
  max<uint16_t>(acc, lanes, n);
}
void max32(uint8_t* acc, const uint8_t* lanes, size_t n) {
  max<uint32_t>(acc, lanes, n);
}
void max64(uint8_t* acc, const uint8_t* lanes, size_t n) {
  max<uint64_t>(acc, lanes, n);
}

void or_bytes(uint8_t* acc, const uint8_t* lanes, size_t n) {
  const hn::ScalableTag<uint8_t> d;
  for_each_pair<1>(acc, lanes, n, hn::Lanes(d), [&](uint8_t* to, const uint8_t* from) HWY_ATTR {
    store(hn::Or(load(d, to), load(d, from)), d, to);
  });
}
void xor_bytes(uint8_t* acc, const uint8_t* lanes, size_t n) {
  const hn::ScalableTag<uint8_t> d;
  for_each_pair<1>(acc, lanes, n, hn::Lanes(d), [&](uint8_t* to, const uint8_t* from) HWY_ATTR {
    store(hn::Xor(load(d, to), load(d, from)), d, to);
  });
}

void copy_past_cache(uint8_t* to, const uint8_t* from, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t step = hn::Lanes(d);
  const size_t head = std::min(bytes, (step - reinterpret_cast<uintptr_t>(to) % step) % step);
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + 4 * step <= bytes; i += 4 * step) {
    const auto a = hn::LoadU(d, from + i);
    const auto b = hn::LoadU(d, from + i + step);
    const auto c = hn::LoadU(d, from + i + 2 * step);
    const auto e = hn::LoadU(d, from + i + 3 * step);
    hn::Stream(a, d, to + i);
    hn::Stream(b, d, to + i + step);
    hn::Stream(c, d, to + i + 2 * step);
    hn::Stream(e, d, to + i + 3 * step);
  }
  hwy::FlushStream();
  std::memcpy(to + i, from + i, bytes - i);
}

uint64_t nh_hash(const uint8_t* payload, size_t bytes, const uint32_t* key) {
  uint64_t sum = 0;
  size_t i = 0;  // bytes done
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<uint32_t> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const size_t step = hn::Lanes(d) * 4;
  auto sums = hn::Zero(d64);
  for (; i + step <= bytes; i += step) {
    const auto words = hn::Add(load(d, payload + i), hn::LoadU(d, key + i / 4));
    const auto odd = hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, words)));
    sums = hn::Add(sums, hn::MulEven(words, odd));
  }
  sum = hn::GetLane(hn::SumOfLanes(d64, sums));
#endif
  for (; i < bytes; i += 8) {
    uint32_t words[2];
    std::memcpy(words, payload + i, 8);
    const uint32_t even = words[0] + key[i / 4];
    const uint32_t odd = words[1] + key[i / 4 + 1];
    sum += uint64_t{even} * odd;
  }
  return sum;
}

void half_lanes(const uint8_t* in, size_t n, int half, uint8_t* lanes) {
  const hn::ScalableTag<int64_t> d;
  const auto low_mask = hn::Set(d, 0xFFFFFFFFll);
  for_each_vector<8, 8>(n, hn::Lanes(d), in, lanes, [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    const auto x = load(d, from);
    store(half == 0 ? hn::And(x, low_mask) : hn::ShiftRight<32>(x), d, to);
  });
}

// `low` is the output as well: for_each_pair's accumulator.
bool join_halves(uint8_t* low_and_out, const uint8_t* high, size_t n) {
  const hn::ScalableTag<int64_t> d;
  const auto low_mask = hn::Set(d, 0xFFFFFFFFll);
  auto lost = hn::Zero(d);
  for_each_pair<8>(low_and_out, high, n, hn::Lanes(d), [&](uint8_t* to, const uint8_t* from) HWY_ATTR {
    const auto low = load(d, to);
    // What the low halves carried goes to the upper 32 bits, which must then still be 32 bits.
    const auto upper = hn::Add(load(d, from), hn::ShiftRight<32>(low));
    const auto shifted = hn::ShiftLeft<32>(upper);
    lost = hn::Or(lost, hn::Xor(hn::ShiftRight<32>(shifted), upper));
    store(hn::Or(shifted, hn::And(low, low_mask)), d, to);
  });
  return hn::AllTrue(d, hn::Eq(lost, hn::Zero(d)));
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(add8);
HWY_EXPORT(add16);
HWY_EXPORT(add32);
HWY_EXPORT(add64);
HWY_EXPORT(max8);
HWY_EXPORT(max16);
HWY_EXPORT(max32);
HWY_EXPORT(max64);
HWY_EXPORT(or_bytes);
HWY_EXPORT(xor_bytes);
HWY_EXPORT(copy_past_cache);
HWY_EXPORT(nh_hash);
HWY_EXPORT(half_lanes);
HWY_EXPORT(join_halves);

}  // namespace

bool add_lanes8(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return HWY_DYNAMIC_DISPATCH(add8)(acc, lanes, n);
}

bool add_lanes16(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return HWY_DYNAMIC_DISPATCH(add16)(acc, lanes, n);
}

bool add_lanes32(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return HWY_DYNAMIC_DISPATCH(add32)(acc, lanes, n);
}

bool add_lanes64(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return HWY_DYNAMIC_DISPATCH(add64)(acc, lanes, n);
}

bool add_lanes(size_t lane_bytes, uint8_t* acc, const uint8_t* lanes, size_t bytes) {
  switch (lane_bytes) {
    case 1:
      return add_lanes8(acc, lanes, bytes);
    case 2:
      return add_lanes16(acc, lanes, bytes / 2);
    case 4:
      return add_lanes32(acc, lanes, bytes / 4);
    default:
      NETSUM_ASSERT(lane_bytes == 8);
      return add_lanes64(acc, lanes, bytes / 8);
  }
}

void max_lanes8(uint8_t* acc, const uint8_t* lanes, size_t n) {
  HWY_DYNAMIC_DISPATCH(max8)(acc, lanes, n);
}
void max_lanes16(uint8_t* acc, const uint8_t* lanes, size_t n) {
  HWY_DYNAMIC_DISPATCH(max16)(acc, lanes, n);
}
void max_lanes32(uint8_t* acc, const uint8_t* lanes, size_t n) {
  HWY_DYNAMIC_DISPATCH(max32)(acc, lanes, n);
}
void max_lanes64(uint8_t* acc, const uint8_t* lanes, size_t n) {
  HWY_DYNAMIC_DISPATCH(max64)(acc, lanes, n);
}
void or_lanes(uint8_t* acc, const uint8_t* lanes, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(or_bytes)(acc, lanes, bytes);
}
void xor_lanes(uint8_t* acc, const uint8_t* lanes, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(xor_bytes)(acc, lanes, bytes);
}

bool combine_lanes(uint8_t format, uint8_t* acc, const uint8_t* lanes, size_t bytes) {
  switch (format) {
    case NETSUM_FORMAT_SUM_I8:
      return add_lanes(1, acc, lanes, bytes);
    case NETSUM_FORMAT_SUM_I16:
      return add_lanes(2, acc, lanes, bytes);
    case NETSUM_FORMAT_SUM_I32:
      return add_lanes(4, acc, lanes, bytes);
    case NETSUM_FORMAT_SUM_I64:
      return add_lanes(8, acc, lanes, bytes);
    case NETSUM_FORMAT_MAX_U8:
      max_lanes8(acc, lanes, bytes);
      return false;
    case NETSUM_FORMAT_MAX_U16:
      max_lanes16(acc, lanes, bytes / 2);
      return false;
    case NETSUM_FORMAT_MAX_U32:
      max_lanes32(acc, lanes, bytes / 4);
      return false;
    case NETSUM_FORMAT_MAX_U64:
      max_lanes64(acc, lanes, bytes / 8);
      return false;
    case NETSUM_FORMAT_OR_U64:
      or_lanes(acc, lanes, bytes);
      return false;
    default:
      NETSUM_ASSERT(format == NETSUM_FORMAT_XOR_U64);
      xor_lanes(acc, lanes, bytes);
      return false;
  }
}

void copy_out(void* to, const void* from, size_t bytes) {
  // The destination of a small copy may be in the cache, and to wait for stores past it takes longer than the copy.
  constexpr size_t kSmall = size_t{32} << 10;
  if (bytes <= kSmall) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  HWY_DYNAMIC_DISPATCH(copy_past_cache)(static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes);
}

uint64_t nh(const uint8_t* payload, size_t bytes, const uint32_t* key) {
  NETSUM_ASSERT(bytes % 8 == 0);
  return HWY_DYNAMIC_DISPATCH(nh_hash)(payload, bytes, key);
}

void int64_to_half_lanes(const int64_t* in, size_t n, int half, uint8_t* lanes) {
  NETSUM_ASSERT(half == 0 || half == 1);
  HWY_DYNAMIC_DISPATCH(half_lanes)(reinterpret_cast<const uint8_t*>(in), n, half, lanes);
}

bool int64_from_half_lanes(const uint8_t* low, const uint8_t* high, size_t n, int64_t* out) {
  const auto to = reinterpret_cast<uint8_t*>(out);
  if (n != 0 && to != low) std::memcpy(to, low, n * 8);
  return HWY_DYNAMIC_DISPATCH(join_halves)(to, high, n);
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
