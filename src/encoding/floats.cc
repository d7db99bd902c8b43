#include "src/encoding/floats.h"

#include <cstring>

#include "netsum/options.h"
#include "src/base/assert.h"
#include "src/kernels/kernels.h"
#include "wire/ids.h"
#include "wire/values.h"

namespace netsum {
namespace {

// No other encoding's. The low byte changes with what packets mean.
constexpr uint16_t kAsTheyAreSignature = 0x4601, kInFloat32Signature = 0x6601;

}  // namespace

Floats::Floats(FloatSums floats, DataType type, ReduceOp op, int members)
    : floats_(floats),
      type_(type),
      sent_as_(floats == FloatSums::kInFloat32 ? DataType::kFloat32 : type),
      format_(wire::format_of_values(sent_as_, floats == FloatSums::kAsTheyAre && op == ReduceOp::kAvg)),
      divisor_(floats == FloatSums::kInFloat32 && op == ReduceOp::kAvg ? members : 1) {
  NETSUM_ASSERT(is_floating(type) && floats != FloatSums::kNo);
}

uint16_t Floats::signature() const {
  return floats_ == FloatSums::kInFloat32 ? kInFloat32Signature : kAsTheyAreSignature;
}

int Floats::max_members() const {
  return kMaxRanks;
}

uint8_t Floats::value_format() const {
  return NETSUM_FORMAT_NONE;  // its packets take one round trip anyway
}

ChunkPlan Floats::plan(const Elements& chunk, const uint8_t*, uint32_t) const {
  ChunkPlan plan;
  plan.packet[0] = {.format = format_,
                    .layout = 0,
                    .begin = chunk.begin,
                    .count = chunk.count,
                    .payload_bytes = static_cast<uint32_t>((chunk.count * size_of(sent_as_) + 7) / 8 * 8)};
  return plan;
}

void Floats::decode_zeros(const Elements& chunk) const {
  chunk.for_each_run([&](const Run& run) {
    if (run.output != nullptr) std::memset(run.output, 0, run.count * size_of(type_));
  });
}

void Floats::encode(const Elements& chunk, const uint8_t*, const PacketPlan&, uint8_t* payload) const {
  NETSUM_ASSERT(chunk.inputs() == 1);
  chunk.for_each_run([&](const Run& run) {
    uint8_t* const to = payload + run.done * size_of(sent_as_);
    const size_t bytes = run.count * size_of(sent_as_);
    if (run.input == nullptr)
      std::memset(to, 0, bytes);
    else if (sent_as_ == type_)
      std::memcpy(to, run.input, bytes);
    else
      kernels::sum_in_order(type_, {&run.input, 1}, run.count, 1, sent_as_, to);
  });
}

bool Floats::decode(const Elements& chunk, const uint8_t*, const PacketPlan&,
                    const Payloads& payloads) const {
  chunk.for_each_run([&](const Run& run) {
    if (run.output == nullptr) return;
    const uint8_t* const from = payloads[0] + run.done * size_of(sent_as_);
    if (sent_as_ == type_ && divisor_ == 1)
      kernels::copy_out(run.output, from, run.count * size_of(type_));
    else
      kernels::sum_in_order(sent_as_, {&from, 1}, run.count, divisor_, type_, run.output);
  });
  return true;
}

}  // namespace netsum
