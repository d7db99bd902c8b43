// The kernels of codes.h, vectorised.
#include "src/kernels/codes.h"

#include <algorithm>
#include <cmath>

#include "src/kernels/float_mode.h"
#include "src/kernels/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/codes.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using D8 = hn::Rebind<uint8_t, DI>;
using VF = hn::VFromD<DF>;
using VI = hn::VFromD<DI>;
using VU = hn::VFromD<DU>;

constexpr uint32_t kMostCompared = 4;  // bits

HWY_INLINE VI load_codes(const uint8_t* codes) {
  return hn::PromoteTo(DI(), load(D8(), codes));
}
HWY_INLINE void store_codes(VI codes, uint8_t* to) {
  store(hn::DemoteTo(D8(), codes), D8(), to);
}

// Bit 7 if the sign is set.
HWY_INLINE VI code_sign(VF value) {
  return hn::BitCast(DI(), hn::ShiftLeft<7>(hn::ShiftRight<31>(hn::BitCast(DU(), value))));
}

// How many borders are below each value: few by comparing all, more by halving.
HWY_INLINE VI interval_of(VF value, const float* borders, uint32_t bits) {
  const DF df;
  const DI di;
  VI code = hn::Zero(di);
  if (bits <= kMostCompared) {
    for (size_t b = 0; b + 1 < size_t{1} << bits; ++b) {
      const auto is_above = hn::RebindMask(di, hn::Lt(hn::Set(df, borders[b]), value));
      code = hn::Sub(code, hn::VecFromMask(di, is_above));
    }
    return code;
  }
  for (uint32_t bit = bits; bit-- > 0;) {
    const int32_t half = 1 << bit;
    const VF border = hn::GatherIndex(df, borders, hn::Add(code, hn::Set(di, half - 1)));
    const auto is_above = hn::RebindMask(di, hn::Lt(border, value));
    code = hn::Add(code, hn::IfThenElseZero(is_above, hn::Set(di, half)));
  }
  return code;
}

void intervals(const float* values, size_t n, const float* borders, uint32_t bits, uint8_t* codes) {
  const DF df;
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df))
    store_codes(interval_of(load(df, bytes_of(values + i)), borders, bits), codes + i);
  plain::to_intervals(values + i, n - i, borders, bits, codes + i);
}

void signed_intervals(const float* values, size_t n, float scale, const IndexedBorders& borders,
                      uint8_t* codes) {
  const DF df;
  const DI di;
  const VF scales = hn::Set(df, scale);
  const VI first = hn::Set(di, IndexedBorders::kFirst);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const VF value = load(df, bytes_of(values + i));
    const VF share = hn::Div(hn::Abs(value), scales);
    const VI range = hn::ShiftRight<IndexedBorders::kShift>(hn::BitCast(di, share));
    VI code = hn::GatherIndex(di, borders.below.data(), hn::Sub(hn::Max(range, first), first));
    const VF next = hn::GatherIndex(df, borders.numbers.data(), code);
    code = hn::Sub(code, hn::VecFromMask(di, hn::RebindMask(di, hn::Lt(next, share))));
    store_codes(hn::Or(code, code_sign(value)), codes + i);
  }
  plain::to_signed_intervals(values + i, n - i, scale, borders, codes + i);
}

// What powers_of() needs of one range of exponents.
struct PowerRange {
  VI top, bottom;
  // Their product is 2^-bottom, which alone may be infinite.
  VF factor, other_factor;
};
HWY_INLINE PowerRange range_of(int top) {
  const DF df;
  const DI di;
  const int bottom = top + 1 - kMostPowers;
  const int exponent = std::min(-bottom, 149);  // there are no numbers below 2^-149
  const int half = exponent / 2;
  return {hn::Set(di, top), hn::Set(di, bottom), hn::Set(df, std::ldexp(1.0f, half)),
          hn::Set(df, std::ldexp(1.0f, exponent - half))};
}

