#include "src/worker/modes/lanes.h"

#include <cstring>
#include <string>

namespace netsum {

Lanes::Lanes(const StripeChunks& chunks, uint32_t payload_bytes) : chunks_(chunks) {
  for (auto& payload : held_.payloads) payload.resize(payload_bytes);
}

Status Lanes::take(const Step& step, const uint8_t* lanes) {
  const Operation& operation = *step.operation;
  if (step.no_result) {
    operation.copy_own(step.chunk);
    note_delivered(step);
    return Status();
  }
  Payloads payloads{lanes};
  PacketPlan packet = step.packet;
  if (step.together) {
    std::memcpy(held_.payloads[step.part].data(), lanes, step.packet.payload_bytes);
    if (++held_.arrived < kMaxPackets) return Status();
    held_.arrived = 0;
    held_.busy = false;
    for (size_t part = 0; part < kMaxPackets; ++part) payloads[part] = held_.payloads[part].data();
    packet = chunks_.plan(operation, step.chunk).packet[0];  // they may arrive in any order
  }
  if (operation.decode(step.chunk, packet, payloads)) {
    note_delivered(step);
    return Status();
  }
  return Status(ErrorCode::kOverflow,
                operation.describe() + ": the exact sum of an element of [" + std::to_string(packet.begin) +
                    ", " + std::to_string(packet.begin + packet.count) + ") does not fit the type");
}

void Lanes::note_delivered(const Step& step) const {
  const Operation& operation = *step.operation;
  if (!operation.has_watermarks()) return;
  operation.note_delivered(step.chunk, step.together ? 1 : chunks_.plan(operation, step.chunk).packets);
}

}  // namespace netsum
