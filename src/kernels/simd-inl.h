// Vector building blocks, compiled once per instruction set (Google Highway's -inl.h convention: included by
// a file that foreach_target.h includes again and again). Everything here gives the same bits everywhere;
// where a Highway operation is only approximately portable, the comment says how it is avoided.
#include <cmath>
#include <cstring>

#include "src/kernels/half.h"
#include "src/kernels/kernels.h"
#include "src/kernels/levels.h"

// Per-target include guard.
#if defined(NETSUM_SRC_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NETSUM_SRC_KERNELS_SIMD_INL_H_
#undef NETSUM_SRC_KERNELS_SIMD_INL_H_
#else
#define NETSUM_SRC_KERNELS_SIMD_INL_H_
#endif

#include "hwy/highway.h"

// The targets that emulate vectors in C++ clamp and round conversions in their own ways.
#define NETSUM_EMULATED_TARGET (HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128)
#define NETSUM_HAVE_F16C (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// --- Memory: any alignment
// -------------------------------------------------------------------------------------

template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::VFromD<D> load(D d, const uint8_t* from) {
#if NETSUM_EMULATED_TARGET
  // These dereference a T*, which must then be aligned.
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
  std::memcpy(lanes, from, hn::Lanes(d) * sizeof(T));
  return hn::Load(d, lanes);
#else
  return hn::LoadU(d, reinterpret_cast<const T*>(from));
#endif
}

template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void store(hn::VFromD<D> v, D d, uint8_t* to) {
#if NETSUM_EMULATED_TARGET
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, hn::Lanes(d) * sizeof(T));
#else
  hn::StoreU(v, d, reinterpret_cast<T*>(to));
#endif
}

// Tensors are read and written in order, chunk by chunk, and are in no near cache: a kernel asks for what follows, which may be the
// beginning of the next chunk. Processors fetch ahead themselves, but only within a page, and begin anew with each.
constexpr uintptr_t kAheadBytes = 2048;
// A number and not a pointer, because there may be no object: to fetch from there is no access.
HWY_INLINE const void* ahead_of(const uint8_t* at) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + kAheadBytes);
}
HWY_INLINE void will_read(const uint8_t* from) {
  __builtin_prefetch(ahead_of(from), 0, 3);
}
HWY_INLINE void will_write(const uint8_t* to) {
  __builtin_prefetch(ahead_of(to), 1, 3);
}

template <typename T>
HWY_INLINE const uint8_t* bytes_of(const T* values) {
  return reinterpret_cast<const uint8_t*>(values);
}
template <typename T>
HWY_INLINE uint8_t* bytes_of(T* values) {
  return reinterpret_cast<uint8_t*>(values);
}

// Calls body(from, to) for each `lanes` elements. The rest goes through buffers of a full vector, padded with
// zeros (which no kernel minds), so nothing outside the caller's memory is touched.
template <size_t kInBytes, size_t kOutBytes, class Body>
HWY_INLINE void for_each_vector(size_t n, size_t lanes, const uint8_t* in, uint8_t* out, const Body& body) {
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(in + i * kInBytes, out + i * kOutBytes);
  if (i == n) return;
  HWY_ALIGN uint8_t last_in[HWY_MAX_BYTES] = {};
  HWY_ALIGN uint8_t last_out[HWY_MAX_BYTES];
  std::memcpy(last_in, in + i * kInBytes, (n - i) * kInBytes);
  body(last_in, last_out);
  std::memcpy(out + i * kOutBytes, last_out, (n - i) * kOutBytes);
}

// Calls body(from) likewise, where there is no output.
template <size_t kInBytes, class Body>
HWY_INLINE void for_each_vector(size_t n, size_t lanes, const uint8_t* in, const Body& body) {
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(in + i * kInBytes);
  if (i == n) return;
  HWY_ALIGN uint8_t last_in[HWY_MAX_BYTES] = {};
  std::memcpy(last_in, in + i * kInBytes, (n - i) * kInBytes);
  body(last_in);
}

// --- Conversions that round to nearest even on every target
// ----------------------------------------------------

template <class DF>
HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> nearest_int(DF df, hn::VFromD<DF> v) {
#if NETSUM_EMULATED_TARGET
  // Theirs adds a half and truncates, which is wrong just below a half.
  const hn::RebindToSigned<DF> di;
  HWY_ALIGN float from[HWY_MAX_BYTES / 4];
  HWY_ALIGN int32_t to[HWY_MAX_BYTES / 4];
  hn::Store(v, df, from);
  for (size_t i = 0; i < hn::Lanes(df); ++i) to[i] = static_cast<int32_t>(std::nearbyint(from[i]));
  return hn::Load(di, to);
#else
  (void)df;
  return hn::NearestInt(v);
#endif
}

