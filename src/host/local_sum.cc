#include "src/host/local_sum.h"

#include <algorithm>

namespace netsum {

LocalSum::LocalSum(uint32_t payload_bytes) : payload_bytes_(payload_bytes), agreed_(payload_bytes) {
  for (auto& payload : payloads_) payload.resize(payload_bytes);
}

bool LocalSum::run(const Operation& operation) {
  bool fits = true;
  const size_t count = operation.count();
  const size_t per_chunk = operation.encoding().chunk_elements(payload_bytes_);
  for (size_t begin = 0; begin < count; begin += per_chunk)
    fits &= run_chunk(operation, operation.chunk_of(begin, std::min(per_chunk, count - begin)));
  return fits;
}

bool LocalSum::run_chunk(const Operation& operation, Chunk&& chunk) {
  operation.scan(chunk, agreed_.data());
  chunk.agreed = agreed_.data();
  const ChunkPlan plan = operation.plan(chunk, payload_bytes_);
  if (plan.packets == 0) operation.decode_zeros(chunk);
  Payloads payloads{};
  for (size_t i = 0; i < payloads.size(); ++i) payloads[i] = payloads_[i].data();
  bool fits = true;
  for (size_t i = 0; i < plan.packets; ++i) {
    if (operation.sum(chunk, plan.packet[i])) continue;
    operation.encode(chunk, plan.packet[i], payloads_[plan.together ? i : 0].data());
    if (!plan.together) fits &= operation.decode(chunk, plan.packet[i], payloads);
  }
  if (plan.together) fits = operation.decode(chunk, plan.packet[0], payloads);
  return fits;
}

}  // namespace netsum
