#include "src/worker/operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "src/encoding/without_tensors.h"
#include "src/kernels/kernels.h"
#include "wire/packet.h"

namespace netsum {

TensorView used_memory(const OperationSpec& spec, size_t i) {
  TensorView view = spec.tensors[i];
  if (!spec.role.contributes(i)) view.input = nullptr;
  const bool there_already = spec.type == DataType::kByte && view.input == view.output;
  if (!spec.role.receives(i) || there_already) view.output = nullptr;
  return view;
}

namespace {

// Of how operations use slots (slot_layout.h), as a part of every signature: releases that differ in it do not sum together.
// Change it with the layout.
constexpr uint64_t kSlotLayout = 2;

// What a rank without tensors contributes.
void copy_contribution(const TensorSequence& sequence, size_t begin, size_t count, uint8_t* to) {
  const std::vector<TensorView>& tensors = sequence.tensors();
  const auto own = std::find_if(tensors.begin(), tensors.end(),
                                [](const TensorView& tensor) { return tensor.input != nullptr; });
  if (own != tensors.end())
    static_cast<const Contribution*>(own->input)->copy_values(sequence.type(), begin, count, to);
  else
    std::memset(to, 0, count * size_of(sequence.type()));
}

// In place, because each operation has a few tensors and each allocation counts.
std::vector<TensorView> take_used_memory(OperationSpec* spec) {
  for (size_t i = 0; i < spec->tensors.size(); ++i) spec->tensors[i] = used_memory(*spec, i);
  return std::move(spec->tensors);
}

EncodingOptions encoding_of(EncodingOptions options, const OperationSpec& spec) {
  options.one_tensor = spec.one_tensor;
  options.without_tensors = spec.without_tensors;
  return options;
}

bool has_input(const TensorView& view) {
  return view.input != nullptr;
}
bool has_output(const TensorView& view) {
  return view.output != nullptr;
}

bool goes_to_one_alone(const Role& role, size_t tensors) {
  for (size_t i = 0; i < tensors; ++i)
    if (role.receivers.of(i) == role.rank) return true;
  return false;
}

}  // namespace

Operation::Operation(uint64_t number, OperationSpec spec, int members, const EncodingOptions& encoding)
    : number_(number),
      op_(spec.op),
      deadline_us_(spec.deadline_us),
      elements_(spec.type, take_used_memory(&spec), std::move(spec.joint.more_inputs),
                spec.joint.first_offset),
      has_inputs_(std::ranges::any_of(elements_.tensors(), has_input)),
      has_outputs_(std::ranges::any_of(elements_.tensors(), has_output)),
      all_inputs_(std::ranges::all_of(elements_.tensors(), has_input)),
      all_outputs_(std::ranges::all_of(elements_.tensors(), has_output)),
      encoding_(shared_encoding(encoding_of(encoding, spec), spec.type, spec.op, members)),
      role_(std::move(spec.role)),
      watermarks_(std::move(spec.watermarks)),
      partial_sums_(spec.joint.summed),
      without_tensors_(spec.without_tensors),
      none_alone_(!goes_to_one_alone(role_, elements_.tensors().size())) {
  uint64_t hash = hash_of(number);
  if (spec.joint.context != 0) hash = netsum_mix64(hash + spec.joint.context);
  hash = netsum_mix64(hash + kSlotLayout);
  const uint64_t kind = static_cast<uint64_t>(role_.collective) << 32 | role_.parameter;
  if (kind != 0) hash = netsum_mix64(hash + kind);
  if (role_.tag != 0) hash = netsum_mix64(hash + role_.tag);
  if (role_.chunk_map != nullptr && role_.chunk_map->signature() != 0) {
    hash = netsum_mix64(hash ^ role_.chunk_map->signature());
  }
  signature_ = static_cast<uint32_t>(hash >> 32);
}

uint64_t Operation::hash_of(uint64_t number) const {
  uint64_t hash =
      netsum_mix64(number ^ static_cast<uint64_t>(type()) << 56 ^ static_cast<uint64_t>(op_) << 48 ^
                   static_cast<uint64_t>(encoding_->signature()) << 32);
  for (const TensorView& tensor : elements_.tensors()) {
    hash = netsum_mix64(hash + tensor.count);
  }
  return hash;
}

uint64_t Operation::kind() const {
  const uint64_t role = static_cast<uint64_t>(role_.collective) << 32 | role_.parameter;
  const uint64_t map = role_.chunk_map != nullptr ? role_.chunk_map->signature() : 0;
  const uint64_t one_tensor = encoding_->separates_tensors() ? 0 : 1;
  return netsum_mix64(hash_of(0) ^ netsum_mix64(role + one_tensor) ^ map);
}

std::string Operation::describe() const {
  std::string text = std::string(collective_name(role_.collective)) + " #" + std::to_string(number_) + " (" +
                     std::string(data_type_name(type())) + "[" + std::to_string(count()) + "]";
  if (const std::string how = encoding_->describe(); !how.empty()) text += " " + how;
  const bool parts =
      role_.contributors.of(0) != role_.contributors.of(1) || role_.receivers.of(0) != role_.receivers.of(1);
  const size_t tensors = elements_.tensors().size();
  if (tensors > 1) text += " in " + std::to_string(tensors) + (parts ? " parts" : " tensors");
  if (type() != DataType::kByte) text += ", " + std::string(reduce_op_name(op_));
  const auto add_root = [&](const Ranks& ranks, const char* preposition) {
    if (ranks.of(0) >= 0 && ranks.of(0) == ranks.of(1))
      text += std::string(", ") + preposition + " rank " + std::to_string(ranks.of(0));
  };
  add_root(role_.contributors, "from");
  add_root(role_.receivers, "to");
  return text + ")";
}

bool Operation::contributes_to(const Elements& elements) const {
  if (all_inputs_) return elements.count > 0;
  bool contributes = false;
  if (has_inputs_) elements.for_each_run([&](const Run& run) { contributes |= run.input != nullptr; });
  return contributes;
}

bool Operation::is_for_this_rank_alone(const Elements& elements) const {
  if (none_alone_ && elements.count > 0) return false;
  bool alone = true;
  elements.for_each_run([&](const Run& run) { alone &= role_.receivers.of(run.tensor) == role_.rank; });
  return alone;
}

bool Operation::is_own_copy(const Run& run) const {
  return type() == DataType::kByte && run.input != nullptr && run.output != nullptr &&
         role_.contributors.of(run.tensor) == role_.rank;
}

bool Operation::needs_result(const Elements& elements) const {
  if (all_outputs_ && !moves_bytes()) return elements.count > 0;
  bool needs = false;
  if (has_outputs_)
    elements.for_each_run([&](const Run& run) { needs |= run.output != nullptr && !is_own_copy(run); });
  return needs;
}

bool Operation::writes(const Elements& elements) const {
  if (all_outputs_) return elements.count > 0;
  bool writes = false;
  if (has_outputs_) elements.for_each_run([&](const Run& run) { writes |= run.output != nullptr; });
  return writes;
}

void Operation::copy_own(const Elements& elements) const {
  if (!has_outputs_ || without_tensors_ || was_delivered(elements)) return;
  elements.for_each_run([&](const Run& run) {
    if (is_own_copy(run)) kernels::copy_out(run.output, run.input, run.count);
  });
}

bool Operation::may_be_inline(uint32_t payload_bytes) const {
  return encoding_->value_format() != NETSUM_FORMAT_NONE && elements_.inputs() == 1 &&
         chunks(payload_bytes) <= kMostInlineChunks;
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
  if (!has_inputs_) {
    std::memset(bytes, 0, agreed_bytes(chunk));
    return;
  }
  encoding_->scan(chunk, bytes);
}

void Operation::encode(const Chunk& chunk, const PacketPlan& packet, uint8_t* payload) const {
  const size_t bytes = packet.payload_bytes;
  if (!has_inputs_) {
    std::memset(payload, 0, bytes);
    return;
  }
  if (bytes >= 8) std::memset(payload + bytes - 8, 0, 8);
  encoding_->encode(chunk, chunk.agreed, packet, payload);
}

bool Operation::decode(const Chunk& chunk, const PacketPlan& packet, const Payloads& payloads) const {
  return !has_outputs_ || was_delivered(chunk) || encoding_->decode(chunk, chunk.agreed, packet, payloads);
}

void Operation::decode_zeros(const Chunk& chunk) const {
  if (has_outputs_ && !was_delivered(chunk)) encoding_->decode_zeros(chunk);
}

size_t Operation::input_end(const Elements& elements) const {
  if (!has_inputs_ || elements.count == 0) return 0;
  size_t end = elements.begin + elements.count;
  if (!all_inputs_) {
    end = 0;
    elements.for_each_run([&](const Run& run) {
      if (run.input != nullptr) end = elements.begin + run.done + run.count;
    });
  }
  return end * size_of(type());
}

std::string Operation::missing_input() const {
  if (watermarks_ == nullptr) return "";
  const size_t needed = input_end(chunk_of(0, count())), available = watermarks().available();
  if (available >= needed) return "";
  return "this rank has made available " + std::to_string(available) + " of " + std::to_string(needed) +
         " bytes of the input of " + describe() + " (Watermarks::make_available())";
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
  if (without_tensors_) return copy_contribution(elements_, begin, n, to);
  elements_.for_each_run(begin, n, [&](const Run& run) {
    if (run.input != nullptr)
      std::memcpy(to + run.done * element, run.input, run.count * element);
    else
      std::memset(to + run.done * element, 0, run.count * element);
  });
}

void Operation::copy_out(const uint8_t* from, size_t begin, size_t n) const {
  if (!has_outputs_ || without_tensors_ || was_delivered(chunk_of(begin, n))) return;
  const size_t element = size_of(type());
  elements_.for_each_run(begin, n, [&](const Run& run) {
    if (run.output != nullptr) kernels::copy_out(run.output, from + run.done * element, run.count * element);
  });
}

void Operation::copy_in_floats(const Elements& elements, uint8_t* to) const {
  if (without_tensors_) {
    std::vector<uint8_t> values(elements.count * size_of(type()));
    copy_contribution(*elements.sequence, elements.begin, elements.count, values.data());
    const uint8_t* const first = values.data();
    return kernels::sum_in_order(type(), {&first, 1}, elements.count, 1, DataType::kFloat32, to);
  }
  elements.for_each_run([&](const Run& run) {
    uint8_t* const first = to + run.done * sizeof(float);
    if (run.input == nullptr)
      std::memset(first, 0, run.count * sizeof(float));
    else
      kernels::sum_in_order(type(), {&run.input, 1}, run.count, 1, DataType::kFloat32, first);
  });
}

void Operation::copy_out_floats(const uint8_t* from, const Elements& elements, int summands) const {
  if (without_tensors_ || was_delivered(elements)) return;
  const int divisor = op_ == ReduceOp::kAvg ? summands : 1;
  elements.for_each_run([&](const Run& run) {
    if (run.output == nullptr) return;
    const uint8_t* const first = from + run.done * sizeof(float);
    kernels::sum_in_order(DataType::kFloat32, {&first, 1}, run.count, divisor, type(), run.output);
  });
}

}  // namespace netsum
