// Which recorded steps a ghost plays.
#ifndef NETSUM_EMULATE_GHOST_CAST_H_
#define NETSUM_EMULATE_GHOST_CAST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/program/program.h"

namespace netsum::ghost {

// A process group of a rank, whose members join a job of their own.
struct GroupJob {
  int id = 0;              // in the rank's operations; -1: in none
  std::vector<int> ranks;  // in the emulated job, in the order of their ranks in the group
  std::string job;

  int rank_of(int rank) const;  // in the group
};

// 0 to `world_size` - 1.
std::vector<int> all_ranks(int world_size);

// The numbers of the operations of a group among those of all these steps, counted from 0.
std::vector<uint64_t> operations_of(const std::vector<const program::Step*>& steps, int group);

// Whether two steps submit the same operations, in the same order, and wait for the same ones of earlier steps. Then a rank can
// play one in the place of the other.
bool same_operations(const program::Step& a, const program::Step& b);

// Chooses the steps of ranks out of the records of some ranks, of which the first one gives the order.
class Cast {
 public:
  // The records must outlive it. Errors: kInvalidArgument: recorded ranks of a group differ in its operations.
  static Result<Cast> of(const std::vector<program::Program>& records);

  // The steps that `rank` plays. `whole_steps`: how many; what was recorded behind them is added at the end. 0: as many as were
  // recorded. A rank that was recorded plays its own steps. One that was not plays whole steps of randomly chosen recorded ranks
  // (`seed`), and so does every rank behind the recorded steps: mean times would make a step too short, as the slowest rank
  // decides. Errors: kInvalidArgument: there is no step to repeat.
  Result<std::vector<const program::Step*>> steps(int rank, uint64_t whole_steps, uint64_t seed) const;

  // The groups of `rank`, of which the first one is that of all ranks, whose job is `job`. The jobs of the others have names that
  // follow from that and from their ranks. Errors: kInvalidArgument: it was not recorded, and there are groups of some ranks.
  Result<std::vector<GroupJob>> groups(int rank, const std::string& job) const;

 private:
  explicit Cast(const std::vector<program::Program>& records) : records_(records) {}
  const program::Program* record_of(int rank) const;  // null: it was not recorded
  void sort_in(const program::Step& step);
  size_t kind_of(const program::Step& step) const;

  const std::vector<program::Program>& records_;
  // All recorded steps; those of one kind can be played in each other's place.
  std::vector<std::vector<const program::Step*>> kinds_;
  std::vector<std::vector<size_t>> orders_;  // by record and step: its kind
};

// What ghosts contribute to sums of floats; to others zeros.
enum class Contributions : uint8_t {
  kZeros,
  kRecorded,  // zeros that require the recorded scales, where aggregators need any
  kNoise,     // noise of the recorded scales
};

// Whether the steps have what ghosts need for that. kInvalidArgument: a sum of floats has no scales.
Status check_contributions(Contributions contributions, const std::vector<program::Step>& steps);

// Above this correlation, what ranks share decides, such as power or a file system.
inline constexpr double kMuchCorrelated = 0.5;

// How the computing of recorded ranks goes together: the mean correlation of two of them over the steps after the first one. 0: fewer
// than two ranks, or three such steps.
double correlation_of(const std::vector<program::Program>& records);

// How the computing of ghosts follows that of a real rank, the leader, whose record they have: a step that it computes longer for
// than it did when it was recorded is longer for them as well, by `share` of that.
class Pace {
 public:
  // The steps that the leader plays, of which the operations of `group` count.
  Pace(const std::vector<const program::Step*>& steps, int group, double share);

  // What is before the first operations of the steps after the first one, as a share of the steps. Where it is small, it does not show
  // how long the leader computes.
  double covers() const { return covers_; }
  static constexpr double kLeastCovered = 0.25;

  uint64_t steps() const { return first_.size(); }
  // The number of the first operation of a step among those of the group, and how many are before it; none: the same.
  uint64_t first_of(uint64_t step) const { return first_[step]; }
  // `done_ns`: the end of the last operation before the step; `submitted_ns`: the leader's first submission in it.
  double factor(uint64_t step, int64_t done_ns, int64_t submitted_ns) const;

 private:
  const double share_;
  double covers_ = 0;
  std::vector<uint64_t> first_;  // [step]
  std::vector<int64_t>
      recorded_ns_;  // [step]: between those two in the record; 0: it computed for no time there
};

// The record of a rank as of a job of `world_size` ranks: each rank has as many elements as before. kUnsupported: ranks have
// unequal parts.
Status change_world_size(int world_size, program::Program* record);

}  // namespace netsum::ghost

#endif  // NETSUM_EMULATE_GHOST_CAST_H_
