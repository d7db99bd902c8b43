// Tensor elements to lanes and back, vectorised. Where plain.cc computes in doubles, this mostly gets by with
// floats; the comments say why the bits agree.
#include <algorithm>
#include <bit>
#include <limits>

#include "src/base/assert.h"
#include "src/kernels/float_mode.h"
#include "src/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/convert.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

// --- Quantise

float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// x * 2^s in two multiplications, because 2^s for s in -117 to 156 may be no float. Exact: upwards there are
// bits to spare, and downwards only a product below 2^-126 is ever rounded, which becomes lane 0 either way.
struct Scale {
  Scale(uint8_t exponent, int members, int lane_bits) {
    if (exponent == 0) return;
    const int s = quantum_bits(members, lane_bits) + 126 - exponent;
    first = power_of_two(s / 2);
    second = power_of_two(s - s / 2);
    limit = static_cast<float>(largest_lane8(members));
  }
  float first = 0;
  float second = 0;
  float limit = 0;  // of 8-bit lanes
};

template <class DF>
HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> quantise(DF df, hn::VFromD<DF> x, const Scale& scale) {
  return nearest_int(df, hn::Mul(hn::Mul(x, hn::Set(df, scale.first)), hn::Set(df, scale.second)));
}

// For 8-bit lanes. Clamping before rounding gives the same, because the limit is an integer. A NaN gives 0 on every target,
// and an infinity the limit.
template <class DF>
HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> quantise_clamped(DF df, hn::VFromD<DF> x, const Scale& scale) {
  const auto quanta = hn::Mul(hn::Mul(x, hn::Set(df, scale.first)), hn::Set(df, scale.second));
  const auto number = hn::IfThenElseZero(hn::Eq(quanta, quanta), quanta);
  return nearest_int(df, hn::Clamp(number, hn::Set(df, -scale.limit), hn::Set(df, scale.limit)));
}

template <int kLaneBits, class DF>
HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> quantise_narrow(DF df, hn::VFromD<DF> x, const Scale& scale) {
  return kLaneBits == 8 ? quantise_clamped(df, x, scale) : quantise(df, x, scale);
}

// Lane: int32_t, int16_t or int8_t.
template <DataType kType, typename Lane>
void floats_to_lanes(const uint8_t* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  const hn::ScalableTag<float> df;
  const hn::Rebind<Lane, decltype(df)> d_lane;
  const Scale scale(exponent, members, 8 * sizeof(Lane));
  const auto body = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    will_read(from);
    const auto q = quantise_narrow<8 * sizeof(Lane)>(df, load_floats<kType>(df, from), scale);
    if constexpr (sizeof(Lane) == 4) {
      store(q, d_lane, to);
    } else {
      store(hn::DemoteTo(d_lane, q), d_lane, to);
    }
  };
  for_each_vector<size_of(kType), sizeof(Lane)>(n, hn::Lanes(df), in, lanes, body);
}

// 0 for a finite number, else the unit of the count that it belongs to; NaN belongs to both.
template <class DF>
HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> special_counts(DF, hn::VFromD<DF> x, int32_t plus_infinity,
                                                             int32_t minus_infinity) {
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::BitCast(di, x);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  const auto infinity = hn::Set(di, 0x7F800000);
  const auto is_negative = hn::Lt(bits, hn::Zero(di));
  auto counts = hn::IfThenElse(is_negative, hn::Set(di, minus_infinity), hn::Set(di, plus_infinity));
  counts = hn::IfThenElse(hn::Gt(magnitude, infinity), hn::Set(di, plus_infinity + minus_infinity), counts);
  return hn::IfThenZeroElse(hn::Lt(magnitude, infinity), counts);
}

// Finite elements of a block that has others: 0 in place of those.
template <class DF>
HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> quantise_finite(DF df, hn::VFromD<DF> x,
                                                              hn::VFromD<hn::RebindToSigned<DF>> counts,
                                                              const Scale& scale) {
  const auto is_finite = hn::Eq(counts, hn::Zero(hn::RebindToSigned<DF>()));
  return quantise(df, hn::IfThenElseZero(hn::RebindMask(df, is_finite), x), scale);
}

template <DataType kType>
void floats_to_wide_lanes32(const uint8_t* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const Scale scale(exponent, members, 16);
  const auto body = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    const auto x = load_floats<kType>(df, from);
    const auto counts = special_counts(df, x, 1 << 16, 1 << 21);
    store(hn::Add(quantise_finite(df, x, counts, scale), counts), di, to);
  };
  for_each_vector<size_of(kType), 4>(n, hn::Lanes(df), in, lanes, body);
}

