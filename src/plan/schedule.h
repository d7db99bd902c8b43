// A collective as programs of the ranks' thread blocks, as MSCCL runs them (Cowan et al., "MSCCLang: Microsoft Collective
// Communication Language", ASPLOS 2023), and a symbolic run of such programs.
#ifndef NETSUM_SRC_PLAN_SCHEDULE_H_
#define NETSUM_SRC_PLAN_SCHEDULE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/plan/graph.h"
#include "src/plan/tree_plan.h"

namespace netsum::plan {

enum class BlockBuffer : uint8_t { kInput, kOutput, kScratch };

enum class BlockStepKind : uint8_t {
  kNop,
  kSend,                   // source
  kReceive,                // to destination
  kReceiveCopySend,        // to destination, and on
  kReceiveReduceSend,      // the sum with source, on
  kReceiveReduceCopy,      // the sum with source, to destination
  kReceiveReduceCopySend,  // both
  kCopy,                   // source to destination
  kReduce,                 // adds source to destination
  // One-sided, as in MSCCL++. A signal tells the peer that what was put before is there.
  kPut,     // source to destination, which is a place of the rank that the block sends to
  kSignal,  // to that rank
  kWait,    // for a signal of the rank that the block receives from
};
bool receives(BlockStepKind kind);
bool sends(BlockStepKind kind);

struct BlockStep {
  struct Place {
    BlockBuffer buffer = BlockBuffer::kInput;
    uint32_t chunk = 0;
  };
  BlockStepKind kind = BlockStepKind::kNop;
  Place source;
  Place destination;
  uint32_t count = 1;  // of chunks in a row
  // Begins when this step of another block of the rank has ended. -1: none.
  int after_block = -1;
  int after_step = -1;
};

// Its steps run in their order. Messages between two ranks on one channel arrive in the order in which they are sent.
struct ThreadBlock {
  int send = -1;     // rank; -1: none
  int receive = -1;  // rank; -1: none
  int channel = 0;
  std::vector<BlockStep> steps;
};

struct RankSchedule {
  std::array<uint32_t, 3> chunks{};  // of each buffer
  std::vector<ThreadBlock> blocks;
};

enum class ScheduleCollective : uint8_t { kAllReduce, kAllGather, kReduceScatter };

struct Schedule {
  ScheduleCollective collective = ScheduleCollective::kAllReduce;
  uint32_t chunks = 0;  // of the larger of a rank's input and output
  // Input and output are the same memory, or may be apart. At least one.
  bool in_place = true;
  bool out_of_place = false;
  std::vector<RankSchedule> ranks;
};

// What MSCCL's executor takes.
inline constexpr size_t kMostChannels = 32, kMostBlocksOfChannel = 32, kMostBlockSteps = 256;
inline constexpr uint32_t kMostStepChunks = 72;

// The trees of an all-reduce, in place; ranks are numbered as in Graph::ranks().
// Errors: kUnsupported for a broadcast, for trees through aggregators, and beyond the limits above.
Result<Schedule> schedule_of(const Graph& graph, const TreePlan& plan);

// A right schedule with puts and signals instead of messages: contributions are put into scratch, results where they belong.
// Errors: kUnsupported for steps that receive and send at once, and for messages that do not fit together.
Result<Schedule> one_sided(const Schedule& schedule);

// Runs the schedule with sets of (rank, chunk) instead of numbers. Ok if it ends, each rank's output is what the collective
// demands, each input in it once, and no two blocks of a rank use a chunk in an order that nothing enforces. A
// connection holds 8 messages, as in NCCL.
// Errors: kInvalidArgument with the rank, the block and the step; kResourceExhausted if it is too large to be run.
Status verify(const Schedule& schedule);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_SCHEDULE_H_
