// How long a step takes, given how long its operations do.
#ifndef NETSUM_SRC_PROGRAM_REPLAY_H_
#define NETSUM_SRC_PROGRAM_REPLAY_H_

#include <cstdint>
#include <vector>

#include "netsum/status.h"
#include "src/program/program.h"

namespace netsum::program {

struct Completions {
  std::vector<int64_t> after_submission;  // [operation]
  std::vector<int64_t> carried;           // [Step::carried]: from the begin of the step
};

// As recorded. An operation that had not ended when the recording did counts as ended at once: no instruction waits for it.
Completions recorded_completions(const Step& step);

struct StepTimes {
  int64_t duration_ns = 0;             // until the end of the first thread
  int64_t compute_ns = 0;              // of the first thread
  int64_t waited_ns = 0;               // of the first thread
  std::vector<int64_t> submitted_ns;   // [operation]: from the begin of the step
  std::vector<int64_t> done_ns;        // the same
  std::vector<int64_t> thread_end_ns;  // [thread]
};

// `step`: of a program that check() accepts. With the completions of the record, the duration is the recorded one.
// kInvalidArgument: completions for other operations than the step has, or outside of 0 to 2^53 ns.
Result<StepTimes> replay(const Step& step, const Completions& completions);

}  // namespace netsum::program

#endif  // NETSUM_SRC_PROGRAM_REPLAY_H_
