// The kernels of levels.h, vectorised.
#include "src/kernels/levels.h"

#include <limits>

#include "src/kernels/float_mode.h"
#include "src/kernels/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/levels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

// values / scale * levels within the limits; a NaN may be anything, which the integers limit.
template <class DF>
HWY_INLINE hn::VFromD<DF> exact_level(DF df, const float* values, hn::VFromD<DF> scale,
                                      hn::VFromD<DF> levels) {
  const auto exact = hn::Mul(hn::Div(load(df, bytes_of(values)), scale), levels);
  const auto low = hn::Neg(levels);
  const auto at_least = hn::IfThenElse(hn::Gt(exact, low), exact, low);
  return hn::IfThenElse(hn::Lt(at_least, levels), at_least, levels);
}

void nearest_levels(const float* values, size_t n, float scale, uint32_t levels, int32_t* codes) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const auto scales = hn::Set(df, scale), most = hn::Set(df, static_cast<float>(levels));
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df))
    store(nearest_int(df, exact_level(df, values + i, scales, most)), di, bytes_of(codes + i));
  plain::to_nearest_levels(values + i, n - i, scale, levels, codes + i);
}

void random_levels(const float* values, size_t n, float scale, uint32_t levels, RandomKey key, uint32_t first,
                   int32_t* codes) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::RebindToUnsigned<decltype(df)> du;
  const auto scales = hn::Set(df, scale), most = hn::Set(df, static_cast<float>(levels));
  const auto steps = hn::Iota(du, 0);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const auto exact = exact_level(df, values + i, scales, most);
    const auto below = hn::Floor(exact);
    const auto bits = hn::ShiftRight<8>(random_vector(du, steps, key, first + static_cast<uint32_t>(i)));
    const auto unit = hn::Mul(hn::ConvertTo(df, hn::BitCast(di, bits)), hn::Set(df, 0x1p-24f));
    const auto up = hn::VecFromMask(di, hn::RebindMask(di, hn::Lt(unit, hn::Sub(exact, below))));
    store(hn::Sub(nearest_int(df, below), up), di, bytes_of(codes + i));
  }
  plain::to_random_levels(values + i, n - i, scale, levels, key, first + static_cast<uint32_t>(i), codes + i);
}

void values_of_levels(const int32_t* sums, size_t n, float divisor, float scale, float* out) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const auto divisors = hn::Set(df, divisor), scales = hn::Set(df, scale);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const auto sum = hn::ConvertTo(df, load(di, bytes_of(sums + i)));
    store(hn::Mul(hn::Div(sum, divisors), scales), df, bytes_of(out + i));
  }
  plain::from_levels(sums + i, n - i, divisor, scale, out + i);
}

void values_minus_levels(const float* values, const int32_t* codes, size_t n, float divisor, float scale,
                         float* rest) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const auto divisors = hn::Set(df, divisor), scales = hn::Set(df, scale);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const auto code = hn::ConvertTo(df, load(di, bytes_of(codes + i)));
    const auto sent = hn::Mul(hn::Div(code, divisors), scales);
    store(hn::Sub(load(df, bytes_of(values + i)), sent), df, bytes_of(rest + i));
  }
  plain::rest_of_levels(values + i, codes + i, n - i, divisor, scale, rest + i);
}

