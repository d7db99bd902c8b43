// The reference: one element at a time, in doubles, where every product with a power of two is exact.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/base/assert.h"
#include "src/kernels/half.h"
#include "src/kernels/kernels.h"

namespace netsum::kernels::plain {
namespace {

static_assert(std::endian::native == std::endian::little, "lanes are read and written in place");

// Memory of the user and of packets has any alignment.
template <typename T>
T load(const void* base, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(base) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(void* base, size_t index, T value) {
  std::memcpy(static_cast<uint8_t*>(base) + index * sizeof(T), &value, sizeof(T));
}

float load_float(DataType type, const void* base, size_t index) {
  switch (type) {
    case DataType::kBFloat16:
      return bfloat16_to_float(load<uint16_t>(base, index));
    case DataType::kFloat16:
      return float16_to_float(load<uint16_t>(base, index));
    default:
      return load<float>(base, index);
  }
}

void store_float(DataType type, void* base, size_t index, float value) {
  switch (type) {
    case DataType::kBFloat16:
      return store(base, index, float_to_bfloat16(value));
    case DataType::kFloat16:
      return store(base, index, float_to_float16(value));
    default:
      return store(base, index, std::isnan(value) ? std::bit_cast<float>(kNaNBits) : value);
  }
}

template <typename T>
BlockScale scan_integers(const void* in, size_t n, int members) {
  const T limit = std::numeric_limits<T>::max() / members;
  BlockScale scale;
  for (size_t i = 0; i < n; ++i) {
    const T x = load<T>(in, i);
    if (x != 0) scale.exponent = 1;
    if (x > limit || x < -limit) scale.wide = 1;
  }
  return scale;
}

// How a block is quantised: what all of its lanes share.
struct Quanta {
  uint8_t exponent;
  int members;
  int lane_bits;

  // The power of two that one unit of a lane stands for.
  int quantum_exponent() const { return exponent - 126 - quantum_bits(members, lane_bits); }

  int64_t quantise(float x) const {
    if (exponent == 0) return 0;
    double quanta = std::nearbyint(std::ldexp(static_cast<double>(x), -quantum_exponent()));
    if (lane_bits == 8) {
      const double limit = largest_lane8(members);
      quanta = std::isnan(x) ? 0 : std::clamp(quanta, -limit, limit);
    }
    return static_cast<int64_t>(quanta);
  }

  float dequantise(int64_t sum, bool average) const {
    if (exponent == 0) return 0.0f;
    const auto value = static_cast<float>(std::ldexp(static_cast<double>(sum), quantum_exponent()));
    return average ? value / static_cast<float>(members) : value;
  }
};

// Blocks without NaN or Inf, in narrow lanes of the type Lane.
template <typename Lane>
void floats_to_lanes(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  const Quanta quanta{exponent, members, 8 * sizeof(Lane)};
  for (size_t i = 0; i < n; ++i) {
    store(lanes, i, static_cast<Lane>(quanta.quantise(load_float(type, in, i))));
  }
}

template <typename Lane>
void lanes_to_floats(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members,
                     bool average, void* out) {
  const Quanta quanta{exponent, members, 8 * sizeof(Lane)};
  for (size_t i = 0; i < n; ++i) {
    store_float(type, out, i, quanta.dequantise(load<Lane>(lanes, i), average));
  }
}

// A wide lane of a block with NaN or Inf: the value in the low `value_bits`, then the counts of +Inf and
// -Inf.
struct WideLayout {
  int value_bits;
  int count_bits;
};
constexpr WideLayout kWide64{34, 10};
constexpr WideLayout kWide32{16, 5};

int64_t to_wide_lane(float x, const Quanta& quanta, WideLayout layout) {
  if (std::isfinite(x)) return quanta.quantise(x);
  const int64_t plus = int64_t{1} << layout.value_bits;
  const int64_t minus = plus << layout.count_bits;
  return std::isnan(x) ? plus + minus : x > 0 ? plus : minus;
}

float from_wide_lane(int64_t lane, const Quanta& quanta, WideLayout layout, bool average) {
  // A negative sum has borrowed from the counts above it: taking it out restores them.
  const int above = 64 - layout.value_bits;
  const int64_t sum = static_cast<int64_t>(static_cast<uint64_t>(lane) << above) >> above;
  const uint64_t counts = (static_cast<uint64_t>(lane) - static_cast<uint64_t>(sum)) >> layout.value_bits;
  const uint64_t field = (uint64_t{1} << layout.count_bits) - 1;
  const bool plus = (counts & field) != 0;
  const bool minus = ((counts >> layout.count_bits) & field) != 0;
  if (plus && minus) return NAN;
  if (plus) return INFINITY;
  return minus ? -INFINITY : quanta.dequantise(sum, average);
}

// Adding wraps by definition of the lanes; the builtin tells whether it did.
template <typename T>
bool add_lanes(uint8_t* acc, const uint8_t* lanes, size_t n) {
  bool overflow = false;
  for (size_t i = 0; i < n; ++i) {
    T sum;
    overflow |= __builtin_add_overflow(load<T>(acc, i), load<T>(lanes, i), &sum);
    store(acc, i, sum);
  }
  return overflow;
}

template <typename T>
void max_lanes(uint8_t* acc, const uint8_t* lanes, size_t n) {
  for (size_t i = 0; i < n; ++i) store(acc, i, std::max(load<T>(acc, i), load<T>(lanes, i)));
}

}  // namespace

BlockScale scan(DataType type, const void* in, size_t n, int members) {
  if (type == DataType::kInt32) return scan_integers<int32_t>(in, n, members);
  if (type == DataType::kInt64) return scan_integers<int64_t>(in, n, members);
  BlockScale scale;
  for (size_t i = 0; i < n; ++i) {
    const float x = load_float(type, in, i);
    if (!std::isfinite(x)) {
      scale.wide = 1;
    } else if (x != 0) {
      const auto field = static_cast<uint8_t>((std::bit_cast<uint32_t>(x) >> 23) & 255);
      scale.exponent = std::max({scale.exponent, field, uint8_t{1}});
    }
  }
  return scale;
}

void to_lanes32(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  NETSUM_ASSERT(type != DataType::kInt64);
  if (is_floating(type)) return floats_to_lanes<int32_t>(type, in, n, exponent, members, lanes);
  for (size_t i = 0; i < n; ++i) store(lanes, i, load<int32_t>(in, i));
}

void from_lanes32(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out) {
  NETSUM_ASSERT(type != DataType::kInt64);
  if (is_floating(type)) return lanes_to_floats<int32_t>(type, lanes, n, exponent, members, average, out);
  for (size_t i = 0; i < n; ++i) store(out, i, load<int32_t>(lanes, i));
}

void to_lanes16(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  NETSUM_ASSERT(fits_lanes16(type, members));
  floats_to_lanes<int16_t>(type, in, n, exponent, members, lanes);
}

void from_lanes16(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out) {
  NETSUM_ASSERT(fits_lanes16(type, members));
  lanes_to_floats<int16_t>(type, lanes, n, exponent, members, average, out);
}

void to_lanes8(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  NETSUM_ASSERT(fits_lanes8(type, members));
  floats_to_lanes<int8_t>(type, in, n, exponent, members, lanes);
}

void from_lanes8(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                 void* out) {
  NETSUM_ASSERT(fits_lanes8(type, members));
  lanes_to_floats<int8_t>(type, lanes, n, exponent, members, average, out);
}

void to_lanes64(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  const Quanta quanta{exponent, members, 32};
  for (size_t i = 0; i < n; ++i) {
    int64_t lane = 0;
    if (type == DataType::kInt64) {
      lane = load<int64_t>(in, i);
    } else if (type == DataType::kInt32) {
      lane = load<int32_t>(in, i);
    } else {
      lane = to_wide_lane(load_float(type, in, i), quanta, kWide64);
    }
    store(lanes, i, lane);
  }
}

bool from_lanes64(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out) {
  const Quanta quanta{exponent, members, 32};
  bool fits = true;
  for (size_t i = 0; i < n; ++i) {
    const auto lane = load<int64_t>(lanes, i);
    if (type == DataType::kInt64) {
      store(out, i, lane);
    } else if (type == DataType::kInt32) {
      fits &= lane == static_cast<int32_t>(lane);
      store(out, i, static_cast<int32_t>(lane));
    } else {
      store_float(type, out, i, from_wide_lane(lane, quanta, kWide64, average));
    }
  }
  return fits;
}

void to_wide_lanes32(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes) {
  NETSUM_ASSERT(fits_lanes16(type, members));
  const Quanta quanta{exponent, members, 16};
  for (size_t i = 0; i < n; ++i) {
    store(lanes, i, static_cast<int32_t>(to_wide_lane(load_float(type, in, i), quanta, kWide32)));
  }
}

void from_wide_lanes32(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members,
                       bool average, void* out) {
  NETSUM_ASSERT(fits_lanes16(type, members));
  const Quanta quanta{exponent, members, 16};
  for (size_t i = 0; i < n; ++i) {
    store_float(type, out, i, from_wide_lane(load<int32_t>(lanes, i), quanta, kWide32, average));
  }
}

void sum_in_order(DataType type, std::span<const uint8_t* const> inputs, size_t n, int divisor, DataType to,
                  void* out, const uint8_t* before) {
  for (size_t i = 0; i < n; ++i) {
    float sum =
        before == nullptr ? load_float(type, inputs[0], i) : load_float(DataType::kFloat32, before, i);
    for (const uint8_t* input : inputs.subspan(before == nullptr ? 1 : 0)) sum += load_float(type, input, i);
    sum /= static_cast<float>(divisor);
    store_float(to, out, i, sum);
  }
}

bool add_lanes8(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return add_lanes<int8_t>(acc, lanes, n);
}
bool add_lanes16(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return add_lanes<int16_t>(acc, lanes, n);
}
bool add_lanes32(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return add_lanes<int32_t>(acc, lanes, n);
}
bool add_lanes64(uint8_t* acc, const uint8_t* lanes, size_t n) {
  return add_lanes<int64_t>(acc, lanes, n);
}

void max_lanes8(uint8_t* acc, const uint8_t* lanes, size_t n) {
  max_lanes<uint8_t>(acc, lanes, n);
}
void max_lanes16(uint8_t* acc, const uint8_t* lanes, size_t n) {
  max_lanes<uint16_t>(acc, lanes, n);
}
void max_lanes32(uint8_t* acc, const uint8_t* lanes, size_t n) {
  max_lanes<uint32_t>(acc, lanes, n);
}
void max_lanes64(uint8_t* acc, const uint8_t* lanes, size_t n) {
  max_lanes<uint64_t>(acc, lanes, n);
}
void or_lanes(uint8_t* acc, const uint8_t* lanes, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) acc[i] |= lanes[i];
}
void xor_lanes(uint8_t* acc, const uint8_t* lanes, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) acc[i] ^= lanes[i];
}

uint64_t nh(const uint8_t* payload, size_t bytes, const uint32_t* key) {
  NETSUM_ASSERT(bytes % 8 == 0);
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes / 4; i += 2) {
    const uint32_t even = load<uint32_t>(payload, i) + key[i];
    const uint32_t odd = load<uint32_t>(payload, i + 1) + key[i + 1];
    sum += uint64_t{even} * odd;
  }
  return sum;
}

}  // namespace netsum::kernels::plain
