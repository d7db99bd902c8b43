#include "tools/netsum/bench_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/base/rng.h"
#include "src/kernels/kernels.h"
#include "wire/ids.h"

// Every element is a multiple of a step, so the exact sum is an integer sum. Floating-point elements are (odd integer of the
// type's precision) x 2^-(0..8) x 2^-precision x 2^scale: their magnitudes are below 2^scale and differ within a block, so
// that fixed point has to round, and they are exact in their type.

namespace netsum::tool {
namespace {

constexpr int kSpread = 8;  // binades over which magnitudes within a block differ
constexpr size_t kBlock = 4096;

int precision_bits(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 24;
    case DataType::kBFloat16:
      return 8;
    case DataType::kFloat16:
      return 11;
    default:
      return 0;
  }
}

// Approximately normal, by the sum of uniform numbers, whose bits are the same on all machines: below 2^19 in magnitude.
int64_t normal_steps(Rng* rng) {
  constexpr int kWords = 3, kHalves = 4 * kWords;
  int64_t sum = 0;
  for (int word = 0; word < kWords; ++word) {
    const uint64_t bits = rng->next();
    for (int shift = 0; shift < 64; shift += 16) sum += static_cast<int64_t>((bits >> shift) & 0xFFFF);
  }
  return sum - kHalves * 0x7FFF - kHalves / 2;
}

// The value must be exact in the type, as all inputs here are.
uint16_t to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1.0p-14F) return sign | static_cast<uint16_t>(magnitude * 0x1.0p24F);
  return sign | static_cast<uint16_t>(((bits & 0x7FFFFFFF) >> 13) - (112u << 10));
}