HWY_INLINE VI powers_of(VF value, const PowerRange& range, VF least) {
  const DF df;
  const DI di;
  const VI one = hn::Set(di, 1);
  const VF magnitude = hn::Abs(value);
  const VI bits = hn::BitCast(di, magnitude);
  // A subnormal number becomes a normal one, 2^24 times as large.
  const auto is_subnormal = hn::Lt(bits, hn::Set(di, 0x00800000));
  const VI normal =
      hn::IfThenElse(is_subnormal, hn::BitCast(di, hn::Mul(magnitude, hn::Set(df, 0x1p24f))), bits);
  const VI bias = hn::IfThenElse(is_subnormal, hn::Set(di, 127 + 24), hn::Set(di, 127));
  VI exponent = hn::Sub(hn::ShiftRight<23>(normal), bias);
  const auto is_small = hn::Lt(exponent, range.bottom);
  const VF mantissa =
      hn::BitCast(df, hn::Or(hn::And(normal, hn::Set(di, 0x007FFFFF)), hn::Set(di, 0x3F800000)));
  const VF fraction = hn::Sub(mantissa, hn::Set(df, 1.0f));
  const auto is_up = hn::RebindMask(di, hn::Gt(fraction, least));
  exponent = hn::Add(exponent, hn::IfThenElseZero(is_up, one));
  VI code = hn::Sub(hn::Add(range.top, one), hn::Min(exponent, range.top));
  const VF share = hn::Mul(hn::Mul(magnitude, range.factor), range.other_factor);
  const auto is_least = hn::RebindMask(di, hn::Gt(share, least));
  code = hn::IfThenElse(is_small, hn::IfThenElseZero(is_least, hn::Set(di, kMostPowers)), code);
  code = hn::IfThenElse(hn::Gt(bits, hn::Set(di, 0x7F7FFFFF)), hn::Set(di, kNoPower), code);
  code = hn::IfThenElseZero(hn::Gt(bits, hn::Zero(di)), code);
  return hn::Or(code, code_sign(value));
}

void powers(const float* values, size_t n, int top, uint8_t* codes) {
  const DF df;
  const PowerRange range = range_of(top);
  const VF least = hn::Set(df, 0.5f);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df))
    store_codes(powers_of(load(df, bytes_of(values + i)), range, least), codes + i);
  plain::to_powers(values + i, n - i, top, codes + i);
}

void random_powers(const float* values, size_t n, int top, RandomKey key, uint32_t first, uint8_t* codes) {
  const DF df;
  const DI di;
  const DU du;
  const VU steps = hn::Iota(du, 0);
  const PowerRange range = range_of(top);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const VU bits = hn::ShiftRight<8>(random_vector(du, steps, key, first + static_cast<uint32_t>(i)));
    const VF unit = hn::Mul(hn::ConvertTo(df, hn::BitCast(di, bits)), hn::Set(df, 0x1p-24f));
    store_codes(powers_of(load(df, bytes_of(values + i)), range, unit), codes + i);
  }
  plain::to_random_powers(values + i, n - i, top, key, first + static_cast<uint32_t>(i), codes + i);
}

void values_of_codes(const uint8_t* codes, size_t n, const float* table, float scale, float divisor,
                     float* out) {
  const DF df;
  const VF scales = hn::Set(df, scale), divisors = hn::Set(df, divisor);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const VF number = hn::GatherIndex(df, table, load_codes(codes + i));
    store(hn::Div(hn::Mul(number, scales), divisors), df, bytes_of(out + i));
  }
  plain::from_codes(codes + i, n - i, table, scale, divisor, out + i);
}

void values_minus_codes(const float* values, const uint8_t* codes, size_t n, const float* table, float scale,
                        float* rest) {
  const DF df;
  const VF scales = hn::Set(df, scale);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const VF sent = hn::Mul(hn::GatherIndex(df, table, load_codes(codes + i)), scales);
    store(hn::Sub(load(df, bytes_of(values + i)), sent), df, bytes_of(rest + i));
  }
  plain::rest_of_codes(values + i, codes + i, n - i, table, scale, rest + i);
}

void short_numbers(const float* values, size_t n, float step, uint8_t* lengths, uint32_t* words,
                   float* rest) {
  const DF df;
  const DI di;
  const VF steps = hn::Set(df, step);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const VF value = load(df, bytes_of(values + i));
    const VF exact = hn::Div(value, steps);
    const auto is_small = hn::Lt(hn::Abs(exact), hn::Set(df, 32768.0f));  // not NaN
    const VI integer = nearest_int(df, hn::IfThenElseZero(is_small, exact));
    const VI magnitude = hn::Abs(integer);
    const auto is_whole =
        hn::Or(hn::Not(hn::RebindMask(di, is_small)), hn::Gt(magnitude, hn::Set(di, 32767)));
    VI length = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 127)), hn::Set(di, 2), hn::Set(di, 1));
    length = hn::IfThenElseZero(hn::Gt(magnitude, hn::Zero(di)), length);
    length = hn::IfThenElse(is_whole, hn::Set(di, kWholeNumber), length);
    store_codes(length, lengths + i);
    store(hn::IfThenElse(is_whole, hn::BitCast(di, value), integer), di, bytes_of(words + i));
    if (rest == nullptr) continue;
    const VF left = hn::Sub(value, hn::Mul(hn::ConvertTo(df, integer), steps));
    store(hn::IfThenElse(hn::RebindMask(df, is_whole), hn::Zero(df), left), df, bytes_of(rest + i));
  }
  plain::to_short_numbers(values + i, n - i, step, lengths + i, words + i, rest == nullptr ? rest : rest + i);
}

