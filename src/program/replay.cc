#include "src/program/replay.h"

#include <algorithm>
#include <string>

namespace netsum::program {
namespace {

constexpr int64_t kNotSubmitted = -1;
// Times stay below: what is added to one at a time is at most 2^53.
constexpr int64_t kLatestNs = int64_t{1} << 62;

class Replay {
 public:
  Replay(const Step& step, const Completions& completions)
      : step_(step), completions_(completions), next_(step.threads.size()) {
    times_.submitted_ns.assign(step.operations.size(), kNotSubmitted);
    times_.done_ns.assign(step.operations.size(), 0);
    times_.thread_end_ns.assign(step.threads.size(), 0);
  }

  Result<StepTimes> run() {
    // A thread stops at a wait for what another one has not submitted yet, and goes on in the next round.
    bool advanced = true;
    while (advanced) {
      advanced = false;
      for (size_t t = 0; t < next_.size(); ++t) advanced |= advance(t);
    }
    for (size_t t = 0; t < next_.size(); ++t) {
      if (next_[t] == step_.threads[t].size()) continue;
      return Status(ErrorCode::kInvalidArgument, "thread " + std::to_string(t) + " waits for operation " +
                                                     std::to_string(step_.threads[t][next_[t]].value) +
                                                     ", which is never submitted");
    }
    if (!times_.thread_end_ns.empty()) times_.duration_ns = times_.thread_end_ns.front();
    return std::move(times_);
  }

 private:
  bool advance(size_t t) {
    const size_t before = next_[t];
    int64_t& now = times_.thread_end_ns[t];
    for (; next_[t] < step_.threads[t].size(); ++next_[t]) {
      const Instruction& instruction = step_.threads[t][next_[t]];
      switch (instruction.kind) {
        case Instruction::Kind::kCompute:
          now += static_cast<int64_t>(instruction.value);
          if (t == 0) times_.compute_ns += static_cast<int64_t>(instruction.value);
          break;
        case Instruction::Kind::kSubmit:
          times_.submitted_ns[instruction.value] = now;
          times_.done_ns[instruction.value] = now + completions_.after_submission[instruction.value];
          break;
        case Instruction::Kind::kWait: {
          const size_t operations = step_.operations.size();
          int64_t done = 0;
          if (instruction.value >= operations) {
            done = completions_.carried[instruction.value - operations];
          } else if (times_.submitted_ns[instruction.value] == kNotSubmitted) {
            return next_[t] > before;
          } else {
            done = times_.done_ns[instruction.value];
          }
          if (done > now && t == 0) times_.waited_ns += done - now;
          now = std::min(std::max(now, done), kLatestNs);
          break;
        }
      }
    }
    return next_[t] > before;
  }

  const Step& step_;
  const Completions& completions_;
  std::vector<size_t> next_;  // [thread]: the next instruction
  StepTimes times_;
};

}  // namespace

Completions recorded_completions(const Step& step) {
  Completions completions;
  for (const Operation& operation : step.operations)
    completions.after_submission.push_back(operation.done_ns.value_or(operation.submitted_ns) -
                                           operation.submitted_ns);
  for (const Carried& carried : step.carried) completions.carried.push_back(carried.done_ns);
  return completions;
}

Result<StepTimes> replay(const Step& step, const Completions& completions) {
  if (completions.after_submission.size() != step.operations.size() ||
      completions.carried.size() != step.carried.size())
    return Status(ErrorCode::kInvalidArgument,
                  "there are completion times for " + std::to_string(completions.after_submission.size()) +
                      " operations and " + std::to_string(completions.carried.size()) +
                      " carried ones, but the step has " + std::to_string(step.operations.size()) + " and " +
                      std::to_string(step.carried.size()));
  const auto wrong = std::find_if(completions.after_submission.begin(), completions.after_submission.end(),
                                  [](int64_t ns) { return ns < 0 || ns > kMostNs; });
  if (wrong != completions.after_submission.end())
    return Status(ErrorCode::kInvalidArgument,
                  "operation " + std::to_string(wrong - completions.after_submission.begin()) + " is done " +
                      std::to_string(*wrong) + " ns after it is submitted: use 0 to 2^53");
  return Replay(step, completions).run();
}

}  // namespace netsum::program