uint32_t largest_bits(const float* values, size_t n) {
  const hn::ScalableTag<int32_t> d;
  const auto mask = hn::Set(d, 0x7FFFFFFF);
  auto largest = hn::Zero(d);
  for_each_vector<4>(n, hn::Lanes(d), bytes_of(values), [&](const uint8_t* from) HWY_ATTR {
    largest = hn::Max(largest, hn::And(load(d, from), mask));
  });
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

#if NETSUM_EMULATED_TARGET
void hadamard_in_vectors(float* x, size_t n) {
  plain::hadamard(x, n);
}
#else
// One stage of elements that are `half` apart, in vectors that are not longer.
template <class DF>
HWY_INLINE void hadamard_stage(DF df, float* x, size_t n, size_t half) {
  for (size_t begin = 0; begin < n; begin += 2 * half)
    for (size_t i = begin; i < begin + half; i += hn::Lanes(df)) {
      const auto a = hn::LoadU(df, x + i), b = hn::LoadU(df, x + i + half);
      hn::StoreU(hn::Add(a, b), df, x + i);
      hn::StoreU(hn::Sub(a, b), df, x + i + half);
    }
}

void hadamard_in_vectors(float* x, size_t n) {
  const hn::ScalableTag<float> df;
  const hn::FixedTag<float, 4> d4;
  if (n < 4) return plain::hadamard(x, n);
  // The stages of neighbours and of pairs, within a vector of 4.
  const auto upper_pair = hn::Ge(hn::Iota(d4, 0), hn::Set(d4, 2));
  for (size_t i = 0; i < n; i += 4) {
    const auto v = hn::LoadU(d4, x + i);
    const auto neighbours = hn::Shuffle2301(v);
    const auto first = hn::OddEven(hn::Sub(neighbours, v), hn::Add(v, neighbours));
    const auto pairs = hn::Shuffle1032(first);
    hn::StoreU(hn::IfThenElse(upper_pair, hn::Sub(pairs, first), hn::Add(first, pairs)), d4, x + i);
  }
  size_t half = 4;
  for (; half < n && half < hn::Lanes(df); half *= 2) hadamard_stage(d4, x, n, half);
  for (; half < n; half *= 2) hadamard_stage(df, x, n, half);
}
#endif

// Several vectors of columns at a time, so that additions do not wait for each other.
void rows_summed(const float* factors, size_t rows, const float* matrix, size_t stride, size_t n,
                 float* out) {
  const hn::ScalableTag<float> df;
  const size_t lanes = hn::Lanes(df);
  size_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) {
    auto a = hn::Zero(df), b = a, c = a, d = a;
    for (size_t r = 0; r < rows; ++r) {
      if (factors[r] == 0) continue;
      const auto factor = hn::Set(df, factors[r]);
      const float* const from = matrix + r * stride + j;
      a = hn::Add(a, hn::Mul(factor, load(df, bytes_of(from))));
      b = hn::Add(b, hn::Mul(factor, load(df, bytes_of(from + lanes))));
      c = hn::Add(c, hn::Mul(factor, load(df, bytes_of(from + 2 * lanes))));
      d = hn::Add(d, hn::Mul(factor, load(df, bytes_of(from + 3 * lanes))));
    }
    store(a, df, bytes_of(out + j));
    store(b, df, bytes_of(out + j + lanes));
    store(c, df, bytes_of(out + j + 2 * lanes));
    store(d, df, bytes_of(out + j + 3 * lanes));
  }
  if (j < n) plain::sum_rows(factors, rows, matrix + j, stride, n - j, out + j);
}

void flip(float* x, size_t n, const uint64_t* bits) {
#if HWY_TARGET == HWY_SCALAR
  plain::flip_signs(x, n, bits);
#else
  const hn::CappedTag<uint32_t, 16> du;  // the bits of a vector are in one half of a word
  const size_t lanes = hn::Lanes(du);
  const auto to_sign = hn::Sub(hn::Set(du, 31), hn::Iota(du, 0));
  const auto sign = hn::Set(du, 0x80000000u);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto word = static_cast<uint32_t>(bits[i / 64] >> (i % 64));
    const auto flipped = hn::And(hn::Shl(hn::Set(du, word), to_sign), sign);
    store(hn::Xor(load(du, bytes_of(x + i)), flipped), du, bytes_of(x + i));
  }
  for (; i < n; ++i) {
    const uint64_t bit = bits[i / 64] >> (i % 64) & 1;
    plain::flip_signs(x + i, 1, &bit);
  }
#endif
}

// body(j, lanes) for vectors of `count` lanes from lane j on. The last vector overlaps the one before; fewer lanes than one are
// left to the plain version.
template <class Body>
HWY_INLINE void for_each_overlapping(size_t count, size_t lanes, const Body& body) {
  for (size_t j = 0; j + lanes <= count; j += lanes) body(j);
  if (count % lanes != 0) body(count - lanes);
}

