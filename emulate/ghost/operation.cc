#include "emulate/ghost/operation.h"

#include <optional>
#include <string>

namespace netsum::ghost {
namespace {

std::optional<Collective> network_collective(program::Collective collective) {
  switch (collective) {
    case program::Collective::kAllReduce:
      return Collective::kAllReduce;
    case program::Collective::kReduce:
      return Collective::kReduce;
    case program::Collective::kReduceScatter:
      return Collective::kReduceScatter;
    case program::Collective::kBroadcast:
      return Collective::kBroadcast;
    case program::Collective::kAllGather:
      return Collective::kAllGather;
    case program::Collective::kGather:
      return Collective::kGather;
    case program::Collective::kScatter:
      return Collective::kScatter;
    case program::Collective::kBarrier:
      return Collective::kBarrier;
    default:
      return std::nullopt;
  }
}

// Makes what rank `rank` does what that one and the next ones do together. A tensor to which one of them contributes is not one
// of the first alone, and neither is one that one of them receives.
void take_part_for(int rank, int ranks, OperationSpec* spec) {
  const auto is_here = [&](int of) { return of == Ranks::kEvery || (of >= rank && of < rank + ranks); };
  for (size_t i = 0; i < spec->tensors.size(); ++i) {
    if (!is_here(spec->role.contributors.of(i))) spec->tensors[i].input = nullptr;
    if (!is_here(spec->role.receivers.of(i))) spec->tensors[i].output = nullptr;
  }
  spec->role.contributors = spec->role.receivers = Ranks::every();
}

static_assert(Contribution::kScaleElements == program::kScaleElements);

const Contribution kZeros;
// Stands for memory that is not there: nobody writes it.
char output = 0;

}  // namespace

Status check_supported(const program::Operation& operation) {
  const std::string name(program::collective_name(operation.collective));
  if (operation.on_hosts)
    return {ErrorCode::kUnsupported, name + " ran on the hosts, and ghosts take part in the network only"};
  if (operation.collective == program::Collective::kSparseAllReduce)
    return {ErrorCode::kUnsupported, name + " has packets that depend on the data, and ghosts have none"};
  if (!network_collective(operation.collective))
    return {ErrorCode::kUnsupported, name + " is between single ranks, and ghosts cannot take part in it"};
  return {};
}

OperationSpec spec_of(const program::Operation& operation, int rank, int size, int ranks,
                      const Contribution* contribution) {
  if (contribution == nullptr) contribution = &kZeros;
  const Collective collective = *network_collective(operation.collective);
  OperationSpec spec;
  spec.without_tensors = true;
  spec.role = make_role(collective, operation.root, rank);
  spec.role.tag = operation.tag;
  if (collective == Collective::kBarrier) {
    spec.type = DataType::kInt32;
    spec.tensors = {{.count = 1}};
    return spec;
  }
  const bool moves = moves_bytes(collective);
  const size_t element = moves ? size_of(operation.type) : 1;
  spec.type = moves ? DataType::kByte : operation.type;
  spec.op = moves ? ReduceOp::kSum : operation.op;
  spec.one_tensor = collective == Collective::kReduceScatter;
  for (const uint64_t count : program::counts_of_parts(operation, size))
    spec.tensors.push_back({.input = contribution, .output = &output, .count = count * element});
  if (ranks > 1) take_part_for(rank, ranks, &spec);
  return spec;
}

}  // namespace netsum::ghost
