// What one process of `netsum emulate` is to do: ghosts, or a real rank without PyTorch. Passed on as a JSON file.
#ifndef NETSUM_TOOLS_NETSUM_EMULATE_PLAN_H_
#define NETSUM_TOOLS_NETSUM_EMULATE_PLAN_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulate/ghost/cast.h"
#include "emulate/ghost/player.h"
#include "netsum/status.h"
#include "src/program/program.h"

namespace netsum::tool {

struct EmulatePlan {
  int ranks = 0;      // of the job
  int real = 0;       // the first ones
  int rack_size = 1;  // above 1: so many ghosts are one member of the job (ghost::CrewOptions)
  std::string profile;
  bool other_size = false;  // the profile may be of a job of another size
  uint64_t steps = 0;       // whole ones; 0: as recorded
  uint64_t seed = 1;
  ghost::Contributions contributions = ghost::Contributions::kZeros;
  double dilate = 1;  // so many times as slow: computing and pauses, and by the caller the links
  std::map<int, ghost::Knobs> knobs;              // by rank
  std::map<int, std::chrono::milliseconds> late;  // by rank: joins this much later
  std::map<int, std::string> network_namespaces;  // by rank; none: that of the process
  std::string job, token;
  // A file of int64, to which rank 0 writes when it has submitted each operation of the group of all ranks (ghost::Pace). Empty:
  // ghosts do not follow it. And by which share they do.
  std::string times_path;
  double follows = 0;
  std::chrono::milliseconds connect_timeout{120'000};

  // Of one process:
  std::vector<int> own_ranks;
  bool is_real = false;
  std::string result_path;

  ghost::Knobs knobs_of(int rank) const;  // dilated
  int racks() const { return (ranks - real + rack_size - 1) / rack_size; }
  // The members of the job, and which one a rank is, or is in.
  int members() const { return real + racks(); }
  int member_of(int rank) const { return rank < real ? rank : real + (rank - real) / rack_size; }
};

nlohmann::ordered_json to_json(const EmulatePlan& plan);
EmulatePlan emulate_plan_from_json(const nlohmann::ordered_json& json);  // throws if malformed

// The records of a profile, by rank, as of a job of plan.ranks. kInvalidArgument: there are none, one is malformed, or they are of a
// job of another size that may not be. kUnsupported: that size does not follow from theirs.
Result<std::vector<program::Program>> read_profile(const EmulatePlan& plan);

// What recorded ranks have contributed, by operation of `records`, which are of all ranks and are played as they are. It points into
// `files`. Errors: kInvalidArgument: they are not so, or a file of values is missing, malformed, or lacks those of an operation.
Status read_profile_values(const EmulatePlan& plan, const std::vector<program::Program>& records,
                           std::unordered_map<const program::Operation*, std::span<const uint8_t>>* values,
                           std::vector<std::shared_ptr<const void>>* files);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_EMULATE_PLAN_H_