template <DataType kType>
void floats_to_lanes64(const uint8_t* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  const hn::ScalableTag<int64_t> di64;
  const hn::Rebind<float, decltype(di64)> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::RebindToUnsigned<decltype(di64)> du64;
  const Scale scale(exponent, members, 32);
  const auto body = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    const auto x = load_floats<kType>(df, from);
    // The upper half of the lane: counts of +Inf from its bit 2, of -Inf from bit 12.
    const auto counts = special_counts(df, x, 1 << 2, 1 << 12);
    const auto value = hn::PromoteTo(di64, quantise_finite(df, x, counts, scale));
    const auto upper = hn::ShiftLeft<32>(hn::PromoteTo(du64, hn::BitCast(du, counts)));
    store(hn::Add(value, hn::BitCast(di64, upper)), di64, to);
  };
  for_each_vector<size_of(kType), 8>(n, hn::Lanes(di64), in, lanes, body);
}

// --- Dequantise

// What becomes of the sums of one block, after they are floats.
class Averager {
 public:
  Averager(int members, bool average)
      : divisor_(average ? static_cast<float>(members) : 1.0f),
        // Multiplying by an exact reciprocal rounds as the division does, and is several times faster.
        exact_(!average || std::has_single_bit(static_cast<unsigned>(members))) {}

  template <class DF>
  HWY_INLINE hn::VFromD<DF> operator()(DF df, hn::VFromD<DF> v) const {
    return exact_ ? hn::Mul(v, hn::Set(df, 1.0f / divisor_)) : hn::Div(v, hn::Set(df, divisor_));
  }

 private:
  float divisor_;
  bool exact_;
};

// The general way to a float with one rounding: in doubles, where sum * quantum is exact.
template <class DF>
HWY_INLINE hn::VFromD<DF> dequantise(DF df, hn::VFromD<hn::Rebind<double, DF>> sum, double quantum) {
  const hn::Rebind<double, DF> dd;
  return round_to_float(df, hn::Mul(sum, hn::Set(dd, quantum)));
}

double quantum(uint8_t exponent, int members, int lane_bits) {
  return exponent == 0 ? 0.0 : std::ldexp(1.0, exponent - 126 - quantum_bits(members, lane_bits));
}

// What a lane of floats becomes where `step`, the quantum, is exact in binary32. A zero quantum must not give
// -0.
template <class DF>
HWY_INLINE hn::VFromD<DF> scaled(DF df, hn::VFromD<hn::RebindToSigned<DF>> sum, float step) {
  return step == 0 ? hn::Zero(df) : hn::Mul(hn::ConvertTo(df, sum), hn::Set(df, step));
}

// With lanes of 16 and 8 bits all is exact in floats: sums have 15 bits, quanta are multiples of 2^-140. Lane: int16_t or
// int8_t.
template <DataType kType, typename Lane>
void short_lanes_to_floats(const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                           uint8_t* out) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<Lane, decltype(df)> d_lane;
  const Averager averager(members, average);
  const auto step = static_cast<float>(quantum(exponent, members, 8 * sizeof(Lane)));
  const auto body = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    will_write(to);
    const auto sum = hn::PromoteTo(di, load(d_lane, from));
    store_floats<kType>(df, averager(df, scaled(df, sum, step)), to);
  };
  for_each_vector<sizeof(Lane), size_of(kType)>(n, hn::Lanes(df), lanes, out, body);
}

template <DataType kType>
void lanes32_to_floats(const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                       uint8_t* out) {
  const Averager averager(members, average);
  const double step = quantum(exponent, members, 32);
  if (exponent == 0 || exponent >= quantum_bits(members)) {
    // The quantum is a normal float, so no multiple of it is subnormal: the conversion to float is the only
    // rounding, and scaling its result is exact or overflows to infinity as it should.
    const hn::ScalableTag<float> df;
    const hn::RebindToSigned<decltype(df)> di;
    const auto step32 = static_cast<float>(step);
    const auto body = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
      will_write(to);
      store_floats<kType>(df, averager(df, scaled(df, load(di, from), step32)), to);
    };
    for_each_vector<4, size_of(kType)>(n, hn::Lanes(df), lanes, out, body);
  } else {
    const hn::ScalableTag<double> dd;
    const hn::Rebind<float, decltype(dd)> df;
    const hn::Rebind<int32_t, decltype(dd)> di;
    const auto body = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
      const auto value = dequantise(df, hn::PromoteTo(dd, load(di, from)), step);
      store_floats<kType>(df, averager(df, value), to);
    };
    for_each_vector<4, size_of(kType)>(n, hn::Lanes(dd), lanes, out, body);
  }
}

