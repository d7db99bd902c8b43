#include "src/program/program.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "src/program/replay.h"

namespace netsum::program {
namespace {

constexpr std::array<std::string_view, kCollectives> kNames = {
    "all_reduce", "reduce",  "reduce_scatter",    "broadcast",  "all_gather", "gather",
    "scatter",    "barrier", "sparse_all_reduce", "all_to_all", "send",       "receive"};

Status invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

Status check_operation(const Header& header, const Operation& operation) {
  const int size = group_size(header, operation.group);
  if (size == 0) return invalid("there is no group " + std::to_string(operation.group));
  if (operation.count > kMostElements)
    return invalid("it has " + std::to_string(operation.count) + " elements, at most " +
                   std::to_string(kMostElements) + " are allowed");
  if (!operation.parts.empty()) {
    uint64_t sum = 0;
    for (const uint64_t part : operation.parts) {
      if (part > kMostElements - sum) return invalid("its parts have too many elements");
      sum += part;
    }
    if (sum != operation.count)
      return invalid("its parts have " + std::to_string(sum) + " elements, but its count is " +
                     std::to_string(operation.count));
  }
  if (has_parts(operation.collective) && !operation.on_hosts) {
    const auto ranks = static_cast<uint64_t>(size);
    if (operation.parts.empty() ? operation.count % ranks != 0 : operation.parts.size() != ranks)
      return invalid("it has no part for each of the " + std::to_string(size) + " ranks of its group");
  }
  if (!operation.scales.empty() &&
      (!reduces(operation.collective) || !is_floating(operation.type) ||
       operation.scales.size() != (operation.count + kScaleElements - 1) / kScaleElements))
    return invalid("it has " + std::to_string(operation.scales.size()) + " scales, which are one for each " +
                   std::to_string(kScaleElements) + " of its " + std::to_string(operation.count) +
                   " elements, of sums of floats alone");
  const bool rooted = has_root(operation.collective) && !operation.on_hosts;
  if (rooted ? operation.root < 0 || operation.root >= size : operation.root != -1)
    return invalid("its root is " + std::to_string(operation.root) +
                   (rooted ? ", which is no rank of its group" : ", but this collective has none: use -1"));
  if (operation.submitted_ns < 0 || operation.submitted_ns > kMostNs)
    return invalid("it was submitted outside of 0 to 2^53 ns");
  if (operation.done_ns && (*operation.done_ns < operation.submitted_ns || *operation.done_ns > kMostNs))
    return invalid("it is done before it was submitted, or after 2^53 ns");
  return {};
}

Status check_carried(const Program& program, size_t index, const Carried& carried) {
  if (carried.steps_back < 1 || carried.steps_back > index)
    return invalid("there is no step " + std::to_string(carried.steps_back) + " steps before");
  if (carried.operation >= program.steps[index - carried.steps_back].operations.size())
    return invalid("the step " + std::to_string(carried.steps_back) + " steps before has no operation " +
                   std::to_string(carried.operation));
  if (carried.done_ns < -kMostNs || carried.done_ns > kMostNs)
    return invalid("it is done outside of -2^53 to 2^53 ns");
  return {};
}

Status in(const std::string& where, const Status& status) {
  return status.ok() ? status : Status(status.code(), where + ": " + status.message());
}

Status check_threads(const Step& step) {
  if (step.threads.empty()) return invalid("it has no thread");
  std::vector<bool> submitted(step.operations.size());
  for (const auto& thread : step.threads) {
    int64_t compute_ns = 0;
    for (const Instruction& instruction : thread) {
      const std::string number = std::to_string(instruction.value);
      switch (instruction.kind) {
        case Instruction::Kind::kCompute:
          if (instruction.value > static_cast<uint64_t>(kMostNs - compute_ns))
            return invalid("a thread computes for more than 2^53 ns");
          compute_ns += static_cast<int64_t>(instruction.value);
          break;
        case Instruction::Kind::kSubmit:
          if (instruction.value >= submitted.size())
            return invalid("a thread submits operation " + number + ", which the step does not have");
          if (submitted[instruction.value]) return invalid("operation " + number + " is submitted twice");
          submitted[instruction.value] = true;
          break;
        case Instruction::Kind::kWait:
          if (instruction.value >= submitted.size() + step.carried.size())
            return invalid("a thread waits for operation " + number + ", which the step does not have");
          if (instruction.value < submitted.size() && !step.operations[instruction.value].done_ns)
            return invalid("a thread waits for operation " + number + ", which has no done_ns");
          break;
      }
    }
  }
  const auto missing = std::find(submitted.begin(), submitted.end(), false);
  if (missing != submitted.end())
    return invalid("no thread submits operation " + std::to_string(missing - submitted.begin()));
  return replay(step, recorded_completions(step)).status();
}

}  // namespace

std::string_view collective_name(Collective collective) {
  return kNames[static_cast<size_t>(collective)];
}

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter || collective == Collective::kSparseAllReduce;
}

