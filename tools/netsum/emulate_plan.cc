#include "tools/netsum/emulate_plan.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "emulate/ghost/cast.h"
#include "src/base/file_descriptor.h"
#include "src/program/values.h"
#include "tools/netsum/program_files.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const ghost::Knobs& knobs) {
  Json json = {{"speed", knobs.speed}, {"stragglers", Json::array()}, {"pauses_ns", Json::array()}};
  for (const auto& one : knobs.stragglers) json["stragglers"].push_back({one.factor, one.from, one.to});
  for (const auto& [step, ns] : knobs.pauses_ns) json["pauses_ns"].push_back({step, ns});
  if (knobs.crash) json["crash"] = *knobs.crash;
  return json;
}

ghost::Knobs knobs_from_json(const Json& json) {
  ghost::Knobs knobs;
  knobs.speed = json.at("speed");
  for (const Json& one : json.at("stragglers"))
    knobs.stragglers.push_back(
        {one.at(0).get<double>(), one.at(1).get<uint64_t>(), one.at(2).get<uint64_t>()});
  for (const Json& one : json.at("pauses_ns")) knobs.pauses_ns[one.at(0)] = one.at(1);
  if (json.contains("crash")) knobs.crash = json.at("crash").get<uint64_t>();
  return knobs;
}

// Objects have names as keys.
template <typename Map, typename To>
Json by_rank(const Map& map, To to) {
  Json json = Json::array();
  for (const auto& [rank, value] : map) json.push_back({rank, to(value)});
  return json;
}

}  // namespace

Json to_json(const EmulatePlan& plan) {
  return {
      {"ranks", plan.ranks},
      {"real", plan.real},
      {"rack_size", plan.rack_size},
      {"profile", plan.profile},
      {"other_size", plan.other_size},
      {"steps", plan.steps},
      {"seed", plan.seed},
      {"contributions", static_cast<int>(plan.contributions)},
      {"dilate", plan.dilate},
      {"knobs", by_rank(plan.knobs, [](const ghost::Knobs& knobs) { return to_json(knobs); })},
      {"late_ms", by_rank(plan.late, [](std::chrono::milliseconds time) { return time.count(); })},
      {"network_namespaces", by_rank(plan.network_namespaces, [](const std::string& name) { return name; })},
      {"job", plan.job},
      {"token", plan.token},
      {"times_path", plan.times_path},
      {"follows", plan.follows},
      {"connect_timeout_ms", plan.connect_timeout.count()},
      {"own_ranks", plan.own_ranks},
      {"is_real", plan.is_real},
      {"result_path", plan.result_path}};
}

EmulatePlan emulate_plan_from_json(const Json& json) {
  EmulatePlan plan;
  plan.ranks = json.at("ranks");
  plan.real = json.at("real");
  plan.rack_size = json.at("rack_size");
  plan.profile = json.at("profile");
  plan.other_size = json.at("other_size");
  plan.steps = json.at("steps");
  plan.seed = json.at("seed");
  plan.contributions = static_cast<ghost::Contributions>(json.at("contributions").get<int>());
  plan.dilate = json.at("dilate");
  for (const Json& one : json.at("knobs")) plan.knobs[one.at(0)] = knobs_from_json(one.at(1));
  for (const Json& one : json.at("late_ms"))
    plan.late[one.at(0)] = std::chrono::milliseconds(one.at(1).get<int64_t>());
  for (const Json& one : json.at("network_namespaces")) plan.network_namespaces[one.at(0)] = one.at(1);
  plan.job = json.at("job");
  plan.token = json.at("token");
  plan.times_path = json.at("times_path");
  plan.follows = json.at("follows");
  plan.connect_timeout = std::chrono::milliseconds(json.at("connect_timeout_ms").get<int64_t>());
  plan.own_ranks = json.at("own_ranks").get<std::vector<int>>();
  plan.is_real = json.at("is_real");
  plan.result_path = json.at("result_path");
  return plan;
}

ghost::Knobs EmulatePlan::knobs_of(int rank) const {
  const auto found = knobs.find(rank);
  ghost::Knobs of = found != knobs.end() ? found->second : ghost::Knobs();
  of.speed /= dilate;
  for (auto& [step, ns] : of.pauses_ns) ns = std::llround(static_cast<double>(ns) * dilate);
  return of;
}

Result<std::vector<program::Program>> read_profile(const EmulatePlan& plan) {
  std::vector<program::Program> records;
  try {
    records = load_programs(plan.profile);
  } catch (const UsageError& error) {
    return Status(ErrorCode::kInvalidArgument, error.what());
  }
  const int size = records.front().header.world_size;
  if (size == plan.ranks) return records;
  if (!plan.other_size)
    return Status(ErrorCode::kInvalidArgument,
                  plan.profile + " was recorded in a job of " + std::to_string(size) + " ranks, not " +
                      std::to_string(plan.ranks) + ": give --ranks " + std::to_string(size) +
                      ", or --other-size to take its steps for those of a job of " +
                      std::to_string(plan.ranks));
  for (program::Program& record : records)
    if (const Status status = ghost::change_world_size(plan.ranks, &record); !status.ok())
      return Status(status.code(), plan.profile + ": " + status.message());
  return records;
}

Status read_profile_values(const EmulatePlan& plan, const std::vector<program::Program>& records,
                           std::unordered_map<const program::Operation*, std::span<const uint8_t>>* values,
                           std::vector<std::shared_ptr<const void>>* files) {
  const auto invalid = [&plan](const std::string& what) {
    return Status(ErrorCode::kInvalidArgument, plan.profile + what);
  };
  if (plan.other_size || records.size() < static_cast<size_t>(plan.ranks))
    return invalid(" is not of all ranks of this job, so that it has no values of some: record one");
  for (const program::Program& record : records) {
    const auto whole = std::count_if(record.steps.begin(), record.steps.end(),
                                     [](const program::Step& step) { return !step.partial; });
    if (plan.steps > static_cast<uint64_t>(whole))
      return invalid(" has values of " + std::to_string(whole) + " steps, fewer than --steps " +
                     std::to_string(plan.steps));
  }
  const std::vector<std::string> names = value_files(plan.profile);
  for (size_t i = 0; i < records.size(); ++i) {
    const FileDescriptor file(open(names[i].c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!file.valid() || fstat(file.get(), &status) != 0)
      return invalid(" has no values (" + names[i] + ": " + std::strerror(errno) +
                     "): record with NETSUM_RECORD_VALUES");
    const auto bytes = static_cast<size_t>(std::max<off_t>(status.st_size, 1));
    void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (memory == MAP_FAILED) return invalid(": " + names[i] + " cannot be read: " + std::strerror(errno));
    files->emplace_back(memory, [bytes](const void* mapped) { munmap(const_cast<void*>(mapped), bytes); });
    const auto of_rank = program::read_values(
        {static_cast<const uint8_t*>(memory), static_cast<size_t>(status.st_size)}, records[i], names[i]);
    if (!of_rank.ok()) return of_rank.status();
    if (const Status complete = ghost::check_values(records[i], *of_rank); !complete.ok())
      return invalid(": " + complete.message());
    size_t number = 0;
    for (const program::Step& step : records[i].steps)
      for (const program::Operation& operation : step.operations)
        values->emplace(&operation, (*of_rank)[number++]);
  }
  return {};
}

}  // namespace netsum::tool