template <DataType kType, typename Lane>
void lanes_to_floats(const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                     uint8_t* out) {
  if constexpr (sizeof(Lane) == 4) {
    lanes32_to_floats<kType>(lanes, n, exponent, members, average, out);
  } else {
    short_lanes_to_floats<kType, Lane>(lanes, n, exponent, members, average, out);
  }
}

// The result where counts of +Inf and -Inf lie next to each other from bit 0 of `counts`.
template <int kCountBits, class DF>
HWY_INLINE hn::VFromD<DF> with_specials(DF df, hn::VFromD<DF> value,
                                        hn::VFromD<hn::RebindToUnsigned<DF>> counts) {
  const hn::RebindToUnsigned<DF> du;
  const auto zero = hn::Zero(du);
  const auto field = hn::Set(du, (1u << kCountBits) - 1);
  const auto no_plus = hn::Eq(hn::And(counts, field), zero);
  const auto no_minus = hn::Eq(hn::And(hn::ShiftRight<kCountBits>(counts), field), zero);
  const auto no_nan = hn::Or(no_plus, no_minus);
  auto bits = hn::BitCast(du, value);
  bits = hn::IfThenElse(no_plus, bits, hn::Set(du, 0x7F800000));
  bits = hn::IfThenElse(no_minus, bits, hn::Set(du, 0xFF800000));
  return hn::BitCast(df, hn::IfThenElse(no_nan, bits, hn::Set(du, kNaNBits)));
}

template <DataType kType>
void wide_lanes32_to_floats(const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                            uint8_t* out) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::RebindToUnsigned<decltype(df)> du;
  const Averager averager(members, average);
  const auto step = static_cast<float>(quantum(exponent, members, 16));
  const auto body = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    const auto lane = load(di, from);
    const auto sum = hn::ShiftRight<16>(hn::ShiftLeft<16>(lane));
    const auto counts = hn::ShiftRight<16>(hn::BitCast(du, hn::Sub(lane, sum)));
    store_floats<kType>(df, with_specials<5>(df, averager(df, scaled(df, sum, step)), counts), to);
  };
  for_each_vector<4, size_of(kType)>(n, hn::Lanes(df), lanes, out, body);
}

template <DataType kType>
void lanes64_to_floats(const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                       uint8_t* out) {
  const hn::ScalableTag<int64_t> di64;
  const hn::RebindToUnsigned<decltype(di64)> du64;
  const hn::RebindToFloat<decltype(di64)> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const Averager averager(members, average);
  const double step = quantum(exponent, members, 32);
  const auto body = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    const auto lane = load(di64, from);
    const auto sum = hn::ShiftRight<30>(hn::ShiftLeft<30>(lane));
    // A negative sum has borrowed from the counts above it: taking it out restores them.
    const auto counts64 = hn::ShiftRight<34>(hn::BitCast(du64, hn::Sub(lane, sum)));
    const auto sum64 = exponent == 0 ? hn::Zero(dd) : hn::ConvertTo(dd, sum);
    const auto value = averager(df, dequantise(df, sum64, step));
    store_floats<kType>(df, with_specials<10>(df, value, hn::TruncateTo(du, counts64)), to);
  };
  for_each_vector<8, size_of(kType)>(n, hn::Lanes(di64), lanes, out, body);
}

// --- int32 in wide lanes

void int32_to_lanes64(const uint8_t* in, size_t n, uint8_t* lanes) {
  const hn::ScalableTag<int64_t> di64;
  const hn::Rebind<int32_t, decltype(di64)> di;
  for_each_vector<4, 8>(n, hn::Lanes(di64), in, lanes, [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    store(hn::PromoteTo(di64, load(di, from)), di64, to);
  });
}

