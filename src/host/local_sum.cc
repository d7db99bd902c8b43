#include "src/host/local_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace netsum {

TensorSequence sequence_of(const Operation& operation, std::span<const uint8_t* const> inputs, size_t begin,
                           size_t count, uint8_t* sum) {
  std::vector<TensorView> tensors = operation.tensors_of(begin, count);
  const uint8_t* input = inputs.front();
  for (TensorView& view : tensors) {
    view.input = std::exchange(input, input + view.count * size_of(operation.type()));
    view.output = std::exchange(sum, sum + view.count * size_of(operation.type()));
  }
  return {
      operation.type(), std::move(tensors), {inputs.begin() + 1, inputs.end()}, operation.offset_of(begin)};
}

LocalSum::LocalSum(uint32_t payload_bytes) : payload_bytes_(payload_bytes), agreed_(payload_bytes) {
  for (auto& payload : payloads_) payload.resize(payload_bytes);
}

bool LocalSum::run(const Encoding& encoding, const TensorSequence& all) {
  bool fits = true;
  const size_t per_chunk = encoding.chunk_elements(payload_bytes_);
  for (size_t begin = 0; begin < all.count(); begin += per_chunk)
    fits &= run_chunk(encoding, {&all, begin, std::min(per_chunk, all.count() - begin)});
  return fits;
}

bool LocalSum::run_chunk(const Encoding& encoding, const Elements& chunk) {
  const uint8_t* const agreed = agreed_.data();
  if (encoding.agrees()) encoding.scan(chunk, agreed_.data());
  const ChunkPlan plan = encoding.plan(chunk, agreed, payload_bytes_);
  if (plan.packets == 0) encoding.decode_zeros(chunk);
  Payloads payloads{};
  for (size_t i = 0; i < payloads.size(); ++i) payloads[i] = payloads_[i].data();
  bool fits = true;
  for (size_t i = 0; i < plan.packets; ++i) {
    const PacketPlan& packet = plan.packet[i];
    if (encoding.sum(chunk, agreed, packet)) continue;
    uint8_t* const payload = payloads_[plan.together ? i : 0].data();
    if (packet.payload_bytes >= 8) std::memset(payload + packet.payload_bytes - 8, 0, 8);
    encoding.encode(chunk, agreed, packet, payload);
    if (!plan.together) fits &= encoding.decode(chunk, agreed, packet, payloads);
  }
  if (plan.together) fits = encoding.decode(chunk, agreed, plan.packet[0], payloads);
  return fits;
}

}  // namespace netsum
