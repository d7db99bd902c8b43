#include "session/tensor_check.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace netsum {
namespace {

Status invalid(const std::string& why) {
  return {ErrorCode::kInvalidArgument, why};
}

// Memory [begin, end) that tensor `tensor` of the call reads or writes.
struct Region {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  size_t tensor = 0;
  bool written = false;
};

std::string name_of(const Region& region) {
  return std::string(region.written ? "the output" : "the input") + " of tensor " +
         std::to_string(region.tensor);
}

// An overlap would let a result overwrite an unsent input or another result.
Status check_overlap(std::span<Region> regions) {
  std::sort(regions.begin(), regions.end(),
            [](const Region& a, const Region& b) { return a.begin < b.begin; });
  const Region* read = nullptr;  // of the regions that begin before, the one that ends last
  const Region* written = nullptr;
  for (const Region& region : regions) {
    const Region* other = nullptr;
    if (written != nullptr && region.begin < written->end) other = written;
    if (region.written && read != nullptr && region.begin < read->end) other = read;
    if (other != nullptr) {
      return invalid(
          name_of(*other) + " overlaps " + name_of(region) +
          " in memory: results would overwrite what is still to be summed; give each tensor memory of "
          "its own (input and output of one tensor may be the same)");
    }
    const Region*& last = region.written ? written : read;
    if (last == nullptr || region.end > last->end) last = &region;
  }
  return {};
}

Status describe_region(const void* memory, size_t count, size_t element, size_t tensor, bool written,
                       Region* region) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  if (count >= PTRDIFF_MAX / element || begin > UINTPTR_MAX - count * element)
    return invalid("tensor " + std::to_string(tensor) + " of " + std::to_string(count) +
                   " elements is larger than the memory of a process");
  *region = {begin, begin + count * element, tensor, written};
  return {};
}

// A packet names its chunk with 32 bits. The check assumes the widest narrow lanes, so that the limit depends on the
// tensors and the packet size only.
Status check_chunks(std::span<const TensorView> tensors, DataType type, uint32_t payload_bytes) {
  constexpr uint64_t kMostChunks = uint64_t{1} << 32;
  const uint64_t chunk_elements =
      type == DataType::kByte ? payload_bytes : payload_bytes / std::max<size_t>(size_of(type), 4);
  uint64_t elements = 0;
  for (const TensorView& tensor : tensors) elements += tensor.count;
  if (elements <= kMostChunks * chunk_elements) return {};
  return invalid(std::to_string(elements) + " elements of " + std::string(data_type_name(type)) +
                 " are more than the 2^32 packets of one operation hold (" +
                 std::to_string(kMostChunks * chunk_elements) + " elements with packets of " +
                 std::to_string(payload_bytes) + " bytes): sum them in several operations");
}

Status unsupported(const std::string& why) {
  return {ErrorCode::kUnsupported, why};
}

Status check_op(ReduceOp op, DataType type) {
  if (is_reducible(type, op)) return {};
  const std::string name(reduce_op_name(op));
  if (op == ReduceOp::kAvg) return unsupported("avg is defined for floating-point types only");
  if (travels_as_words(op)) return unsupported(name + " is defined for integer types only");
  return unsupported("the operator is " + name + "; use sum, avg, min, max, bit_and, bit_or or bit_xor");
}

Status check_pointers(const OperationSpec& spec, size_t i, const TensorView& used) {
  const bool contributes = spec.role.contributes(i), receives = spec.role.receives(i);
  const bool has_the_bytes = spec.type == DataType::kByte && contributes;
  const char* missing = contributes && used.input == nullptr                   ? "input"
                        : receives && used.output == nullptr && !has_the_bytes ? "output"
                                                                               : nullptr;
  if (missing == nullptr) return {};
  const std::string which = "tensor " + std::to_string(i) + " of " + std::to_string(used.count) + " elements";
  return invalid(which + " has a null pointer as its " + missing);
}

Status check_tensors(const OperationSpec& spec, uint32_t payload_bytes) {
  const size_t element = size_of(spec.type);
  if (element == 0) return unsupported("unknown data type");
  if (Status status = check_op(spec.op, spec.type); !status.ok()) return status;
  std::array<Region, 2> of_one;  // one tensor, the frequent case, costs no allocation
  std::vector<Region> of_many(spec.tensors.size() > 1 ? 2 * spec.tensors.size() : 0);
  const std::span<Region> regions = of_many.empty() ? std::span<Region>(of_one) : of_many;
  size_t used = 0;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    if (spec.tensors[i].count == 0) continue;
    const TensorView tensor = used_memory(spec, i);
    if (Status status = check_pointers(spec, i, tensor); !status.ok()) return status;
    const bool reads = tensor.input != nullptr, writes = tensor.output != nullptr;
    Status status;
    if (writes) status = describe_region(tensor.output, tensor.count, element, i, true, &regions[used++]);
    if (status.ok() && reads && tensor.input != tensor.output)
      status = describe_region(tensor.input, tensor.count, element, i, false, &regions[used++]);
    if (!status.ok()) return status;
  }
  if (used > 1) {
    if (Status status = check_overlap(regions.first(used)); !status.ok()) return status;
  }
  return check_chunks(spec.tensors, spec.type, payload_bytes);
}

Status named(const OperationSpec& spec, const Status& error) {
  return {error.code(), std::string(collective_name(spec.role.collective)) + ": " + error.message()};
}

Status check_role_of(const OperationSpec& spec, int world_size) {
  const Collective collective = spec.role.collective;
  if (spec.type == DataType::kByte && !moves_bytes(collective))
    return unsupported("bytes are moved, not summed");
  const auto root = static_cast<int>(spec.role.parameter);
  if (has_root(collective) && (root < 0 || root >= world_size))
    return invalid("the root is rank " + std::to_string(root) + "; the job has ranks 0 to " +
                   std::to_string(world_size - 1));
  if (has_parts(collective) && spec.tensors.size() != static_cast<size_t>(world_size))
    return invalid(std::to_string(spec.tensors.size()) + " parts are given, and the job has " +
                   std::to_string(world_size) + " ranks: give one part for each rank (it may be empty)");
  return {};
}

}  // namespace

Status check_role(const OperationSpec& spec, int world_size) {
  Status status = check_role_of(spec, world_size);
  if (!status.ok()) status = named(spec, status);
  return status;
}

Status check_operation(const OperationSpec& spec, uint32_t payload_bytes) {
  Status status = check_tensors(spec, payload_bytes);
  if (!status.ok()) status = named(spec, status);
  return status;
}

}  // namespace netsum
