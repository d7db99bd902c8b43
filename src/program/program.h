// What a rank of a training job does: computes, submits collectives, waits for them. A program is recorded from a rank or made
// without a cluster; an emulated rank executes it. Times are nanoseconds.
#ifndef NETSUM_SRC_PROGRAM_PROGRAM_H_
#define NETSUM_SRC_PROGRAM_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "netsum/status.h"
#include "netsum/types.h"

namespace netsum::program {

// Limits of what a file may hold.
inline constexpr int kMostRanks = 1 << 20;
inline constexpr uint64_t kMostElements = uint64_t{1} << 48;  // of an operation
inline constexpr int64_t kMostNs = int64_t{1} << 53;          // 104 days
inline constexpr uint64_t kMostSteps = uint64_t{1} << 32;

// Elements for which one scale is recorded, as block fixed point has one for each packet of 1440 bytes of lanes.
inline constexpr uint64_t kScaleElements = 360;

enum class Collective : uint8_t {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kBarrier,
  kSparseAllReduce,  // its bytes depend on the data
  kAllToAll,
  kSend,
  kReceive,
};
inline constexpr int kCollectives = 12;

std::string_view collective_name(Collective collective);  // "all_reduce", ...
bool reduces(Collective collective);
bool has_root(Collective collective);   // kSend and kReceive: the peer
bool has_parts(Collective collective);  // one part for each rank

struct Operation {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  // Elements of all parts: what each rank passes to a reduction, and what all ranks together have of an all-gather or a gather.
  uint64_t count = 0;
  // Elements of each tensor of the operation, in order: of each rank if the collective has parts. Empty: one tensor, or equal parts.
  std::vector<uint64_t> parts;
  ReduceOp op = ReduceOp::kSum;  // of a reduction
  int root = -1;                 // in the group, if the collective has one
  int group = 0;                 // Header::groups
  uint32_t tag = 0;              // as of ReduceOptions and CollectiveOptions
  // What this rank contributes to a sum of floats: of every kScaleElements of all its elements, the exponent of the largest
  // magnitude as float32 stores it (0: all are below 2^-126). Empty: not recorded.
  std::vector<uint8_t> scales;
  // The hosts' own backend runs it, not the network: its count is the bytes of all tensors, and it has neither parts nor a root.
  bool on_hosts = false;
  int64_t submitted_ns = 0;  // from the begin of the step
  std::optional<int64_t>
      done_ns;  // from the begin of the step; none: it had not ended when the recording did
};

// Of a checked operation of a group of `group_size` ranks: the elements of each of its tensors.
std::vector<uint64_t> counts_of_parts(const Operation& operation, int group_size);

// An operation of an earlier step, for which this step waits.
struct Carried {
  uint64_t steps_back = 1;
  uint64_t operation = 0;  // its number in that step
  int64_t done_ns = 0;     // from the begin of this step; negative: before it
};

struct Instruction {
  enum class Kind : uint8_t { kCompute, kSubmit, kWait };
  Kind kind = Kind::kCompute;
  // kCompute: nanoseconds. Otherwise an operation's number in its step. Numbers from operations.size() are those of `carried`.
  uint64_t value = 0;

  bool operator==(const Instruction&) const = default;
};

// A submit happens when all before it on its thread is done. A wait ends when its operation has.
struct Step {
  uint64_t number = 0;
  bool partial = false;  // the recording ended within it
  std::vector<Operation> operations;
  std::vector<Carried> carried;
  std::vector<std::vector<Instruction>> threads;  // The step ends with the first one.
  int64_t duration_ns = 0;
};

struct Group {
  int id = 0;
  std::vector<int> ranks;  // in the job, in the order of their ranks in the group
};

struct Header {
  int world_size = 1;
  int rank = 0;
  std::string model;   // what the user calls it
  std::string netsum;  // the version of the library
  std::string machine;
  std::string clock = "steady, ns";
  std::vector<Group> groups;  // Empty: one group, 0, of all ranks.
};

struct Program {
  Header header;
  std::vector<Step> steps;
};

// The number of ranks in a group, or 0 if there is no such group.
int group_size(const Header& header, int group);

// Whether a reader accepts it: ranges, references between instructions, operations and steps, and whether each step ends. The
// message of an error names the step. kInvalidArgument.
Status check(const Program& program);
// Its parts. The second is for a step whose predecessors are right.
Status check_header(const Header& header);
Status check_step(const Program& program, size_t index);

}  // namespace netsum::program

#endif  // NETSUM_SRC_PROGRAM_PROGRAM_H_