bool has_root(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast ||
         collective == Collective::kGather || collective == Collective::kScatter ||
         collective == Collective::kSend || collective == Collective::kReceive;
}

bool has_parts(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllGather ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

std::vector<uint64_t> counts_of_parts(const Operation& operation, int group_size) {
  if (!operation.parts.empty()) return operation.parts;
  const size_t parts = has_parts(operation.collective) ? static_cast<size_t>(group_size) : 1;
  return std::vector<uint64_t>(parts, operation.count / parts);
}

int group_size(const Header& header, int group) {
  if (header.groups.empty()) return group == 0 ? header.world_size : 0;
  for (const Group& one : header.groups)
    if (one.id == group) return static_cast<int>(one.ranks.size());
  return 0;
}

Status check_header(const Header& header) {
  if (header.world_size < 1 || header.world_size > kMostRanks)
    return invalid("the world size is " + std::to_string(header.world_size) + ": use 1 to " +
                   std::to_string(kMostRanks));
  if (header.rank < 0 || header.rank >= header.world_size)
    return invalid("rank " + std::to_string(header.rank) + " is not in a job of " +
                   std::to_string(header.world_size) + " ranks");
  for (size_t i = 0; i < header.groups.size(); ++i) {
    const Group& group = header.groups[i];
    const std::string where = "group " + std::to_string(group.id);
    if (group.id < 0) return invalid(where + ": the number is negative");
    for (size_t j = 0; j < i; ++j)
      if (header.groups[j].id == group.id) return invalid(where + " occurs twice");
    if (group.ranks.empty()) return invalid(where + " has no ranks");
    std::vector<int> sorted = group.ranks;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.front() < 0 || sorted.back() >= header.world_size ||
        std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      return invalid(where + ": its ranks are not different ones of 0 to " +
                     std::to_string(header.world_size - 1));
  }
  return {};
}

Status check_step(const Program& program, size_t index) {
  const Step& step = program.steps[index];
  if (step.number > kMostSteps) return invalid("its number is above 2^32");
  if (index > 0 && step.number <= program.steps[index - 1].number)
    return invalid("its number is not above that of the step before");
  if (step.duration_ns < 0 || step.duration_ns > kMostNs)
    return invalid("its duration is outside of 0 to 2^53 ns");
  for (size_t i = 0; i < step.operations.size(); ++i)
    if (const Status status =
            in("operation " + std::to_string(i), check_operation(program.header, step.operations[i]));
        !status.ok())
      return status;
  for (size_t i = 0; i < step.carried.size(); ++i)
    if (const Status status = in("carried operation " + std::to_string(step.operations.size() + i),
                                 check_carried(program, index, step.carried[i]));
        !status.ok())
      return status;
  return check_threads(step);
}

Status check(const Program& program) {
  if (const Status status = in("header", check_header(program.header)); !status.ok()) return status;
  if (program.steps.empty()) return invalid("the program has no step");
  for (size_t i = 0; i < program.steps.size(); ++i)
    if (const Status status = in("step " + std::to_string(program.steps[i].number), check_step(program, i));
        !status.ok())
      return status;
  return {};
}

}  // namespace netsum::program