bool lanes64_to_int32(const uint8_t* lanes, size_t n, uint8_t* out) {
  const hn::ScalableTag<int64_t> di64;
  const hn::RebindToUnsigned<decltype(di64)> du64;
  const hn::Rebind<int32_t, decltype(di64)> di;
  const hn::RebindToUnsigned<decltype(di)> du;
  auto lost = hn::Zero(di64);
  const auto body = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    const auto lane = load(di64, from);
    const auto low = hn::BitCast(di, hn::TruncateTo(du, hn::BitCast(du64, lane)));
    lost = hn::Or(lost, hn::Xor(lane, hn::PromoteTo(di64, low)));
    store(low, di, to);
  };
  for_each_vector<8, 4>(n, hn::Lanes(di64), lanes, out, body);
  return hn::AllTrue(di64, hn::Eq(lost, hn::Zero(di64)));
}

// --- Several inputs to their sum

// Quantised and added in registers, so that no lanes are stored.
template <DataType kType, int kLaneBits>
void sum_floats(const uint8_t* const* inputs, size_t count, size_t n, uint8_t exponent, int members,
                bool average, uint8_t* out) {
  constexpr size_t kBytes = size_of(kType);
  const hn::ScalableTag<float> df;
  const size_t lanes = hn::Lanes(df);
  const Scale scale(exponent, members, kLaneBits);
  const Averager averager(members, average);
  const auto step = static_cast<float>(quantum(exponent, members, kLaneBits));
  const auto finish = [&](hn::VFromD<hn::RebindToSigned<decltype(df)>> sum, uint8_t* to)
                          HWY_ATTR { store_floats<kType>(df, averager(df, scaled(df, sum, step)), to); };
  size_t done = 0;
  for (; done + 2 * lanes <= n; done += 2 * lanes) {
    const size_t first = done * kBytes, second = (done + lanes) * kBytes;
    auto a = hn::Zero(hn::RebindToSigned<decltype(df)>()), b = a;
    for (size_t i = 0; i < count; ++i) {
      a = hn::Add(a, quantise_narrow<kLaneBits>(df, load_floats<kType>(df, inputs[i] + first), scale));
      b = hn::Add(b, quantise_narrow<kLaneBits>(df, load_floats<kType>(df, inputs[i] + second), scale));
    }
    finish(a, out + first);
    finish(b, out + second);
  }
  while (done < n) {
    const size_t rest = std::min(lanes, n - done) * kBytes;
    HWY_ALIGN uint8_t last[HWY_MAX_BYTES] = {};
    auto sum = hn::Zero(hn::RebindToSigned<decltype(df)>());
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(last, inputs[i] + done * kBytes, rest);
      sum = hn::Add(sum, quantise_narrow<kLaneBits>(df, load_floats<kType>(df, last), scale));
    }
    finish(sum, last);
    std::memcpy(out + done * kBytes, last, rest);
    done += rest / kBytes;
  }
}

template <DataType kType>
void sum_floats(const uint8_t* const* inputs, size_t count, size_t n, uint8_t exponent, int members,
                int lane_bits, bool average, uint8_t* out) {
  if (lane_bits == 8) return sum_floats<kType, 8>(inputs, count, n, exponent, members, average, out);
  if (lane_bits == 16) return sum_floats<kType, 16>(inputs, count, n, exponent, members, average, out);
  sum_floats<kType, 32>(inputs, count, n, exponent, members, average, out);
}

template <typename T>
void sum_integers(const uint8_t* const* inputs, size_t count, size_t n, uint8_t* out) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t done = 0; done < n; done += lanes) {
    const size_t bytes = std::min(lanes, n - done) * sizeof(T);
    HWY_ALIGN uint8_t last[HWY_MAX_BYTES] = {};
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < count; ++i) {
      const uint8_t* from = inputs[i] + done * sizeof(T);
      if (bytes < lanes * sizeof(T)) from = static_cast<const uint8_t*>(std::memcpy(last, from, bytes));
      sum = hn::Add(sum, load(d, from));
    }
    store(sum, d, last);
    std::memcpy(out + done * sizeof(T), last, bytes);
  }
}

void sum_elements(DataType type, const uint8_t* const* inputs, size_t count, size_t n, uint8_t exponent,
                  int members, int lane_bits, bool average, uint8_t* out) {
  switch (type) {
    case DataType::kFloat32:
      return sum_floats<DataType::kFloat32>(inputs, count, n, exponent, members, lane_bits, average, out);
    case DataType::kBFloat16:
      return sum_floats<DataType::kBFloat16>(inputs, count, n, exponent, members, lane_bits, average, out);
    case DataType::kFloat16:
      return sum_floats<DataType::kFloat16>(inputs, count, n, exponent, members, lane_bits, average, out);
    case DataType::kInt32:
      return sum_integers<int32_t>(inputs, count, n, out);
    case DataType::kInt64:
      return sum_integers<int64_t>(inputs, count, n, out);
    case DataType::kByte:  // never summed
      return;
  }
}

