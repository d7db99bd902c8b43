// Selection and conversions of select.h, vectorised.
#include "src/kernels/select.h"

#include "src/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/select.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

size_t select_values(const float* values, size_t n, uint32_t bits, float* sent, float* rest) {
  const hn::ScalableTag<int32_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto magnitude_mask = hn::Set(d, 0x7FFFFFFF);
  const auto below = hn::Set(d, static_cast<int32_t>(bits - 1));  // not `bits`, which may be 2^31
  const auto infinity_or_nan = hn::Set(d, static_cast<int32_t>(kInfinityBits - 1));
  size_t count = 0;
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto value = load(d, bytes_of(values + i));
    const auto magnitude = hn::And(value, magnitude_mask);
    const auto is_sent = hn::Gt(magnitude, below);
    store(hn::IfThenElseZero(is_sent, value), d, bytes_of(sent + i));
    if (rest != nullptr) {
      const auto is_gone = hn::Or(is_sent, hn::Gt(magnitude, infinity_or_nan));
      store(hn::IfThenZeroElse(is_gone, value), d, bytes_of(rest + i));
    }
    count += hn::CountTrue(d, is_sent);
  }
  return count + plain::select(values + i, n - i, bits, sent + i, rest == nullptr ? nullptr : rest + i);
}

size_t select_of_sums(float decay, const float* values, size_t n, uint32_t bits, float* sent, float* memory) {
  const hn::ScalableTag<float> df;
  const hn::ScalableTag<int32_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(df, decay);
  const auto magnitude_mask = hn::Set(d, 0x7FFFFFFF);
  const auto below = hn::Set(d, static_cast<int32_t>(bits - 1));
  const auto infinity_or_nan = hn::Set(d, static_cast<int32_t>(kInfinityBits - 1));
  size_t count = 0;
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    // Rounded twice, as by accumulate().
    const auto kept = hn::Mul(factor, load(df, bytes_of(memory + i)));
    const auto value = hn::BitCast(d, hn::Add(kept, load(df, bytes_of(values + i))));
    const auto magnitude = hn::And(value, magnitude_mask);
    const auto is_sent = hn::Gt(magnitude, below);
    store(hn::IfThenElseZero(is_sent, value), d, bytes_of(sent + i));
    const auto is_gone = hn::Or(is_sent, hn::Gt(magnitude, infinity_or_nan));
    store(hn::IfThenZeroElse(is_gone, value), d, bytes_of(memory + i));
    count += hn::CountTrue(d, is_sent);
  }
  return count + plain::select_added(decay, values + i, n - i, bits, sent + i, memory + i);
}

template <DataType kType>
void values_to_halves(const float* values, size_t n, uint16_t* halves) {
  const hn::ScalableTag<float> df;
  const auto nan = hn::BitCast(df, hn::Set(hn::RebindToUnsigned<decltype(df)>(), kNaNBits));
  for_each_vector<4, 2>(n, hn::Lanes(df), bytes_of(values), bytes_of(halves),
                        [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
                          const auto value = load(df, from);
                          store_floats<kType>(df, hn::IfThenElse(hn::IsNaN(value), nan, value), to);
                        });
}

void floats_to_halves(DataType type, const float* values, size_t n, uint16_t* halves) {
  if (type == DataType::kFloat16) {
    values_to_halves<DataType::kFloat16>(values, n, halves);
  } else {
    values_to_halves<DataType::kBFloat16>(values, n, halves);
  }
}

template <DataType kType>
void halves_to_values(const uint16_t* halves, size_t n, float* values) {
  const hn::ScalableTag<float> df;
  const auto nan = hn::BitCast(df, hn::Set(hn::RebindToUnsigned<decltype(df)>(), kNaNBits));
  for_each_vector<2, 4>(n, hn::Lanes(df), bytes_of(halves), bytes_of(values),
                        [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
                          const auto value = load_floats<kType>(df, from);
                          store(hn::IfThenElse(hn::IsNaN(value), nan, value), df, to);
                        });
}

void halves_to_floats(DataType type, const uint16_t* halves, size_t n, float* values) {
  if (type == DataType::kFloat16) {
    halves_to_values<DataType::kFloat16>(halves, n, values);
  } else {
    halves_to_values<DataType::kBFloat16>(halves, n, values);
  }
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(select_values);
HWY_EXPORT(select_of_sums);
HWY_EXPORT(floats_to_halves);
HWY_EXPORT(halves_to_floats);

}  // namespace

size_t select(const float* values, size_t n, uint32_t bits, float* sent, float* rest) {
  return HWY_DYNAMIC_DISPATCH(select_values)(values, n, bits, sent, rest);
}

size_t select_added(float decay, const float* values, size_t n, uint32_t bits, float* sent, float* memory) {
  return HWY_DYNAMIC_DISPATCH(select_of_sums)(decay, values, n, bits, sent, memory);
}

void to_halves(DataType type, const float* values, size_t n, uint16_t* halves) {
  HWY_DYNAMIC_DISPATCH(floats_to_halves)(type, values, n, halves);
}

void from_halves(DataType type, const uint16_t* halves, size_t n, float* values) {
  HWY_DYNAMIC_DISPATCH(halves_to_floats)(type, halves, n, values);
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
