// The plain references of select.h, and its kernels that have no version in vectors.
#include <algorithm>
#include <array>
#include <vector>

#include "src/base/assert.h"
#include "src/kernels/half.h"
#include "src/kernels/select.h"

namespace netsum::kernels {
namespace {

// The digits of a magnitude from the top: 11, 10 and 10 of its 31 bits.
struct Digit {
  int shift;
  int bits;
};
constexpr std::array<Digit, 3> kDigits = {{{20, 11}, {10, 10}, {0, 10}}};

constexpr size_t kLine = 64 / sizeof(float);
constexpr size_t kMostStride = 16;
constexpr size_t kSamplesAbove = 16'000;
// Keys of the histogram: the exponent and 7 bits of the fraction, as in bfloat16.
constexpr int kKeyShift = 16;
constexpr size_t kKeys = size_t{1} << 15;

// value_of(i) is the value of element i.
template <class ValueOf>
uint32_t sampled(size_t n, size_t k, const ValueOf& value_of) {
  NETSUM_ASSERT(k >= 1 && k <= n);
  const size_t stride = std::min(kMostStride, k / kSamplesAbove);
  if (stride < 2) return 0;
  std::array<uint32_t, kKeys> counts{};
  size_t samples = 0;
  const size_t lines = (n + kLine - 1) / kLine;
  for (size_t first = 0; first < lines; first += stride) {
    // A random line, because every stride-th might be the same columns of a matrix. The constant is 2^64 over the golden ratio.
    const size_t line = first + ((first + 1) * 0x9E3779B97F4A7C15u >> 32) % std::min(stride, lines - first);
    const size_t end = std::min((line + 1) * kLine, n);
    for (size_t i = line * kLine; i < end; ++i, ++samples) ++counts[magnitude_bits(value_of(i)) >> kKeyShift];
  }
  const double wanted = static_cast<double>(k) * static_cast<double>(samples) / static_cast<double>(n);
  double above = 0;
  uint32_t key = kKeys - 1;
  while (key > 0 && above + counts[key] < wanted) above += counts[key--];
  // Values are taken as spread evenly over their key.
  const double share = counts[key] == 0 ? 0 : std::min(1.0, (wanted - above) / counts[key]);
  const double bits = (key + 1 - share) * (1 << kKeyShift);
  return std::clamp(static_cast<uint32_t>(bits), 1u, kInfinityBits);
}

}  // namespace

KthMagnitude kth_magnitude(const float* values, size_t n, size_t k) {
  NETSUM_ASSERT(k >= 1 && k <= n);
  KthMagnitude result;
  for (const Digit digit : kDigits) {
    std::array<size_t, 2048> counts{};
    // All bits above the digit are known from the passes before.
    const uint32_t known = 0x7FFFFFFFu & ~((1u << (digit.shift + digit.bits)) - 1);
    const uint32_t mask = (1u << digit.bits) - 1;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t bits = magnitude_bits(values[i]);
      if ((bits & known) == result.bits) ++counts[bits >> digit.shift & mask];
    }
    uint32_t value = mask;
    while (result.above + counts[value] < k) result.above += counts[value--];
    result.bits |= value << digit.shift;
    result.equal = counts[value];
  }
  return result;
}

uint32_t sampled_magnitude(const float* values, size_t n, size_t k) {
  return sampled(n, k, [&](size_t i) { return values[i]; });
}

uint32_t sampled_magnitude_added(float decay, const float* values, const float* memory, size_t n, size_t k) {
  return sampled(n, k, [&](size_t i) { return decay * memory[i] + values[i]; });
}

void accumulate(float decay, const float* values, size_t n, float* memory) {
  if (decay == 1) {
    for (size_t i = 0; i < n; ++i) memory[i] += values[i];
  } else {
    for (size_t i = 0; i < n; ++i) memory[i] = decay * memory[i] + values[i];
  }
}

namespace plain {

size_t select(const float* values, size_t n, uint32_t bits, float* sent, float* rest) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    const float value = values[i];
    const uint32_t magnitude = magnitude_bits(value);
    const bool is_sent = magnitude >= bits;
    sent[i] = is_sent ? value : 0.0f;
    if (rest != nullptr) rest[i] = is_sent || magnitude >= kInfinityBits ? 0.0f : value;
    count += is_sent ? 1 : 0;
  }
  return count;
}

size_t select_added(float decay, const float* values, size_t n, uint32_t bits, float* sent, float* memory) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    const float value = decay * memory[i] + values[i];
    count += select(&value, 1, bits, sent + i, memory + i);
  }
  return count;
}

void to_halves(DataType type, const float* values, size_t n, uint16_t* halves) {
  for (size_t i = 0; i < n; ++i)
    halves[i] = type == DataType::kFloat16 ? float_to_float16(values[i]) : float_to_bfloat16(values[i]);
}

void from_halves(DataType type, const uint16_t* halves, size_t n, float* values) {
  for (size_t i = 0; i < n; ++i)
    values[i] = type == DataType::kFloat16 ? float16_to_float(halves[i]) : bfloat16_to_float(halves[i]);
}

}  // namespace plain
}  // namespace netsum::kernels