// --- One entry per direction and kind of lanes: a dispatch costs as much as a few vectors of work

// float32 never travels in 16-bit lanes.
template <typename Lane>
constexpr bool carries_float32() {
  return sizeof(Lane) != 2;
}

template <typename Lane>
void elements_to_lanes(DataType type, const uint8_t* in, size_t n, uint8_t exponent, int members,
                       uint8_t* lanes) {
  if constexpr (carries_float32<Lane>()) {
    if (type == DataType::kFloat32)
      return floats_to_lanes<DataType::kFloat32, Lane>(in, n, exponent, members, lanes);
  }
  if (type == DataType::kBFloat16)
    return floats_to_lanes<DataType::kBFloat16, Lane>(in, n, exponent, members, lanes);
  floats_to_lanes<DataType::kFloat16, Lane>(in, n, exponent, members, lanes);
}

template <typename Lane>
void lanes_to_elements(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members,
                       bool average, uint8_t* out) {
  if constexpr (carries_float32<Lane>()) {
    if (type == DataType::kFloat32)
      return lanes_to_floats<DataType::kFloat32, Lane>(lanes, n, exponent, members, average, out);
  }
  if (type == DataType::kBFloat16)
    return lanes_to_floats<DataType::kBFloat16, Lane>(lanes, n, exponent, members, average, out);
  lanes_to_floats<DataType::kFloat16, Lane>(lanes, n, exponent, members, average, out);
}

void elements_to_narrow_lanes(DataType type, int lane_bits, const uint8_t* in, size_t n, uint8_t exponent,
                              int members, uint8_t* lanes) {
  if (lane_bits == 8) return elements_to_lanes<int8_t>(type, in, n, exponent, members, lanes);
  if (lane_bits == 16) return elements_to_lanes<int16_t>(type, in, n, exponent, members, lanes);
  elements_to_lanes<int32_t>(type, in, n, exponent, members, lanes);
}

void narrow_lanes_to_elements(DataType type, int lane_bits, const uint8_t* lanes, size_t n, uint8_t exponent,
                              int members, bool average, uint8_t* out) {
  if (lane_bits == 8) return lanes_to_elements<int8_t>(type, lanes, n, exponent, members, average, out);
  if (lane_bits == 16) return lanes_to_elements<int16_t>(type, lanes, n, exponent, members, average, out);
  lanes_to_elements<int32_t>(type, lanes, n, exponent, members, average, out);
}

void elements_to_wide_lanes32(DataType type, const uint8_t* in, size_t n, uint8_t exponent, int members,
                              uint8_t* lanes) {
  if (type == DataType::kBFloat16)
    return floats_to_wide_lanes32<DataType::kBFloat16>(in, n, exponent, members, lanes);
  floats_to_wide_lanes32<DataType::kFloat16>(in, n, exponent, members, lanes);
}

void wide_lanes32_to_elements(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members,
                              bool average, uint8_t* out) {
  if (type == DataType::kBFloat16)
    return wide_lanes32_to_floats<DataType::kBFloat16>(lanes, n, exponent, members, average, out);
  wide_lanes32_to_floats<DataType::kFloat16>(lanes, n, exponent, members, average, out);
}

void elements_to_lanes64(DataType type, const uint8_t* in, size_t n, uint8_t exponent, int members,
                         uint8_t* lanes) {
  if (type == DataType::kInt32) return int32_to_lanes64(in, n, lanes);
  if (type == DataType::kFloat32)
    return floats_to_lanes64<DataType::kFloat32>(in, n, exponent, members, lanes);
  if (type == DataType::kBFloat16)
    return floats_to_lanes64<DataType::kBFloat16>(in, n, exponent, members, lanes);
  floats_to_lanes64<DataType::kFloat16>(in, n, exponent, members, lanes);
}

