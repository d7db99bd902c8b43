#include "src/worker/operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "src/kernels/kernels.h"
#include "wire/packet.h"

namespace netsum {

const char* collective_name(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduce:
      return "reduce";
    case Collective::kShares:
      return "agreement on shares";
  }
  return "?";
}

Operation::Operation(uint64_t number, OperationSpec spec, int members, const EncodingOptions& encoding)
    : number_(number),
      op_(spec.op),
      deadline_us_(spec.deadline_us),
      elements_(spec.type, std::move(spec.tensors), std::move(spec.joint.more_inputs),
                spec.joint.first_offset),
      encoding_(make_encoding(encoding, spec.type, spec.op, members)),
      role_(std::move(spec.role)) {
  uint64_t hash =
      netsum_mix64(number ^ static_cast<uint64_t>(spec.type) << 56 ^ static_cast<uint64_t>(spec.op) << 48 ^
                   static_cast<uint64_t>(encoding_->signature()) << 32);
  for (const TensorView& tensor : elements_.tensors()) {
    hash = netsum_mix64(hash + tensor.count);
  }
  if (spec.joint.context != 0) hash = netsum_mix64(hash + spec.joint.context);
  // An all-reduce over equal stripes without parameters keeps the signature of earlier versions.
  const uint64_t kind = static_cast<uint64_t>(role_.collective) << 32 | role_.parameter;
  if (kind != 0) hash = netsum_mix64(hash + kind);
  if (role_.chunk_map != nullptr && role_.chunk_map->signature() != 0) {
    hash = netsum_mix64(hash ^ role_.chunk_map->signature());
  }
  signature_ = static_cast<uint32_t>(hash >> 32);
}

std::string Operation::describe() const {
  std::string text = std::string(collective_name(role_.collective)) + " #" + std::to_string(number_) + " (" +
                     std::string(data_type_name(type())) + "[" + std::to_string(count()) + "]";
  if (const std::string how = encoding_->describe(); !how.empty()) text += " " + how;
  const size_t tensors = elements_.tensors().size();
  if (tensors > 1) text += " in " + std::to_string(tensors) + " tensors";
  return text + ", " + std::string(reduce_op_name(op_)) + ")";
}

bool Operation::can_send_values(uint32_t payload_bytes) const {
  return encoding_->value_format() != NETSUM_FORMAT_NONE && elements_.inputs() == 1 &&
         chunks(payload_bytes) <= kMostValueChunks &&
         (elements_.tensors().size() == 1 || !encoding_->separates_tensors());
}

size_t Operation::chunks(uint32_t payload_bytes) const {
  const size_t per_chunk = encoding_->chunk_elements(payload_bytes);
  return (count() + per_chunk - 1) / per_chunk;
}

Chunk Operation::chunk(size_t index, uint32_t payload_bytes) const {
  const size_t per_chunk = encoding_->chunk_elements(payload_bytes);
  const size_t begin = index * per_chunk;
  return chunk_of(begin, std::min(per_chunk, count() - begin));
}

void Operation::scan(const Chunk& chunk, uint8_t* bytes) const {
  if (!role_.contributes) {
    std::memset(bytes, 0, agreed_bytes(chunk));
    return;
  }
  encoding_->scan(chunk, bytes);
}

void Operation::encode(const Chunk& chunk, const PacketPlan& packet, uint8_t* payload) const {
  const size_t bytes = packet.payload_bytes;
  if (!role_.contributes) {
    std::memset(payload, 0, bytes);
    return;
  }
  if (bytes >= 8) std::memset(payload + bytes - 8, 0, 8);
  encoding_->encode(chunk, chunk.agreed, packet, payload);
}

bool Operation::decode(const Chunk& chunk, const PacketPlan& packet, const Payloads& payloads) const {
  return !role_.receives || encoding_->decode(chunk, chunk.agreed, packet, payloads);
}

void Operation::decode_zeros(const Chunk& chunk) const {
  if (role_.receives) encoding_->decode_zeros(chunk);
}

std::vector<TensorView> Operation::tensors_of(size_t begin, size_t n) const {
  std::vector<TensorView> tensors;
  elements_.for_each_run(begin, n, [&](const Run& run) {
    if (encoding_->separates_tensors() || tensors.empty()) tensors.push_back({.id = run.tensor_id});
    tensors.back().count += run.count;
  });
  return tensors;
}

size_t Operation::offset_of(size_t begin) const {
  size_t offset = 0;
  if (begin < count()) elements_.for_each_run(begin, 1, [&](const Run& run) { offset = run.offset; });
  return offset;
}

void Operation::copy_in(size_t begin, size_t n, uint8_t* to) const {
  const size_t element = size_of(type());
  if (!role_.contributes) {
    std::memset(to, 0, n * element);
    return;
  }
  elements_.for_each_run(begin, n, [&](const Run& run) {
    std::memcpy(to + run.done * element, run.input, run.count * element);
  });
}

void Operation::copy_out(const uint8_t* from, size_t begin, size_t n) const {
  if (!role_.receives) return;
  const size_t element = size_of(type());
  elements_.for_each_run(begin, n, [&](const Run& run) {
    kernels::copy_out(run.output, from + run.done * element, run.count * element);
  });
}

}  // namespace netsum
