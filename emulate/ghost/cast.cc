#include "emulate/ghost/cast.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "emulate/ghost/player.h"
#include "src/base/rng.h"
#include "src/program/values.h"
#include "wire/packet.h"

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

// Groups of equal ranks are counted in the order of their numbers.
using Key = std::pair<std::vector<int>, int>;

std::map<Key, int> groups_of(const program::Header& header) {
  std::map<Key, int> ids;
  if (header.groups.empty()) ids[{all_ranks(header.world_size), 0}] = 0;
  for (const program::Group& group : header.groups) {
    int before = 0;
    while (ids.contains({group.ranks, before})) ++before;
    ids[{group.ranks, before}] = group.id;
  }
  return ids;
}

bool all_have_all_ranks(const std::map<Key, int>& groups, int world_size) {
  return std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
    return group.first.first.size() == static_cast<size_t>(world_size);
  });
}

// The first step in which the two records do not have the same operations in that group.
std::optional<size_t> difference(const Program& a, int group_of_a, const Program& b, int group_of_b) {
  for (size_t k = 0; k < a.steps.size(); ++k) {
    std::vector<program::Operation> of_a, of_b;
    const auto take = [k](const Program& record, int group, std::vector<program::Operation>* into) {
      if (k >= record.steps.size()) return;
      for (const program::Operation& operation : record.steps[k].operations) {
        if (operation.group != group) continue;
        into->push_back(operation);
        into->back().group = 0;
      }
    };
    take(a, group_of_a, &of_a);
    take(b, group_of_b, &of_b);
    if (k >= b.steps.size() || !std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), is_same))
      return k;
  }
  return std::nullopt;
}

// Of less computing, how long it takes says nothing.
constexpr double kLeastNs = 200'000;

std::string name_of(const std::string& job, const Key& key) {
  uint64_t hash = netsum_mix64(static_cast<uint64_t>(key.second) + 1);
  for (const int rank : key.first) hash = netsum_mix64(hash + static_cast<uint64_t>(rank) + 1);
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return job + "-" + text;
}