bool lanes64_to_elements(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members,
                         bool average, uint8_t* out) {
  if (type == DataType::kInt32) return lanes64_to_int32(lanes, n, out);
  if (type == DataType::kFloat32) {
    lanes64_to_floats<DataType::kFloat32>(lanes, n, exponent, members, average, out);
  } else if (type == DataType::kBFloat16) {
    lanes64_to_floats<DataType::kBFloat16>(lanes, n, exponent, members, average, out);
  } else {
    lanes64_to_floats<DataType::kFloat16>(lanes, n, exponent, members, average, out);
  }
  return true;
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(elements_to_narrow_lanes);
HWY_EXPORT(narrow_lanes_to_elements);
HWY_EXPORT(elements_to_wide_lanes32);
HWY_EXPORT(wide_lanes32_to_elements);
HWY_EXPORT(elements_to_lanes64);
HWY_EXPORT(lanes64_to_elements);
HWY_EXPORT(sum_elements);

const uint8_t* bytes(const void* p) {
  return static_cast<const uint8_t*>(p);
}

// memcpy() with a null pointer is undefined even for no bytes, and an empty tensor may have one.
void copy(void* to, const void* from, size_t count) {
  if (count != 0) std::memcpy(to, from, count);
}

void floats_to_lanes(DataType type, int lane_bits, const void* in, size_t n, uint8_t exponent, int members,
                     uint8_t* lanes) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(elements_to_narrow_lanes)(type, lane_bits, bytes(in), n, exponent, members, lanes);
}

void lanes_to_floats(DataType type, int lane_bits, const uint8_t* lanes, size_t n, uint8_t exponent,
                     int members, bool average, void* out) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(narrow_lanes_to_elements)
  (type, lane_bits, lanes, n, exponent, members, average, static_cast<uint8_t*>(out));
}

}  // namespace

void to_lanes32(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  NETSUM_ASSERT(type != DataType::kInt64);
  if (type == DataType::kInt32) return copy(lanes, in, n * 4);
  floats_to_lanes(type, 32, in, n, exponent, members, lanes);
}

void from_lanes32(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out) {
  NETSUM_ASSERT(type != DataType::kInt64);
  NETSUM_ASSERT(is_floating(type) || !average);
  if (type == DataType::kInt32) return copy(out, lanes, n * 4);
  lanes_to_floats(type, 32, lanes, n, exponent, members, average, out);
}

void to_lanes16(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  NETSUM_ASSERT(fits_lanes16(type, members));
  floats_to_lanes(type, 16, in, n, exponent, members, lanes);
}

void from_lanes16(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out) {
  NETSUM_ASSERT(fits_lanes16(type, members));
  lanes_to_floats(type, 16, lanes, n, exponent, members, average, out);
}

void to_lanes8(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  NETSUM_ASSERT(fits_lanes8(type, members));
  floats_to_lanes(type, 8, in, n, exponent, members, lanes);
}

void from_lanes8(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                 void* out) {
  NETSUM_ASSERT(fits_lanes8(type, members));
  lanes_to_floats(type, 8, lanes, n, exponent, members, average, out);
}

void to_wide_lanes32(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  NETSUM_ASSERT(fits_lanes16(type, members));
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(elements_to_wide_lanes32)(type, bytes(in), n, exponent, members, lanes);
}

void from_wide_lanes32(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members,
                       bool average, void* out) {
  NETSUM_ASSERT(fits_lanes16(type, members));
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(wide_lanes32_to_elements)
  (type, lanes, n, exponent, members, average, static_cast<uint8_t*>(out));
}

void to_lanes64(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  if (type == DataType::kInt64) return copy(lanes, in, n * 8);
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(elements_to_lanes64)(type, bytes(in), n, exponent, members, lanes);
}

bool from_lanes64(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out) {
  NETSUM_ASSERT(is_floating(type) || !average);
  if (type == DataType::kInt64) {
    copy(out, lanes, n * 8);
    return true;
  }
  const FloatMode mode;
  return HWY_DYNAMIC_DISPATCH(lanes64_to_elements)(type, lanes, n, exponent, members, average,
                                                   static_cast<uint8_t*>(out));
}

bool can_sum_narrow(DataType type, int lane_bits, uint8_t exponent, int members) {
  return !is_floating(type) || lane_bits != 32 || exponent == 0 || exponent >= quantum_bits(members);
}

void sum_narrow(DataType type, int lane_bits, std::span<const uint8_t* const> inputs, size_t n,
                uint8_t exponent, int members, bool average, void* out) {
  NETSUM_ASSERT(can_sum_narrow(type, lane_bits, exponent, members));
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(sum_elements)
  (type, inputs.data(), inputs.size(), n, exponent, members, lane_bits, average, static_cast<uint8_t*>(out));
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