void values_of_short_numbers(const uint8_t* lengths, const uint32_t* words, size_t n, float step,
                             float divisor, float* out) {
  const DF df;
  const DI di;
  const VF steps = hn::Set(df, step), divisors = hn::Set(df, divisor);
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const VI length = load_codes(lengths + i);
    const VI word = load(di, bytes_of(words + i));
    const VI byte = hn::ShiftRight<24>(hn::ShiftLeft<24>(word));
    const VI pair = hn::ShiftRight<16>(hn::ShiftLeft<16>(word));
    VI integer = hn::IfThenElse(hn::Eq(length, hn::Set(di, 1)), byte, pair);
    integer = hn::IfThenElseZero(hn::Gt(length, hn::Zero(di)), integer);
    const auto is_whole = hn::RebindMask(df, hn::Eq(length, hn::Set(di, kWholeNumber)));
    const VF value =
        hn::IfThenElse(is_whole, hn::BitCast(df, word), hn::Mul(hn::ConvertTo(df, integer), steps));
    store(hn::Div(value, divisors), df, bytes_of(out + i));
  }
  plain::from_short_numbers(lengths + i, words + i, n - i, step, divisor, out + i);
}

void cells_of(RandomKey key, uint32_t first, size_t n, uint32_t width, uint32_t* cells) {
  size_t i = 0;
#if !NETSUM_EMULATED_TARGET
  const DU du;
  const hn::RepartitionToWide<DU> d64;
  const VU steps = hn::Iota(du, 0), widths = hn::Set(du, width);
  const auto upper = hn::Set(d64, 0xFFFFFFFF00000000u);
  for (; i + hn::Lanes(du) <= n; i += hn::Lanes(du)) {
    const VU bits = random_vector(du, steps, key, first + static_cast<uint32_t>(i));
    const VU odd = hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(d64, bits)));
    const auto of_even = hn::ShiftRight<32>(hn::MulEven(bits, widths));
    const auto of_odd = hn::And(hn::MulEven(odd, widths), upper);
    const VU column = hn::BitCast(du, hn::Or(of_even, of_odd));
    store(hn::Or(column, hn::ShiftLeft<31>(bits)), du, bytes_of(cells + i));
  }
#endif
  plain::random_cells(key, first + static_cast<uint32_t>(i), n - i, width, cells + i);
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(intervals);
HWY_EXPORT(signed_intervals);
HWY_EXPORT(powers);
HWY_EXPORT(random_powers);
HWY_EXPORT(values_of_codes);
HWY_EXPORT(values_minus_codes);
HWY_EXPORT(short_numbers);
HWY_EXPORT(values_of_short_numbers);
HWY_EXPORT(cells_of);

}  // namespace

void to_intervals(const float* values, size_t n, const float* borders, uint32_t bits, uint8_t* codes) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(intervals)(values, n, borders, bits, codes);
}

void to_signed_intervals(const float* values, size_t n, float scale, const IndexedBorders& borders,
                         uint8_t* codes) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(signed_intervals)(values, n, scale, borders, codes);
}

void to_powers(const float* values, size_t n, int top, uint8_t* codes) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(powers)(values, n, top, codes);
}

void to_random_powers(const float* values, size_t n, int top, RandomKey key, uint32_t first, uint8_t* codes) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(random_powers)(values, n, top, key, first, codes);
}

void from_codes(const uint8_t* codes, size_t n, const float* table, float scale, float divisor, float* out) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(values_of_codes)(codes, n, table, scale, divisor, out);
}

void rest_of_codes(const float* values, const uint8_t* codes, size_t n, const float* table, float scale,
                   float* rest) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(values_minus_codes)(values, codes, n, table, scale, rest);
}

void to_short_numbers(const float* values, size_t n, float step, uint8_t* lengths, uint32_t* words,
                      float* rest) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(short_numbers)(values, n, step, lengths, words, rest);
}

void from_short_numbers(const uint8_t* lengths, const uint32_t* words, size_t n, float step, float divisor,
                        float* out) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(values_of_short_numbers)(lengths, words, n, step, divisor, out);
}

void random_cells(RandomKey key, uint32_t first, size_t n, uint32_t width, uint32_t* cells) {
  HWY_DYNAMIC_DISPATCH(cells_of)(key, first, n, width, cells);
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