void fields_to_lanes(const int32_t* codes, size_t n, uint32_t bits, uint32_t fields, int32_t* lanes) {
  const hn::ScalableTag<int32_t> d;
  const size_t count = (n + fields - 1) / fields;
  // Not full: the last fields of some lanes are of no element.
  if (count < hn::Lanes(d) || count * fields != n) return plain::pack_fields(codes, n, bits, fields, lanes);
  for_each_overlapping(count, hn::Lanes(d), [&](size_t j) HWY_ATTR {
    auto lane = load(d, bytes_of(codes + j));
    for (uint32_t f = 1; f < fields; ++f)
      lane = hn::Add(lane,
                     hn::ShiftLeftSame(load(d, bytes_of(codes + f * count + j)), static_cast<int>(f * bits)));
    store(lane, d, bytes_of(lanes + j));
  });
}

void lanes_to_fields(const int32_t* lanes, size_t n, uint32_t bits, uint32_t fields, uint32_t offset,
                     int32_t* sums) {
  const hn::ScalableTag<uint32_t> d;
  const size_t count = (n + fields - 1) / fields;
  if (count < hn::Lanes(d) || count * fields != n)
    return plain::unpack_fields(lanes, n, bits, fields, offset, sums);
  uint32_t all = 0;
  for (uint32_t f = 0; f < fields; ++f) all += offset << (f * bits);
  const auto offsets = hn::Set(d, all), one = hn::Set(d, offset);
  const auto mask = hn::Set(d, 0xFFFFFFFFu >> (32 - bits));
  for_each_overlapping(count, hn::Lanes(d), [&](size_t j) HWY_ATTR {
    const auto lane = hn::Add(load(d, bytes_of(lanes + j)), offsets);
    for (uint32_t f = 0; f < fields; ++f) {
      const auto field = hn::And(hn::ShiftRightSame(lane, static_cast<int>(f * bits)), mask);
      store(hn::Sub(field, one), d, bytes_of(sums + f * count + j));
    }
  });
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(nearest_levels);
HWY_EXPORT(random_levels);
HWY_EXPORT(values_of_levels);
HWY_EXPORT(values_minus_levels);
HWY_EXPORT(largest_bits);
HWY_EXPORT(hadamard_in_vectors);
HWY_EXPORT(rows_summed);
HWY_EXPORT(flip);
HWY_EXPORT(fields_to_lanes);
HWY_EXPORT(lanes_to_fields);

}  // namespace

void to_nearest_levels(const float* values, size_t n, float scale, uint32_t levels, int32_t* codes) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(nearest_levels)(values, n, scale, levels, codes);
}

void to_random_levels(const float* values, size_t n, float scale, uint32_t levels, RandomKey key,
                      uint32_t first, int32_t* codes) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(random_levels)(values, n, scale, levels, key, first, codes);
}

void from_levels(const int32_t* sums, size_t n, float divisor, float scale, float* out) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(values_of_levels)(sums, n, divisor, scale, out);
}

void rest_of_levels(const float* values, const int32_t* codes, size_t n, float divisor, float scale,
                    float* rest) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(values_minus_levels)(values, codes, n, divisor, scale, rest);
}

float largest_magnitude(const float* values, size_t n) {
  const uint32_t bits = HWY_DYNAMIC_DISPATCH(largest_bits)(values, n);
  return bits < kInfinityBits ? std::bit_cast<float>(bits) : std::numeric_limits<float>::quiet_NaN();
}

void hadamard(float* x, size_t n) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(hadamard_in_vectors)(x, n);
}

void sum_rows(const float* factors, size_t rows, const float* matrix, size_t stride, size_t n, float* out) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(rows_summed)(factors, rows, matrix, stride, n, out);
}

void flip_signs(float* x, size_t n, const uint64_t* bits) {
  HWY_DYNAMIC_DISPATCH(flip)(x, n, bits);
}

void pack_fields(const int32_t* codes, size_t n, uint32_t bits, uint32_t fields, int32_t* lanes) {
  HWY_DYNAMIC_DISPATCH(fields_to_lanes)(codes, n, bits, fields, lanes);
}

void unpack_fields(const int32_t* lanes, size_t n, uint32_t bits, uint32_t fields, uint32_t offset,
                   int32_t* sums) {
  HWY_DYNAMIC_DISPATCH(lanes_to_fields)(lanes, n, bits, fields, offset, sums);
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
