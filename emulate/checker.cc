#include "emulate/checker.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "src/base/rng.h"
#include "src/kernels/half.h"
#include "wire/packet.h"

namespace netsum::emulate {
namespace {

using kernels::bfloat16_to_float;
using kernels::float16_to_float;
using kernels::float_to_bfloat16;
using kernels::float_to_float16;

template <typename T>
T load(const std::vector<uint8_t>& bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(std::vector<uint8_t>* bytes, size_t index, T value) {
  std::memcpy(bytes->data() + index * sizeof(T), &value, sizeof(T));
}

float load_float(DataType type, const std::vector<uint8_t>& bytes, size_t index) {
  switch (type) {
    case DataType::kBFloat16:
      return bfloat16_to_float(load<uint16_t>(bytes, index));
    case DataType::kFloat16:
      return float16_to_float(load<uint16_t>(bytes, index));
    default:
      return load<float>(bytes, index);
  }
}

void store_float(DataType type, std::vector<uint8_t>* bytes, size_t index, float value) {
  switch (type) {
    case DataType::kBFloat16:
      return store(bytes, index, float_to_bfloat16(value));
    case DataType::kFloat16:
      return store(bytes, index, float_to_float16(value));
    default:
      return store(bytes, index, std::isnan(value) ? kernels::kNaNBits : std::bit_cast<uint32_t>(value));
  }
}

// Of two integers, sign-extended.
uint64_t combined(ReduceOp op, uint64_t x, uint64_t y) {
  const auto a = static_cast<int64_t>(x), b = static_cast<int64_t>(y);
  switch (op) {
    case ReduceOp::kMin:
      return a < b ? x : y;
    case ReduceOp::kMax:
      return a < b ? y : x;
    case ReduceOp::kBitAnd:
      return x & y;
    case ReduceOp::kBitOr:
      return x | y;
    case ReduceOp::kBitXor:
      return x ^ y;
    default:
      return x + y;
  }
}

// As std::ldexp(1.0, exponent), for normal numbers. Products with it are exact where std::ldexp() is.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

int log2_ceil(int n) {
  int log2 = 0;
  while ((1 << log2) < n) ++log2;
  return log2;
}

int narrow_lane_bits(DataType type, int ranks, int wanted) {
  if (type == DataType::kInt64) return 64;
  if (type == DataType::kByte) return 8;
  const bool half = type == DataType::kBFloat16 || type == DataType::kFloat16;
  if (wanted == 8 && (half || type == DataType::kFloat32)) return 8;
  return half && ranks <= 16 && wanted != 32 ? 16 : 32;
}

double largest_finite(const std::vector<double>& values) {
  double largest = 0;
  for (const double x : values)
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  return largest;
}

// Relative spacing of results, their least distance, and the largest of them.
struct Precision {
  long double relative, absolute, largest;
};
Precision precision_of(DataType type) {
  switch (type) {
    case DataType::kBFloat16:
      return {0x1p-8L, 0x1p-133L, 0x1.FEp127L};
    case DataType::kFloat16:
      return {0x1p-11L, 0x1p-24L, 65504.0L};
    default:
      return {0x1p-24L, 0x1p-149L, 0x1.FFFFFEp127L};
  }
}

}  // namespace

OperationMemory::OperationMemory(const OperationPlan& plan, int ranks, int lane_bits, uint32_t payload_bytes,
                                 uint64_t seed, Additions additions)
    : plan_(plan),
      ranks_(ranks),
      lane_bits_(narrow_lane_bits(plan.type, ranks, lane_bits)),
      chunk_(payload_bytes * 8 / static_cast<uint32_t>(lane_bits_)),
      seed_(seed) {
  for (const TensorPlan& tensor : plan_.tensors) ends_.push_back(count_ += tensor.count);
  for (int rank = 0; rank < ranks; ++rank) roles_.push_back(role_of(plan_, rank));
  inputs_.assign(static_cast<size_t>(ranks), std::vector<uint8_t>(count_ * element_bytes()));
  for (size_t i = 0; i < count_; ++i) fill_element(i);
  constexpr size_t kMostChunks = 16;
  const bool small = additions.of_any_size || count_ <= kMostChunks * chunk_;
  const bool adds = plan.op == ReduceOp::kSum || plan.op == ReduceOp::kAvg;
  const bool fits = !additions.travel_in_float32 || lane_bits_ == 32;
  if (is_floating(plan.type) && lane_bits_ != 8 && small && adds && fits) additions_ = std::move(additions);
}

size_t OperationMemory::tensor_of(size_t i) const {
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
}

uint8_t* OperationMemory::input_of(int rank, size_t i) {
  return inputs_[static_cast<size_t>(rank)].data() + i * element_bytes();
}

void OperationMemory::set_input(int rank, size_t i, const void* value) {
  std::memcpy(input_of(rank, i), value, element_bytes());
}

void OperationMemory::fill_element(size_t i) {
  const uint64_t seed = netsum_mix64(seed_ ^ netsum_mix64(i + 1));
  if (is_floating(plan_.type)) {
    fill_float(i, seed);
  } else if (plan_.type == DataType::kByte) {
    fill_byte(i, seed);
  } else {
    fill_integer(i, seed);
  }
}

void OperationMemory::fill_float(size_t i, uint64_t seed) {
  Rng rng(seed);
  const bool half = plan_.type == DataType::kFloat16;
  // Neighbours are of a similar magnitude, or blocks would never hold small numbers only.
  const int lowest = half ? -24 : -149;
  const int range = half ? 30 : 270;
  const int base = lowest + static_cast<int>(netsum_mix64(seed_ + i / 16) % static_cast<uint64_t>(range));
  for (int rank = 0; rank < ranks_; ++rank) {
    const uint64_t bits = rng.next();
    const double sign = (bits & 1) != 0 ? -1 : 1;
    const double fraction = static_cast<double>(bits >> 11) * 0x1p-53;
    const int binade = static_cast<int>(bits >> 1 & 0x3FF);
    double value = 0;
    switch (plan_.content) {
      case Content::kZeros:
        break;
      case Content::kWideRange:
        value = (1 + fraction) * power_of_two(base + binade % 10);
        break;
      case Content::kExtremes:
        value = (half ? 65504.0 : 0x1.FEp127) * (1 - fraction / 4);
        break;
      case Content::kSpecial:
        if (rng.chance(0.02)) value = rng.chance(0.3) ? NAN : INFINITY;
        [[fallthrough]];
      case Content::kPlain:
        if (value == 0) value = fraction * power_of_two(binade % 6);
        break;
    }
    store_float(plan_.type, &inputs_[static_cast<size_t>(rank)], i, static_cast<float>(sign * value));
  }
}

void OperationMemory::fill_byte(size_t i, uint64_t seed) {
  Rng rng(seed);
  for (int rank = 0; rank < ranks_; ++rank)
    *input_of(rank, i) = static_cast<uint8_t>(plan_.content == Content::kZeros ? 0 : rng.next());
}

void OperationMemory::fill_integer(size_t i, uint64_t seed) {
  Rng rng(seed);
  const bool narrow = plan_.type == DataType::kInt32;
  const int64_t largest = narrow ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int64_t>::max();
  const int64_t smallest = -largest - 1;
  const bool extreme =
      plan_.content == Content::kExtremes || (plan_.content == Content::kSpecial && rng.chance(0.02));
  __int128 sum = 0;
  for (int n = 0; n < ranks_; ++n) {
    // Pairs of opposite numbers: sums fit, partial sums in an unlucky order do not.
    const int rank = static_cast<int>((static_cast<size_t>(n) + i) % static_cast<size_t>(ranks_));
    int64_t value = 0;
    if (plan_.content == Content::kPlain || plan_.content == Content::kSpecial) {
      value = static_cast<int64_t>(rng.below(2001)) - 1000;
    } else if (plan_.content == Content::kWideRange) {
      const int shift = static_cast<int>((narrow ? 32 : 0) + rng.below(narrow ? 32 : 64));
      value = (static_cast<int64_t>(rng.next()) >> shift) / ranks_;
    }
    if (extreme && n + 1 < ranks_ && n % 2 == 0) {
      value = rng.chance(0.5) ? largest - static_cast<int64_t>(rng.below(3))
                              : smallest + static_cast<int64_t>(rng.below(3));
    } else if (extreme) {
      const __int128 opposite = -sum + static_cast<int64_t>(rng.below(2001)) - 1000;
      value = static_cast<int64_t>(std::clamp<__int128>(opposite, smallest, largest));
    }
    sum += value;
    if (narrow) {
      const auto value32 = static_cast<int32_t>(value);
      set_input(rank, i, &value32);
    } else {
      set_input(rank, i, &value);
    }
  }
}

std::vector<TensorView> OperationMemory::views(int rank) {
  if (memory_.empty()) memory_.resize(static_cast<size_t>(ranks_));
  std::vector<Piece>& pieces = memory_[static_cast<size_t>(rank)];
  pieces.clear();
  pieces.resize(plan_.tensors.size());
  std::vector<TensorView> views;
  size_t begin = 0;
  for (size_t t = 0; t < pieces.size(); ++t) {
    const size_t bytes = plan_.tensors[t].count * element_bytes();
    const size_t padded = (bytes + 7) / 8 * 8;
    Piece& piece = pieces[t];
    piece.output = plan_.tensors[t].in_place ? kGuardBytes : kGuardBytes + padded + kGuardBytes;
    piece.bytes.assign(piece.output + padded + kGuardBytes, kGuardByte);
    if (bytes > 0) std::memcpy(&piece.bytes[kGuardBytes], input_of(rank, 0) + begin, bytes);
    views.push_back({&piece.bytes[kGuardBytes], &piece.bytes[piece.output], plan_.tensors[t].count});
    begin += bytes;
  }
  return views;
}

void OperationMemory::poison(int rank) {
  const Role& role = roles_[static_cast<size_t>(rank)];
  std::vector<Piece>& pieces = memory_[static_cast<size_t>(rank)];
  for (size_t t = 0; t < pieces.size(); ++t)
    if (role.contributes(t))
      std::fill_n(pieces[t].bytes.begin() + kGuardBytes, plan_.tensors[t].count * element_bytes(),
                  uint8_t{0xFF});
}

void OperationMemory::arrive(int rank, size_t begin, size_t end) {
  const Role& role = roles_[static_cast<size_t>(rank)];
  std::vector<Piece>& pieces = memory_[static_cast<size_t>(rank)];
  size_t done = 0;
  for (size_t t = 0; t < pieces.size(); ++t) {
    const size_t bytes = plan_.tensors[t].count * element_bytes();
    const size_t first = std::clamp(begin, done, done + bytes), last = std::clamp(end, done, done + bytes);
    if (role.contributes(t))
      std::copy_n(input_of(rank, 0) + first, last - first,
                  pieces[t].bytes.begin() + kGuardBytes + (first - done));
    done += bytes;
  }
}

std::string OperationMemory::check_delivered(int rank, size_t bytes) const {
  expect();
  const Role& role = roles_[static_cast<size_t>(rank)];
  const std::vector<Piece>& pieces = memory_[static_cast<size_t>(rank)];
  size_t done = 0;
  for (size_t t = 0; t < pieces.size() && done < bytes; ++t) {
    const size_t of_tensor = plan_.tensors[t].count * element_bytes();
    const size_t delivered = std::min(of_tensor, bytes - done);
    const uint8_t* output = pieces[t].bytes.data() + pieces[t].output;
    if (role.receives(t) &&
        !std::equal(output, output + delivered, expected_.begin() + static_cast<ptrdiff_t>(done)))
      return "rank " + std::to_string(rank) + ", tensor " + std::to_string(t) + ": delivered up to byte " +
             std::to_string(bytes) + ", and a result before it is not there";
    done += of_tensor;
  }
  return "";
}

std::string OperationMemory::check(int rank, bool ended) const {
  if (ended) expect();
  const std::vector<Piece>& pieces = memory_[static_cast<size_t>(rank)];
  const uint8_t* input = inputs_[static_cast<size_t>(rank)].data();
  const uint8_t* expected = expected_.data();
  size_t done = 0;
  for (size_t t = 0; t < pieces.size(); ++t) {
    const Piece& piece = pieces[t];
    const size_t bytes = plan_.tensors[t].count * element_bytes();
    const auto where = [&] {
      return "rank " + std::to_string(rank) + ", tensor " + std::to_string(t) + ": ";
    };
    const uint8_t* output = piece.bytes.data() + piece.output;
    if (!roles_[static_cast<size_t>(rank)].receives(t) && bytes > 0) {
      const bool same = plan_.tensors[t].in_place
                            ? std::memcmp(output, input + done, bytes) == 0
                            : std::all_of(output, output + bytes, [](uint8_t b) { return b == kGuardByte; });
      if (!same) return where() + "the output of a rank that does not receive was written";
    } else if (ended && bytes > 0 && std::memcmp(output, expected + done, bytes) != 0) {
      size_t i = 0;
      while (output[i] == expected[done + i]) ++i;
      return where() + "wrong result at element " + std::to_string(i / element_bytes()) + " of " +
             std::to_string(plan_.tensors[t].count);
    }
    if (!plan_.tensors[t].in_place && bytes > 0 &&
        std::memcmp(&piece.bytes[kGuardBytes], input + done, bytes) != 0) {
      return where() + "an input was written";
    }
    for (size_t i = 0; i < piece.bytes.size(); ++i) {
      if (i == kGuardBytes) i += bytes;                                  // the input
      if (i == piece.output && piece.output != kGuardBytes) i += bytes;  // the output
      if (piece.bytes[i] != kGuardByte) {
        return where() + "byte " + std::to_string(i) + " outside of the tensors was written";
      }
    }
    done += bytes;
  }
  return "";
}

int64_t OperationMemory::input_integer(int rank, size_t i) const {
  if (!contributes(rank, i)) return 0;
  const std::vector<uint8_t>& bytes = inputs_[static_cast<size_t>(rank)];
  if (plan_.type == DataType::kByte) return bytes[i];
  return plan_.type == DataType::kInt32 ? load<int32_t>(bytes, i) : load<int64_t>(bytes, i);
}

// Of elements [begin, end), those of a rank after those of the one before.
void OperationMemory::load_inputs(size_t begin, size_t end, std::vector<double>* values) const {
  const size_t count = end - begin;
  values->assign(static_cast<size_t>(ranks_) * count, 0.0);
  for (size_t i = begin; i < end;) {
    const size_t tensor = tensor_of(i), stop = std::min(end, ends_[tensor]);
    for (size_t rank = 0; rank < roles_.size(); ++rank) {
      if (!roles_[rank].contributes(tensor)) continue;
      double* of_rank = values->data() + rank * count;
      for (size_t k = i; k < stop; ++k) of_rank[k - begin] = load_float(plan_.type, inputs_[rank], k);
    }
    i = stop;
  }
}

double OperationMemory::result(int rank, size_t i) const {
  const std::vector<Piece>& pieces = memory_[static_cast<size_t>(rank)];
  size_t tensor = 0;
  for (; i >= plan_.tensors[tensor].count; ++tensor) i -= plan_.tensors[tensor].count;
  std::vector<uint8_t> element(element_bytes());
  std::memcpy(element.data(), &pieces[tensor].bytes[pieces[tensor].output + i * element_bytes()],
              element.size());
  return load_float(plan_.type, element, 0);
}

// Blocks end with their chunk and with their tensor; the parts of a reduce-scatter are pieces of one tensor. In 8-bit lanes a
// chunk has at most one block for every two elements: tensors that begin before there is room for another share the last.
std::vector<std::pair<size_t, size_t>> OperationMemory::blocks() const {
  std::vector<std::pair<size_t, size_t>> blocks;
  size_t begin = 0;
  size_t of_chunk = 0,
         last = 0;  // tensors of the chunk before this one, and the number of the last block in the chunk
  for (const TensorPlan& tensor : plan_.tensors) {
    for (const size_t end = begin + tensor.count; begin < end;) {
      const size_t next = std::min((begin / chunk_ + 1) * chunk_, end);
      if (begin % chunk_ == 0) of_chunk = last = 0;
      const size_t number = std::min(of_chunk++, begin % chunk_ / 2);
      const bool shares = lane_bits_ == 8 && begin % chunk_ != 0 && number == std::exchange(last, number);
      if (shares || (plan_.collective == Collective::kReduceScatter && begin % chunk_ != 0))
        blocks.back().second = next;
      else
        blocks.emplace_back(begin, next);
      begin = next;
    }
  }
  return blocks;
}

// Such that the largest element, rounded, times the ranks fits the lane.
int OperationMemory::quantum_bits() const {
  if (lane_bits_ == 8) return 7 - log2_ceil(ranks_);  // the largest are limited instead
  const int significant = lane_bits_ == 16 ? 11 : 24;
  int bits = lane_bits_ - 1 - log2_ceil(ranks_);
  const double largest = std::nearbyint(std::ldexp(1 - std::ldexp(1.0, -significant), bits));
  if (largest * ranks_ >= std::ldexp(1.0, lane_bits_ - 1)) --bits;
  return bits;
}

void OperationMemory::expect_floats(size_t begin, size_t end, const std::vector<double>& inputs) const {
  const double largest = largest_finite(inputs);
  int exponent = 0;
  if (largest > 0) {
    // frexp gives |x| = f * 2^e with f in [1/2, 1); the binary32 exponent field of a normal x is e + 126.
    int e = 0;
    std::frexp(largest, &e);
    exponent = std::max(e + 126, 1);
  }
  const int quantum = exponent - 126 - quantum_bits();
  const double per_quantum = power_of_two(-quantum), of_quantum = power_of_two(quantum);
  const size_t count = end - begin;
  for (size_t i = 0; i < count; ++i) {
    int64_t sum = 0;
    double specials = 0;  // adds up NaN and infinities as IEEE does
    for (size_t at = i; at < inputs.size(); at += count) {
      const double x = inputs[at];
      if (std::isfinite(x)) {
        int64_t quanta = exponent == 0 ? 0 : std::llrint(x * per_quantum);
        if (lane_bits_ == 8) quanta = std::clamp<int64_t>(quanta, -(127 / ranks_), 127 / ranks_);
        sum += quanta;
      } else {
        specials += x;
      }
    }
    auto value = exponent == 0 ? 0.0f : static_cast<float>(static_cast<double>(sum) * of_quantum);
    if (plan_.op == ReduceOp::kAvg) value /= static_cast<float>(ranks_);
    store_float(plan_.type, &expected_, begin + i, specials == 0 ? value : static_cast<float>(specials));
  }
}

void OperationMemory::expect_additions() const {
  std::vector<double> inputs;
  load_inputs(0, count_, &inputs);
  for (size_t i = 0; i < count_; ++i) {
    const auto of_rank = [&](int rank) {
      return static_cast<float>(inputs[static_cast<size_t>(rank) * count_ + i]);
    };
    const auto of_group = [&](const std::vector<int>& group) {
      float sum = of_rank(group[0]);
      for (size_t n = 1; n < group.size(); ++n) sum += of_rank(group[n]);
      return sum;
    };
    float sum = of_group(additions_.groups[0]);
    for (size_t n = 1; n < additions_.groups.size(); ++n) sum += of_group(additions_.groups[n]);
    if (plan_.op == ReduceOp::kAvg) sum /= static_cast<float>(ranks_);
    store_float(plan_.type, &expected_, i, sum);
  }
}

void OperationMemory::expect() const {
  if (expected_.size() == count_ * element_bytes()) return;
  expected_.resize(count_ * element_bytes());
  if (!additions_.groups.empty()) return expect_additions();
  if (is_floating(plan_.type)) {
    std::vector<double> inputs;
    for (const auto& [begin, end] : blocks()) {
      load_inputs(begin, end, &inputs);
      expect_floats(begin, end, inputs);
    }
    return;
  }
  for (size_t i = 0; i < count_; ++i) {
    uint64_t sum = static_cast<uint64_t>(input_integer(0, i));
    for (int rank = 1; rank < ranks_; ++rank)
      sum = combined(plan_.op, sum, static_cast<uint64_t>(input_integer(rank, i)));
    if (plan_.type == DataType::kByte) {
      expected_[i] = static_cast<uint8_t>(sum);
    } else if (plan_.type == DataType::kInt32) {
      store(&expected_, i, static_cast<uint32_t>(sum));
    } else {
      store(&expected_, i, sum);
    }
  }
}

// Each addition rounds once, and so do the mean and the result's type.
std::string OperationMemory::check_bound_of_additions() const {
  const Precision precision = precision_of(plan_.type), single = precision_of(DataType::kFloat32);
  const long double divisor = plan_.op == ReduceOp::kAvg ? ranks_ : 1;
  std::vector<double> inputs;
  load_inputs(0, count_, &inputs);
  for (size_t i = 0; i < count_; ++i) {
    long double sum = 0, magnitudes = 0;
    for (size_t at = i; at < inputs.size(); at += count_) {
      sum += inputs[at];
      if (std::isfinite(inputs[at])) magnitudes += std::fabs(inputs[at]);
    }
    if (magnitudes >= single.largest) continue;  // a partial sum may be infinite
    const long double truth = sum / divisor, got = load_float(plan_.type, expected_, i);
    const bool same = std::isnan(truth) ? std::isnan(got) : got == truth;
    if (same) continue;
    const long double of_sum = (ranks_ - 1) * single.relative * magnitudes / divisor;
    const long double most = std::fabs(truth) + of_sum;
    if (most >= precision.largest * (1 - precision.relative)) continue;
    if (!(std::fabs(got - truth) <= of_sum + 2 * precision.relative * most + precision.absolute))
      return "element " + std::to_string(i) + " is off by more than the error bound";
  }
  return "";
}

std::string OperationMemory::check_bound() const {
  if (!is_floating(plan_.type) || expected_.empty()) return "";
  if (!additions_.groups.empty()) return check_bound_of_additions();
  const Precision precision = precision_of(plan_.type);
  const long double divisor = plan_.op == ReduceOp::kAvg ? ranks_ : 1;
  std::vector<double> inputs;
  for (const auto& [begin, end] : blocks()) {
    load_inputs(begin, end, &inputs);
    const long double largest = largest_finite(inputs);
    // |x| < 2^(e - 126) <= 2 * largest, or one subnormal binade: half a quantum per rank, or one where 8-bit lanes limit the
    // largest.
    const bool limits = lane_bits_ == 8 && std::has_single_bit(static_cast<unsigned>(ranks_));
    const long double most =
        std::ldexp(std::max(2 * largest, 0x1p-125L), -(quantum_bits() + (limits ? 0 : 1)));
    for (size_t i = begin; i < end; ++i) {
      long double sum = 0;
      for (size_t at = i - begin; at < inputs.size(); at += end - begin) sum += inputs[at];
      const long double truth = sum / divisor;
      const long double got = load_float(plan_.type, expected_, i);
      if (!std::isfinite(truth)) {
        if (std::isnan(truth) ? !std::isnan(got) : got != truth) {
          return "element " + std::to_string(i) + ": NaN or infinity expected";
        }
        continue;
      }
      const long double bound =
          ranks_ * most / divisor + 2 * precision.relative * std::fabs(truth) + precision.absolute;
      // The sum of an average passes through binary32, so it may leave the range before the division.
      const bool may_overflow =
          std::fabs(sum) + ranks_ * most >= precision.largest * (1 - precision.relative);
      if (!(std::fabs(got - truth) <= bound) && !may_overflow) {
        return "element " + std::to_string(i) + " is off by more than the error bound";
      }
    }
  }
  return "";
}

}  // namespace netsum::emulate