// double to float: subnormals kept, overflow to infinity.
template <class DF>
HWY_INLINE hn::VFromD<DF> round_to_float(DF df, hn::VFromD<hn::Rebind<double, DF>> v) {
#if NETSUM_EMULATED_TARGET
  // Theirs overflows to the largest finite number.
  const hn::Rebind<double, DF> dd;
  HWY_ALIGN double from[HWY_MAX_BYTES / 8];
  HWY_ALIGN float to[HWY_MAX_BYTES / 4] = {};
  hn::Store(v, dd, from);
  for (size_t i = 0; i < hn::Lanes(df); ++i) to[i] = static_cast<float>(from[i]);
  return hn::Load(df, to);
#else
  return hn::DemoteTo(df, v);
#endif
}

// The bits of float16 numbers, each in 32 bits, to floats. Infinities and NaNs stay infinite and NaN.
template <class DF>
HWY_INLINE hn::VFromD<DF> float16_to_float_bits(DF df, hn::VFromD<hn::RebindToUnsigned<DF>> half) {
  const hn::RebindToUnsigned<DF> du;
  const auto magnitude = hn::And(half, hn::Set(du, 0x7FFF));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
  // With the fields moved to binary32's places the exponent is too small by 112, for subnormals as well.
  const auto scaled = hn::Mul(hn::BitCast(df, hn::ShiftLeft<13>(magnitude)), hn::Set(df, 0x1p112f));
  const auto special =
      hn::Gt(hn::BitCast(hn::RebindToSigned<DF>(), magnitude), hn::Set(hn::RebindToSigned<DF>(), 0x7BFF));
  const auto infinite_exponent = hn::IfThenElseZero(hn::RebindMask(du, special), hn::Set(du, 0x7F800000));
  return hn::BitCast(df, hn::Or(hn::Or(hn::BitCast(du, scaled), infinite_exponent), sign));
}

// Floats (a NaN only in canonical form) to the bits of float16 numbers, each in 32 bits.
template <class DF>
HWY_INLINE hn::VFromD<hn::RebindToUnsigned<DF>> float_to_float16_bits(DF df, hn::VFromD<DF> value) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;  // magnitudes compare as signed integers, which every target has
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, hn::Set(du, 0xFFF))));
  const auto normal = hn::Min(hn::BitCast(di, hn::Sub(rounded, hn::Set(du, 112 << 10))), hn::Set(di, 0x7C00));
  // One unit in the last place of 0.5 is float16's smallest subnormal: the addition rounds to it.
  const auto sum = hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(di, sum), hn::Set(di, 0x3F000000));
  const auto is_subnormal = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x38800000));  // 2^-14
  const auto is_nan = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7F800000));
  auto result = hn::IfThenElse(is_subnormal, subnormal, normal);
  result = hn::IfThenElse(is_nan, hn::Set(di, kFloat16NaNBits), result);
  return hn::Or(hn::BitCast(du, result), sign);
}

// --- Random numbers
// ----------------------------------------------------

template <class DU>
HWY_INLINE hn::VFromD<DU> mixed(DU du, hn::VFromD<DU> x) {
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, 0x7FEB352Du));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(du, 0x846CA68Bu));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// random_bits() of the counters first + steps, where `steps` is Iota(du, 0): to make it in a loop would take longer than the rest.
template <class DU>
HWY_INLINE hn::VFromD<DU> random_vector(DU du, hn::VFromD<DU> steps, RandomKey key, uint32_t first) {
  const auto counters = hn::Add(steps, hn::Set(du, key.first + first));
  return mixed(du, hn::Add(mixed(du, counters), hn::Set(du, key.second)));
}

// --- Elements of a floating-point type, as vectors of float
// ----------------------------------------------------

template <DataType kType, class DF>
HWY_INLINE hn::VFromD<DF> load_floats(DF df, const uint8_t* from) {
  if constexpr (kType == DataType::kFloat32) {
    return load(df, from);
  } else {
    const hn::RebindToUnsigned<DF> du;
    const hn::Rebind<uint16_t, DF> du16;
    const auto bits = load(du16, from);
    if constexpr (kType == DataType::kBFloat16) {
      return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
    } else {
#if NETSUM_HAVE_F16C
      return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
#else
      return float16_to_float_bits(df, hn::PromoteTo(du, bits));
#endif
    }
  }
}

template <DataType kType, class DF>
HWY_INLINE void store_floats(DF df, hn::VFromD<DF> value, uint8_t* to) {
  if constexpr (kType == DataType::kFloat32) {
    store(value, df, to);
  } else {
    const hn::RebindToUnsigned<DF> du;
    const hn::Rebind<uint16_t, DF> du16;
    if constexpr (kType == DataType::kBFloat16) {
      // As float_to_bfloat16(); the canonical NaN comes through this unchanged.
      const auto bits = hn::BitCast(du, value);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
      const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF))));
      store(hn::DemoteTo(du16, hn::BitCast(hn::RebindToSigned<DF>(), rounded)), du16, to);
    } else {
#if NETSUM_HAVE_F16C
      store(hn::BitCast(du16, hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), value)), du16, to);
#else
      const auto half = float_to_float16_bits(df, value);
      store(hn::DemoteTo(du16, hn::BitCast(hn::RebindToSigned<DF>(), half)), du16, to);
#endif
    }
  }
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
