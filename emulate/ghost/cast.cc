#include "emulate/ghost/cast.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "src/base/rng.h"

namespace netsum::ghost {
namespace {

using program::Program;
using program::Step;

Status invalid(const std::string& message) {
  return {ErrorCode::kInvalidArgument, message};
}

bool is_same(const program::Operation& a, const program::Operation& b) {
  const auto identity = [](const program::Operation& one) {
    return std::tie(one.collective, one.type, one.count, one.parts, one.op, one.root, one.group, one.tag,
                    one.on_hosts);
  };
  return identity(a) == identity(b);
}

// The whole steps of a record; behind them at most one that was recorded in part.
uint64_t whole_steps_of(const Program& record) {
  return static_cast<uint64_t>(
      std::find_if(record.steps.begin(), record.steps.end(), [](const Step& step) { return step.partial; }) -
      record.steps.begin());
}

}  // namespace

bool same_operations(const Step& a, const Step& b) {
  return std::equal(a.operations.begin(), a.operations.end(), b.operations.begin(), b.operations.end(),
                    is_same) &&
         std::equal(a.carried.begin(), a.carried.end(), b.carried.begin(), b.carried.end(),
                    [](const program::Carried& one, const program::Carried& other) {
                      return one.steps_back == other.steps_back && one.operation == other.operation;
                    });
}

Result<Cast> Cast::of(const std::vector<Program>& records) {
  const Program& order = records.front();
  for (const Program& record : records) {
    for (size_t k = 0; k < order.steps.size(); ++k) {
      if (k < record.steps.size() && same_operations(order.steps[k], record.steps[k])) continue;
      return invalid("ranks " + std::to_string(order.header.rank) + " and " +
                     std::to_string(record.header.rank) + " have recorded different operations in step " +
                     std::to_string(k) + ": record all ranks in one run, to its end");
    }
  }
  Cast cast(records);
  for (const Program& record : records)
    for (const Step& step : record.steps) cast.sort_in(step);
  for (const Step& step : order.steps) cast.order_.push_back(cast.kind_of(step));
  return cast;
}

size_t Cast::kind_of(const Step& step) const {
  return static_cast<size_t>(std::find_if(kinds_.begin(), kinds_.end(),
                                          [&](const auto& kind) {
                                            return kind[0]->partial == step.partial &&
                                                   same_operations(*kind[0], step);
                                          }) -
                             kinds_.begin());
}

void Cast::sort_in(const Step& step) {
  const size_t kind = kind_of(step);
  if (kind == kinds_.size()) kinds_.emplace_back();
  kinds_[kind].push_back(&step);
}

Result<std::vector<const Step*>> Cast::steps(int rank, uint64_t whole_steps, uint64_t seed) const {
  const Program& order = records_.front();
  const uint64_t recorded = whole_steps_of(order);
  if (whole_steps == 0) whole_steps = recorded;
  if (whole_steps > recorded && recorded < 2)
    return invalid("there is no step to repeat: the record has " + std::to_string(recorded) +
                   " whole steps, of which the first one sets up");
  const auto own = std::find_if(records_.begin(), records_.end(),
                                [rank](const Program& record) { return record.header.rank == rank; });
  Rng rng(seed + static_cast<uint64_t>(rank));
  const auto any_like = [&](size_t k) {
    const auto& fitting = kinds_[order_[k]];
    return fitting[rng.below(fitting.size())];
  };
  std::vector<const Step*> steps;
  for (uint64_t k = 0; k < whole_steps; ++k) {
    if (own != records_.end() && k < recorded) {
      steps.push_back(&own->steps[k]);
    } else {
      // The first step sets up.
      steps.push_back(any_like(k < recorded ? k : 1 + (k - 1) % (recorded - 1)));
    }
  }
  if (recorded < order.steps.size())
    steps.push_back(own != records_.end() ? &own->steps[recorded] : any_like(recorded));
  return steps;
}

Status change_world_size(int world_size, Program* record) {
  for (Step& step : record->steps) {
    for (program::Operation& operation : step.operations) {
      if (!program::has_parts(operation.collective)) continue;
      const auto& parts = operation.parts;
      const uint64_t part =
          parts.empty() ? operation.count / static_cast<uint64_t>(record->header.world_size) : parts.front();
      if (std::any_of(parts.begin(), parts.end(), [part](uint64_t other) { return other != part; }))
        return {ErrorCode::kUnsupported,
                "step " + std::to_string(step.number) + ": " +
                    std::string(program::collective_name(operation.collective)) +
                    " has unequal parts, which say nothing about a job of another size: record one of " +
                    std::to_string(world_size) + " ranks"};
      operation.parts.clear();
      operation.count = part * static_cast<uint64_t>(world_size);
    }
  }
  record->header.world_size = world_size;
  return {};
}

}  // namespace netsum::ghost