bool has_scales(const program::Operation& operation) {
  return program::reduces(operation.collective) && is_floating(operation.type) &&
         (operation.op == ReduceOp::kSum || operation.op == ReduceOp::kAvg) && operation.count > 0;
}

}  // namespace

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int GroupJob::rank_of(int rank) const {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

std::vector<uint64_t> operations_of(const std::vector<const Step*>& steps, int group) {
  std::vector<uint64_t> ids;
  uint64_t id = 0;
  for (const Step* step : steps) {
    for (const program::Operation& operation : step->operations) {
      if (operation.group == group) ids.push_back(id);
      ++id;
    }
  }
  return ids;
}

bool same_operations(const Step& a, const Step& b) {
  return std::equal(a.operations.begin(), a.operations.end(), b.operations.begin(), b.operations.end(),
                    is_same) &&
         std::equal(a.carried.begin(), a.carried.end(), b.carried.begin(), b.carried.end(),
                    [](const program::Carried& one, const program::Carried& other) {
                      return one.steps_back == other.steps_back && one.operation == other.operation;
                    });
}

Result<Cast> Cast::of(const std::vector<Program>& records) {
  std::map<Key, std::pair<const Program*, int>> first;  // of each group
  for (const Program& record : records) {
    for (const auto& [key, id] : groups_of(record.header)) {
      const auto& [other, other_id] = first.try_emplace(key, &record, id).first->second;
      const auto step = difference(*other, other_id, record, id);
      if (!step) continue;
      return invalid("ranks " + std::to_string(other->header.rank) + " and " +
                     std::to_string(record.header.rank) + " have recorded different operations in step " +
                     std::to_string(*step) + ": record all ranks in one run, to its end");
    }
  }
  Cast cast(records);
  for (const Program& record : records)
    for (const Step& step : record.steps) cast.sort_in(step);
  for (const Program& record : records) {
    cast.orders_.emplace_back();
    for (const Step& step : record.steps) cast.orders_.back().push_back(cast.kind_of(step));
  }
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
  const Program* const own = record_of(rank);
  const Program& order = own != nullptr ? *own : records_.front();
  const std::vector<size_t>& kinds = orders_[static_cast<size_t>(&order - records_.data())];
  const uint64_t recorded = whole_steps_of(order);
  if (whole_steps == 0) whole_steps = recorded;
  if (whole_steps > recorded && recorded < 2)
    return invalid("there is no step to repeat: the record has " + std::to_string(recorded) +
                   " whole steps, of which the first one sets up");
  Rng rng(seed + static_cast<uint64_t>(rank));
  const auto any_like = [&](size_t k) {
    const auto& fitting = kinds_[kinds[k]];
    return fitting[rng.below(fitting.size())];
  };
  std::vector<const Step*> steps;
  for (uint64_t k = 0; k < whole_steps; ++k) {
    if (own != nullptr && k < recorded) {
      steps.push_back(&own->steps[k]);
    } else {
      // The first step sets up.
      steps.push_back(any_like(k < recorded ? k : 1 + (k - 1) % (recorded - 1)));
    }
  }
  if (recorded < order.steps.size())
    steps.push_back(own != nullptr ? &own->steps[recorded] : any_like(recorded));
  return steps;
}

const Program* Cast::record_of(int rank) const {
  const auto own = std::find_if(records_.begin(), records_.end(),
                                [rank](const Program& record) { return record.header.rank == rank; });
  return own != records_.end() ? &*own : nullptr;
}

Result<std::vector<GroupJob>> Cast::groups(int rank, const std::string& job) const {
  const Program* const own = record_of(rank);
  const program::Header& header = own != nullptr ? own->header : records_.front().header;
  std::map<Key, int> keys = groups_of(header);
  if (own == nullptr && !all_have_all_ranks(keys, header.world_size))
    return invalid(
        "rank " + std::to_string(rank) +
        " was not recorded, and the others have groups that are not of all ranks: record all ranks");
  const Key all = {all_ranks(header.world_size), 0};
  std::vector<GroupJob> groups = {
      {.id = keys.contains(all) ? keys[all] : -1, .ranks = all.first, .job = job}};
  keys.erase(all);
  for (const auto& [key, id] : keys)
    groups.push_back({.id = id, .ranks = key.first, .job = name_of(job, key)});
  std::sort(groups.begin() + 1, groups.end(),
            [](const GroupJob& a, const GroupJob& b) { return a.id < b.id; });
  return groups;
}

Status check_contributions(Contributions contributions, const std::vector<program::Step>& steps) {
  if (contributions == Contributions::kZeros || contributions == Contributions::kRecorded) return {};
  for (const program::Step& step : steps) {
    for (const program::Operation& operation : step.operations) {
      if (!has_scales(operation) || !operation.scales.empty()) continue;
      return {ErrorCode::kInvalidArgument,
              "step " + std::to_string(step.number) + ": " +
                  std::string(program::collective_name(operation.collective)) +
                  " has no scales, without which ghosts can contribute zeros alone: record again with "
                  "NETSUM_RECORD_SCALES=1"};
    }
  }
  return {};
}

Status check_values(const Program& record, const std::vector<std::span<const uint8_t>>& values) {
  size_t number = 0;
  for (const Step& step : record.steps) {
    for (const program::Operation& operation : step.operations) {
      const std::vector<int> ranks = program::ranks_of(record.header, operation.group);
      const auto own = std::find(ranks.begin(), ranks.end(), record.header.rank) - ranks.begin();
      const auto contributed =
          program::contributed_by(operation, static_cast<int>(own), static_cast<int>(ranks.size()));
      if (values[number++].empty() && contributed.count > 0)
        return invalid("step " + std::to_string(step.number) + ": " +
                       std::string(program::collective_name(operation.collective)) + " of rank " +
                       std::to_string(record.header.rank) +
                       " has no values: record again with a larger NETSUM_RECORD_VALUES");
    }
  }
  return {};
}

bool of_one_machine(const std::vector<Program>& records) {
  return std::all_of(records.begin(), records.end(), [&](const Program& record) {
    return record.header.machine == records.front().header.machine;
  });
}

double correlation_of(const std::vector<Program>& records) {
  uint64_t steps = UINT64_MAX;
  for (const Program& record : records) steps = std::min(steps, whole_steps_of(record));
  if (records.size() < 2 || steps < 4) return 0;
  // By rank and step: by how much longer than on average it computes, in multiples of the standard deviation.
  std::vector<std::vector<double>> deviations;
  for (const Program& record : records) {
    std::vector<double> times;
    for (uint64_t k = 1; k < steps; ++k) {
      double ns = 0;
      for (const auto& thread : record.steps[k].threads)
        for (const program::Instruction& one : thread)
          if (one.kind == program::Instruction::Kind::kCompute) ns += static_cast<double>(one.value);
      times.push_back(ns);
    }
    const auto count = static_cast<double>(times.size());
    const double mean = std::accumulate(times.begin(), times.end(), 0.0) / count;
    double squares = 0;
    for (double& time : times) {
      time -= mean;
      squares += time * time;
    }
    if (squares == 0) continue;  // it goes together with nothing
    for (double& time : times) time /= std::sqrt(squares);
    deviations.push_back(std::move(times));
  }
  double sum = 0;
  for (size_t a = 0; a < deviations.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      sum += std::inner_product(deviations[a].begin(), deviations[a].end(), deviations[b].begin(), 0.0);
  return sum / (static_cast<double>(records.size() * (records.size() - 1)) / 2);
}

Pace::Pace(const std::vector<const Step*>& steps, int group, double share, bool follows_level)
    : share_(share), follows_level_(follows_level) {
  using Kind = program::Instruction::Kind;
  const std::vector<uint64_t> ids = operations_of(steps, group);
  std::map<uint64_t, uint64_t> numbers;
  for (const uint64_t id : ids) numbers.emplace(id, numbers.size());
  stretches_.resize(ids.size());
  const std::vector<uint64_t> first_ids = first_ids_of(steps);
  std::vector<Since> stretch;
  bool is_known = false;
  double told_ns = 0, all_ns = 0;
  for (size_t k = 0; k < steps.size(); ++k) {
    const Step& step = *steps[k];
    if (k > 0) all_ns += static_cast<double>(step.duration_ns);
    if (step.threads.empty()) continue;
    for (const program::Instruction& one : step.threads.front()) {
      if (one.kind == Kind::kCompute) {
        for (Since& since : stretch) since.computed_ns += static_cast<double>(one.value);
        continue;
      }
      const auto found = numbers.find(id_of(steps, first_ids, k, one.value));
      if (found == numbers.end()) {
        // When other groups' operations end, ghosts do not know.
        is_known &= one.kind != Kind::kWait;
      } else if (one.kind == Kind::kWait) {
        stretch.push_back({.number = found->second, .is_end = true});
      } else {
        if (is_known && k > 0 && stretch.front().computed_ns >= kLeastNs) {
          told_ns += stretch.front().computed_ns;
          stretches_[found->second] = std::move(stretch);
        }
        stretch = {{.number = found->second}};
        is_known = true;
      }
    }
  }
  if (all_ns > 0) covers_ = told_ns / all_ns;
}

std::optional<double> Pace::next(const std::function<int64_t(uint64_t)>& submitted_ns,
                                 const std::function<int64_t(uint64_t)>& done_ns) {
  constexpr double kMost = 4;
  if (number_ >= stretches_.size()) {
    ++number_;
    return factor_;
  }
  const int64_t submitted = submitted_ns(number_);
  if (submitted == 0) return std::nullopt;
  const std::vector<Since>& stretch = stretches_[number_];
  double ratio = kMost;
  bool tells = !stretch.empty();
  for (const Since& since : stretch) {
    const int64_t begin = since.is_end ? done_ns(since.number) : submitted_ns(since.number);
    if (begin == 0) return std::nullopt;
    const auto took = static_cast<double>(submitted - begin);
    if (since.computed_ns >= kLeastNs)
      ratio = std::min(ratio, took / since.computed_ns);
    else
      tells &= took >
               kMost * kLeastNs;  // Otherwise the operation has held it up, and it has hardly computed since.
  }
  ++number_;
  if (!tells || ratio <= 0) return factor_;
  double level = 1;
  if (!follows_level_ && !ratios_.empty()) {
    // The median: one stretch, such as the first with its allocations, may be long by far.
    const auto middle = ratios_.begin() + static_cast<std::ptrdiff_t>(ratios_.size() / 2);
    std::nth_element(ratios_.begin(), middle, ratios_.end());
    level = *middle;
  }
  ratios_.push_back(ratio);
  factor_ = std::clamp(1 + share_ * (ratio / level - 1), 1 / kMost, kMost);
  return factor_;
}

Status change_world_size(int world_size, Program* record) {
  if (!all_have_all_ranks(groups_of(record->header), record->header.world_size))
    return {ErrorCode::kUnsupported,
            "groups of some ranks say nothing about a job of another size: record one of " +
                std::to_string(world_size) + " ranks"};
  for (program::Group& group : record->header.groups) group.ranks = all_ranks(world_size);
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
