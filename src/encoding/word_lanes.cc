#include "src/encoding/word_lanes.h"

#include <algorithm>
#include <cstring>

#include "netsum/options.h"
#include "src/base/assert.h"
#include "src/encoding/sum_lanes.h"
#include "src/kernels/kernels.h"
#include "wire/ids.h"

namespace netsum {
namespace {

// Changes with what lanes and bytes mean. Differs from those of other encodings.
constexpr uint16_t kWordsSignature = 0x5701;

uint8_t format_of_words(ReduceOp op, DataType type) {
  switch (op) {
    case ReduceOp::kBitOr:
    case ReduceOp::kBitAnd:
      return NETSUM_FORMAT_OR_U64;
    case ReduceOp::kBitXor:
      return NETSUM_FORMAT_XOR_U64;
    default:
      return size_of(type) == 2   ? NETSUM_FORMAT_MAX_U16
             : size_of(type) == 4 ? NETSUM_FORMAT_MAX_U32
                                  : NETSUM_FORMAT_MAX_U64;
  }
}

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBitOr || op == ReduceOp::kBitAnd || op == ReduceOp::kBitXor;
}

bool all_are(const uint8_t* bytes, size_t size, uint8_t value) {
  return size == 0 || (bytes[0] == value && std::memcmp(bytes, bytes + 1, size - 1) == 0);
}

}  // namespace

WordLanes::WordLanes(DataType type, ReduceOp op)
    : type_(type),
      ordered_(!is_bitwise(op)),
      complement_(op == ReduceOp::kMin || op == ReduceOp::kBitAnd),
      skipped_(op == ReduceOp::kBitAnd ? 0xFF : 0),
      format_(format_of_words(op, type)) {
  NETSUM_ASSERT(travels_as_words(op) && is_reducible(type, op));
}

// The operator is a part of the operation's signature by itself.
uint16_t WordLanes::signature() const {
  return kWordsSignature;
}

int WordLanes::max_members() const {
  return kMaxRanks;
}

uint8_t WordLanes::value_format() const {
  return NETSUM_FORMAT_NONE;
}

// Whether the elements are those that decode_zeros() writes.
bool WordLanes::is_zero(const uint8_t* input, size_t count) const {
  return all_are(input, count * size_of(type_), skipped_);
}

size_t WordLanes::scan(const Elements& chunk, uint8_t* bytes) const {
  bool zero = true;
  chunk.for_each_run([&](const Run& run) {
    const auto look_at = [&](const uint8_t* input) { zero = zero && is_zero(input, run.count); };
    if (run.input == nullptr) return;
    look_at(run.input);
    chunk.for_each_more_input(run, look_at);
  });
  bytes[0] = zero ? 0 : 1;
  bytes[1] = 0;
  return kMinAgreedBytes;
}

ChunkPlan WordLanes::plan(const Elements& chunk, const uint8_t* agreed, uint32_t) const {
  ChunkPlan plan;
  plan.packets = agreed[0] != 0 ? 1 : 0;
  plan.packet[0] = {.format = format_,
                    .begin = chunk.begin,
                    .count = chunk.count,
                    .payload_bytes = static_cast<uint32_t>((chunk.count * size_of(type_) + 7) / 8 * 8)};
  return plan;
}

void WordLanes::to_words(const uint8_t* input, size_t count, uint8_t* words) const {
  if (ordered_)
    kernels::to_ordered_words(type_, complement_, input, count, words);
  else if (complement_)
    kernels::invert(input, count * size_of(type_), words);
  else
    std::memcpy(words, input, count * size_of(type_));
}

void WordLanes::from_words(const uint8_t* words, size_t count, uint8_t* output) const {
  if (ordered_)
    kernels::from_ordered_words(type_, complement_, words, count, output);
  else if (complement_)
    kernels::invert(words, count * size_of(type_), output);
  else
    std::memcpy(output, words, count * size_of(type_));
}

void WordLanes::encode(const Elements& chunk, const uint8_t*, const PacketPlan& packet,
                       uint8_t* payload) const {
  const Elements part{chunk.sequence, packet.begin, packet.count};
  part.for_each_run([&](const Run& run) {
    uint8_t* const words = payload + run.done * size_of(type_);
    if (run.input == nullptr) {
      std::memset(words, 0, run.count * size_of(type_));
      return;
    }
    combine_inputs(
        part, run, size_of(type_), words,
        [&](const uint8_t* input, uint8_t* lanes) { to_words(input, run.count, lanes); },
        [&](uint8_t* acc, const uint8_t* more, size_t bytes) {
          return kernels::combine_lanes(format_, acc, more, bytes);
        });
  });
}

bool WordLanes::decode(const Elements& chunk, const uint8_t*, const PacketPlan& packet,
                       const Payloads& payloads) const {
  const Elements part{chunk.sequence, packet.begin, packet.count};
  part.for_each_run([&](const Run& run) {
    if (run.output != nullptr) from_words(payloads[0] + run.done * size_of(type_), run.count, run.output);
  });
  return true;
}

void WordLanes::decode_zeros(const Elements& chunk) const {
  chunk.for_each_run([&](const Run& run) {
    if (run.output != nullptr) std::memset(run.output, skipped_, run.count * size_of(type_));
  });
}

}  // namespace netsum