double from_half(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  double magnitude = 0;
  if (exponent == 31) {
    magnitude = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    magnitude = fraction * 0x1.0p-24;
  } else {
    magnitude = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

void store(DataType type, int64_t steps, double step_size, void* out, size_t i) {
  switch (type) {
    case DataType::kFloat32:
      static_cast<float*>(out)[i] = static_cast<float>(static_cast<double>(steps) * step_size);
      break;
    case DataType::kBFloat16: {
      const auto value = static_cast<float>(static_cast<double>(steps) * step_size);
      static_cast<uint16_t*>(out)[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      break;
    }
    case DataType::kFloat16:
      static_cast<uint16_t*>(out)[i] = to_half(static_cast<float>(static_cast<double>(steps) * step_size));
      break;
    case DataType::kInt32:
      static_cast<int32_t*>(out)[i] = static_cast<int32_t>(steps);
      break;
    case DataType::kInt64:
      static_cast<int64_t*>(out)[i] = steps;
      break;
    case DataType::kByte:
      static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>(steps);
      break;
  }
}

double load_float(DataType type, const void* in, size_t i) {
  if (type == DataType::kFloat32) return static_cast<const float*>(in)[i];
  const uint16_t bits = static_cast<const uint16_t*>(in)[i];
  if (type == DataType::kFloat16) return from_half(bits);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

int64_t load_integer(DataType type, const void* in, size_t i) {
  return type == DataType::kInt32 ? static_cast<const int32_t*>(in)[i] : static_cast<const int64_t*>(in)[i];
}

// Distinguishes results; not for secrets.
uint64_t checksum_of(const void* data, size_t bytes) {
  uint64_t hash = bytes;
  const auto* from = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    uint64_t word = 0;
    const size_t n = std::min(bytes, sizeof(word));
    std::memcpy(&word, from, n);
    hash = std::rotl((hash ^ word) * 0x9E3779B97F4A7C15ull, 29);
    from += n;
    bytes -= n;
  }
  return hash;
}

}  // namespace

uint64_t BenchData::stream(int rank, TensorId id) const {
  return Rng(seed_ ^ (static_cast<uint64_t>(rank) << 48) ^ (static_cast<uint64_t>(id.iteration) << 16) ^
             static_cast<uint64_t>(id.index))
      .next();
}

int BenchData::dropped_bits() const {
  if (is_floating(type_)) return 63 - precision_bits(type_);
  // So that world_size of them still fit the type.
  return 63 - kernels::quantum_bits(world_size_) - (type_ == DataType::kInt64 ? 32 : 0);
}

// Magnitudes stay below 2^scale; from -4 to 4, as float16 has little range.
int BenchData::scale_of(TensorId id) const {
  return pattern_ == BenchPattern::kVaried ? (id.iteration * 5 + id.index) % 9 - 4 : 0;
}

int64_t BenchData::steps(uint64_t stream, TensorId id, size_t element) const {
  Rng rng(stream + element * 0xD1B54A32D192ED03ull);
  if (pattern_ == BenchPattern::kNormal) return normal_steps(&rng) * (8 + id.iteration % 8) * (1 << kSpread);
  const auto random = static_cast<int64_t>(rng.next());
  if (!is_floating(type_)) return random >> dropped_bits_;
  const int64_t odd = (random >> dropped_bits_) | 1;
  const int shift = static_cast<int>(static_cast<uint64_t>(random) & 0xFF) % (kSpread + 1);
  return odd * (int64_t{1} << (kSpread - shift));
}

double BenchData::step_size(TensorId id) const {
  return is_floating(type_) ? std::ldexp(1.0, scale_of(id) - precision_bits(type_) - kSpread) : 1.0;
}

BenchData::Tolerance BenchData::tolerance(TensorId id) const {
  // Each rank rounds to a quantum of the block's largest magnitude, which is below 2^scale.
  const int lane_bits = kernels::narrow_lane_bits(type_, world_size_, lane_bits_);
  const double quantum = std::ldexp(1.0, scale_of(id) - kernels::quantum_bits(world_size_, lane_bits));
  // 8-bit lanes limit the largest elements, by a whole quantum at most.
  double error = world_size_ * quantum * (lane_bits == 8 ? 1 : 0.5);
  // Or they are added in binary32, as far as lanes would not have 8 bits: each addition rounds a sum of magnitudes below 2^scale.
  if (lane_bits != 8)
    error = std::max(error, (world_size_ - 1) * world_size_ * std::ldexp(1.0, scale_of(id) - 24));
  if (op_ == ReduceOp::kAvg) error /= world_size_;
  // The sum is rounded to the type: half a unit in the last place. An average is first rounded to binary32 and divided
  // there.
  double relative = std::ldexp(1.0, -precision_bits(type_));
  if (op_ == ReduceOp::kAvg) relative += 0x1.0p-23;
  constexpr double kHalfSmallest = 0x1.0p-25;  // of float16, whose sums may be subnormal
  return {error + error * relative + (type_ == DataType::kFloat16 ? kHalfSmallest : 0), relative};
}

void BenchData::fill(int rank, TensorId id, void* out, size_t count) const {
  const double size = step_size(id);
  const uint64_t from = stream(rank, id);
  for (size_t i = 0; i < count; ++i) store(type_, steps(from, id, i), size, out, i);
}

void BenchData::sum_steps(TensorId id, size_t first, std::span<int64_t> sums) const {
  std::fill(sums.begin(), sums.end(), 0);
  for (int rank = 0; rank < world_size_; ++rank) {
    const uint64_t from = stream(rank, id);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += steps(from, id, first + i);
  }
}

Verdict BenchData::verify_lossy(TensorId id, const float* result, size_t count, size_t first,
                                size_t last) const {
  Verdict verdict;
  std::vector<int64_t> sums(kBlock);
  const double size = step_size(id) / world_size_;
  for (size_t start = first; start < last; start += kBlock) {
    const size_t n = std::min(kBlock, last - start);
    sum_steps(id, start, {sums.data(), n});
    for (size_t i = 0; i < n; ++i) {
      const double expected = static_cast<double>(sums[i]) * size;
      const double error = std::fabs(result[start + i] - expected);
      if (!std::isfinite(error)) {
        if (verdict.wrong++ == 0)
          verdict.first_wrong = "element " + std::to_string(start + i) + " is not finite";
        continue;
      }
      verdict.worst_error = std::max(verdict.worst_error, error);
      verdict.squared_error += error * error;
      verdict.squared_expected += expected * expected;
    }
  }
  verdict.checksum = checksum_of(result, count * sizeof(float));
  return verdict;
}

Verdict BenchData::verify(TensorId id, const void* result, size_t count, size_t first, size_t last) const {
  Verdict verdict;
  std::vector<int64_t> sums(kBlock);
  const double size = step_size(id) / (op_ == ReduceOp::kAvg ? world_size_ : 1);
  const Tolerance allowed = tolerance(id);
  auto wrong = [&](size_t i, const std::string& got, const std::string& expected) {
    if (verdict.wrong++ > 0) return;
    verdict.first_wrong = "element " + std::to_string(i) + ": got " + got + ", expected " + expected;
  };
  for (size_t start = first; start < last; start += kBlock) {
    const size_t n = std::min(kBlock, last - start);
    sum_steps(id, start, {sums.data(), n});
    for (size_t i = 0; i < n; ++i) {
      if (!is_floating(type_)) {
        const int64_t got = load_integer(type_, result, start + i);
        if (got != sums[i]) wrong(start + i, std::to_string(got), std::to_string(sums[i]));
        continue;
      }
      const double expected = static_cast<double>(sums[i]) * size;
      const double got = load_float(type_, result, start + i);
      const double error = std::fabs(got - expected);
      // In this form, a NaN counts as wrong.
      if (!(error <= allowed.absolute + std::fabs(expected) * allowed.relative))
        wrong(start + i, std::to_string(got), std::to_string(expected));
      verdict.worst_error = std::max(verdict.worst_error, error);
    }
  }
  verdict.checksum = checksum_of(result, count * size_of(type_));
  return verdict;
}

Verdict BenchData::verify_moved(int from, TensorId id, const void* result, size_t first, size_t last) const {
  Verdict verdict;
  const double size = step_size(id);
  const uint64_t source = stream(from, id);
  const auto* bytes = static_cast<const uint8_t*>(result);
  alignas(8) uint8_t expected[8];
  for (size_t i = first; i < last; ++i) {
    store(type_, steps(source, id, i), size, expected, 0);
    if (std::memcmp(bytes + i * size_of(type_), expected, size_of(type_)) == 0) continue;
    if (verdict.wrong++ == 0)
      verdict.first_wrong = "element " + std::to_string(i) + " is not that of rank " + std::to_string(from);
  }
  return verdict;
}

}  // namespace netsum::tool
