#include "src/encoding/bytes.h"

#include <cstring>

#include "netsum/options.h"
#include "src/kernels/kernels.h"
#include "wire/ids.h"

namespace netsum {
namespace {

constexpr uint16_t kBytesSignature =
    0x4201;  // no other encoding's; the low byte changes with what lanes mean

}  // namespace

uint16_t Bytes::signature() const {
  return kBytesSignature;
}

int Bytes::max_members() const {
  return kMaxRanks;
}

uint8_t Bytes::value_format() const {
  return NETSUM_FORMAT_NONE;  // lanes take one round trip, too
}

ChunkPlan Bytes::plan(const Elements& chunk, const uint8_t*, uint32_t) const {
  ChunkPlan plan;
  plan.packet[0] = {.format = NETSUM_FORMAT_SUM_I64,
                    .layout = 0,
                    .begin = chunk.begin,
                    .count = chunk.count,
                    .payload_bytes = static_cast<uint32_t>((chunk.count + 7) / 8 * 8)};
  return plan;
}

void Bytes::decode_zeros(const Elements& chunk) const {
  chunk.for_each_run([](const Run& run) {
    if (run.output != nullptr) std::memset(run.output, 0, run.count);
  });
}

void Bytes::encode(const Elements& chunk, const uint8_t*, const PacketPlan&, uint8_t* payload) const {
  chunk.for_each_run([&](const Run& run) {
    uint8_t* lanes = payload + run.done;
    if (run.input == nullptr) {
      std::memset(lanes, 0, run.count);
      return;
    }
    std::memcpy(lanes, run.input, run.count);
    // Only one input has something else than zeros, so this is their sum.
    chunk.for_each_more_input(run, [&](const uint8_t* input) {
      for (size_t i = 0; i < run.count; ++i) lanes[i] |= input[i];
    });
  });
}

bool Bytes::decode(const Elements& chunk, const uint8_t*, const PacketPlan&, const Payloads& payloads) const {
  chunk.for_each_run([&](const Run& run) {
    if (run.output != nullptr) kernels::copy_out(run.output, payloads[0] + run.done, run.count);
  });
  return true;
}

}  // namespace netsum
