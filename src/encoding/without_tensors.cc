#include "src/encoding/without_tensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "wire/ids.h"
#include "wire/packet.h"

namespace netsum {
namespace {

// Elements of a chunk at most: 8-bit lanes fill a payload.
constexpr size_t kMostElements = NETSUM_MAX_PAYLOAD;
// Below, even the smallest of the noise would be subnormal; above, a sum of few would be infinite.
constexpr uint8_t kLeastNoise = 40, kMostScale = 253;

// Where a thread makes the values of one chunk.
uint8_t* values_of_thread() {
  static thread_local const auto values =
      std::make_unique<std::array<uint8_t, kMostElements * sizeof(int64_t)>>();
  return values->data();
}

// They as one tensor.
const TensorSequence& as_one(DataType type) {
  const auto of = [](DataType one) {
    return TensorSequence(one, {{values_of_thread(), nullptr, kMostElements}});
  };
  static thread_local const std::array<TensorSequence, 6> of_type = {
      of(DataType::kFloat32), of(DataType::kBFloat16), of(DataType::kFloat16),
      of(DataType::kInt32),   of(DataType::kInt64),    of(DataType::kByte)};
  return of_type[static_cast<size_t>(type) - 1];
}

void put(DataType type, float value, size_t at, uint8_t* values) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (type == DataType::kFloat32) {
    std::memcpy(values + at * 4, &bits, 4);
    return;
  }
  // Cut off, so that the exponent stays.
  auto half = static_cast<uint16_t>(bits >> 16);
  if (type == DataType::kFloat16) {
    const int exponent = std::min(static_cast<int>(bits >> 23 & 255) - 112, 30);
    half = static_cast<uint16_t>((bits >> 16 & 0x8000) |
                                 (exponent > 0 ? exponent << 10 | static_cast<int>(bits >> 13 & 1023) : 0));
  }
  std::memcpy(values + at * 2, &half, 2);
}

float magnitude_of(uint8_t scale) {
  return scale == 0 ? 0 : std::bit_cast<float>(uint32_t{std::min(scale, kMostScale)} << 23);
}

// Elements [begin, begin + count) of the operation. Of each scale's elements that are there, the first one has its exponent.
void make_values(const Contribution& of, bool noise, DataType type, size_t begin, size_t count,
                 uint8_t* values) {
  if (!of.values.empty()) return of.copy_values(type, begin, count, values);
  uint64_t state = netsum_mix64(of.seed ^ begin) | 1;
  for (size_t done = 0; done < count;) {
    const size_t scale = (begin + done) / Contribution::kScaleElements;
    const size_t end = std::min(count, (scale + 1) * Contribution::kScaleElements - begin);
    const uint8_t exponent = scale < of.scales.size() ? of.scales[scale] : uint8_t{0};
    const float magnitude = magnitude_of(exponent);
    put(type, magnitude, done, values);
    if (noise && exponent >= kLeastNoise) {
      for (size_t i = done + 1; i < end; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Between -1 and 1, and never 0.
        const float share = static_cast<float>(static_cast<int32_t>(state >> 32) >> 8 | 1) * 0x1p-23f;
        put(type, 2 * share * magnitude, i, values);
      }
      if ((state & 1) != 0) put(type, -magnitude, done, values);
    } else {
      const size_t element = size_of(type);
      std::memset(values + (done + 1) * element, 0, (end - done - 1) * element);
    }
    done = end;
  }
}

// Calls use(elements) with the chunk as values of `of`. Allocates nothing but where tensors that are treated differently meet.
template <typename Use>
void with_values(const Contribution& of, bool noise, DataType type, const Elements& chunk, bool separates,
                 const Use& use) {
  uint8_t* const values = values_of_thread();
  make_values(of, noise, type, chunk.begin, chunk.count, values);
  if (!separates || chunk.runs() == 1) {
    use(Elements{&as_one(type), 0, chunk.count});
    return;
  }
  std::vector<TensorView> tensors;
  chunk.for_each_run([&](const Run& run) {
    tensors.push_back({values + run.done * size_of(type), nullptr, run.count, run.tensor_id});
  });
  const TensorSequence sequence(type, std::move(tensors));
  use(Elements{&sequence, 0, chunk.count});
}

}  // namespace

void Contribution::copy_values(DataType type, size_t begin, size_t count, uint8_t* to) const {
  const size_t element = size_of(type);
  std::memset(to, 0, count * element);
  const size_t first = std::max(begin, values_begin);
  const size_t end = std::min(begin + count, values_begin + values.size() / element);
  if (first >= end) return;
  std::memcpy(to + (first - begin) * element, values.data() + (first - values_begin) * element,
              (end - first) * element);
}

const Contribution* WithoutTensors::contribution_to(const Elements& chunk) const {
  for (const TensorView& tensor : chunk.sequence->tensors()) {
    if (tensor.input == nullptr) continue;
    const auto* const of = static_cast<const Contribution*>(tensor.input);
    if (!of->values.empty()) return of;
    return of->scales.empty() || !is_floating(type_) ? nullptr : of;
  }
  return nullptr;
}

// Without scales nothing is required, so the ranks agree on what those with tensors require.
size_t WithoutTensors::scan(const Elements& chunk, uint8_t* bytes) const {
  const Contribution* const of = contribution_to(chunk);
  if (of == nullptr) {
    const size_t size = agreed_bytes(chunk);
    std::memset(bytes, 0, size);
    return size;
  }
  size_t size = 0;
  with_values(*of, of->noise, type_, chunk, separates_tensors(),
              [&](const Elements& elements) { size = encoding_->scan(elements, bytes); });
  return size;
}

void WithoutTensors::encode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
                            uint8_t* payload) const {
  const Contribution* const of = contribution_to(chunk);
  if (of == nullptr || (!of->noise && of->values.empty())) {
    std::memset(payload, 0, packet.payload_bytes);
    return;
  }
  PacketPlan moved = packet;
  moved.begin -= chunk.begin;
  with_values(*of, true, type_, chunk, separates_tensors(),
              [&](const Elements& elements) { encoding_->encode(elements, agreed, moved, payload); });
}

}  // namespace netsum
