// Floating-point elements added one input after the other, vectorised. Each vector of elements is loaded from all inputs and
// added in registers, so nothing is stored but the result.
#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/assert.h"
#include "src/kernels/float_mode.h"
#include "src/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/sum_in_order.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

// Without `before`, the sum starts with the first input.
template <DataType kIn, DataType kOut, bool kBefore>
void add_in_order(const uint8_t* before, const uint8_t* const* inputs, size_t count, size_t n, int divisor,
                  uint8_t* out) {
  constexpr DataType kFirst = kBefore ? DataType::kFloat32 : kIn;
  constexpr size_t kFirstBytes = size_of(kFirst), kBegin = kBefore ? 0 : 1;
  const uint8_t* const start = kBefore ? before : inputs[0];
  constexpr size_t kInBytes = size_of(kIn), kOutBytes = size_of(kOut);
  const hn::ScalableTag<float> df;
  const size_t lanes = hn::Lanes(df);
  const auto by = hn::Set(df, static_cast<float>(divisor));
  // Multiplying by an exact reciprocal rounds as the division does, and is several times faster.
  const bool exact = std::has_single_bit(static_cast<unsigned>(divisor));
  const auto reciprocal = hn::Set(df, 1.0f / static_cast<float>(divisor));
  const auto finish = [&](hn::VFromD<decltype(df)> sum, uint8_t* to) HWY_ATTR {
    const auto mean = exact ? hn::Mul(sum, reciprocal) : hn::Div(sum, by);
    const auto nan = hn::BitCast(df, hn::Set(hn::RebindToUnsigned<decltype(df)>(), kNaNBits));
    store_floats<kOut>(df, hn::IfThenElse(hn::IsNaN(mean), nan, mean), to);
  };
  size_t done = 0;
  for (; done + 2 * lanes <= n; done += 2 * lanes) {
    const size_t first = done * kInBytes, second = (done + lanes) * kInBytes;
    auto a = load_floats<kFirst>(df, start + done * kFirstBytes),
         b = load_floats<kFirst>(df, start + (done + lanes) * kFirstBytes);
    for (size_t i = kBegin; i < count; ++i) {
      a = hn::Add(a, load_floats<kIn>(df, inputs[i] + first));
      b = hn::Add(b, load_floats<kIn>(df, inputs[i] + second));
    }
    finish(a, out + done * kOutBytes);
    finish(b, out + (done + lanes) * kOutBytes);
  }
  while (done < n) {
    const size_t rest = std::min(lanes, n - done);
    HWY_ALIGN uint8_t last[HWY_MAX_BYTES] = {};
    std::memcpy(last, start + done * kFirstBytes, rest * kFirstBytes);
    auto sum = load_floats<kFirst>(df, last);
    for (size_t i = kBegin; i < count; ++i) {
      std::memcpy(last, inputs[i] + done * kInBytes, rest * kInBytes);
      sum = hn::Add(sum, load_floats<kIn>(df, last));
    }
    finish(sum, last);
    std::memcpy(out + done * kOutBytes, last, rest * kOutBytes);
    done += rest;
  }
}

template <DataType kIn, DataType kOut>
void add_after(const uint8_t* before, const uint8_t* const* inputs, size_t count, size_t n, int divisor,
               uint8_t* out) {
  if (before == nullptr) return add_in_order<kIn, kOut, false>(before, inputs, count, n, divisor, out);
  add_in_order<kIn, kOut, true>(before, inputs, count, n, divisor, out);
}

template <DataType kIn>
void add_from(const uint8_t* before, const uint8_t* const* inputs, size_t count, size_t n, int divisor,
              DataType to, uint8_t* out) {
  if (to == kIn) return add_after<kIn, kIn>(before, inputs, count, n, divisor, out);
  if constexpr (kIn != DataType::kFloat32)
    return add_after<kIn, DataType::kFloat32>(before, inputs, count, n, divisor, out);
  if (to == DataType::kBFloat16)
    return add_after<DataType::kFloat32, DataType::kBFloat16>(before, inputs, count, n, divisor, out);
  add_after<DataType::kFloat32, DataType::kFloat16>(before, inputs, count, n, divisor, out);
}

void add_floats_in_order(DataType type, const uint8_t* before, const uint8_t* const* inputs, size_t count,
                         size_t n, int divisor, DataType to, uint8_t* out) {
  if (type == DataType::kFloat32)
    return add_from<DataType::kFloat32>(before, inputs, count, n, divisor, to, out);
  if (type == DataType::kBFloat16)
    return add_from<DataType::kBFloat16>(before, inputs, count, n, divisor, to, out);
  add_from<DataType::kFloat16>(before, inputs, count, n, divisor, to, out);
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(add_floats_in_order);

}  // namespace

void sum_in_order(DataType type, std::span<const uint8_t* const> inputs, size_t n, int divisor, DataType to,
                  void* out, const uint8_t* before) {
  NETSUM_ASSERT(is_floating(type) && !inputs.empty() && divisor > 0);
  NETSUM_ASSERT(to == type || type == DataType::kFloat32 || to == DataType::kFloat32);
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(add_floats_in_order)
  (type, before, inputs.data(), inputs.size(), n, divisor, to, static_cast<uint8_t*>(out));
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
