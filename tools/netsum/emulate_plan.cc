#include "tools/netsum/emulate_plan.h"

#include <cmath>
#include <utility>

#include "emulate/ghost/cast.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/program_files.h"

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

}  // namespace netsum::tool
