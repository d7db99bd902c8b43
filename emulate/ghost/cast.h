// Which recorded steps a ghost plays.
#ifndef NETSUM_EMULATE_GHOST_CAST_H_
#define NETSUM_EMULATE_GHOST_CAST_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
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
  kScales,    // zeros that require the recorded scales, where aggregators need any
  kNoise,     // noise of the recorded scales
  kRecorded,  // recorded values, to all operations
};

// Whether the steps have what ghosts need for that. kInvalidArgument: a sum of floats has no scales.
Status check_contributions(Contributions contributions, const std::vector<program::Step>& steps);
// `values`: of these steps (program::read_values()). kInvalidArgument: an operation to which the rank contributes has none.
Status check_values(const program::Program& record, const std::vector<std::span<const uint8_t>>& values);

// Above this correlation, what ranks share decides, such as power or a file system.
inline constexpr double kMuchCorrelated = 0.5;

// How the computing of recorded ranks goes together: the mean correlation of two of them over the steps after the first one. 0: fewer
// than two ranks, or three such steps.
double correlation_of(const std::vector<program::Program>& records);

bool of_one_machine(const std::vector<program::Program>& records);

// How the computing of ghosts follows that of a real rank, the leader, whose record they have: what it computes longer for than it
// did when it was recorded takes longer for them as well, by `share` of that.
//
// A stretch is what the leader computes before an operation of the group of all ranks, since it has submitted the one before. It is
// known when the leader has submitted the operation, and no ghost can submit that before.
class Pace {
 public:
  // The steps that the leader plays, and the number of that group in them. The first step sets up: it has no stretches.
  // `follows_level`: also by how much longer it computes all the time. Otherwise its changes alone count: where all ranks were recorded
  // on one machine, the leader is faster now that it has that to itself.
  Pace(const std::vector<const program::Step*>& steps, int group, double share, bool follows_level);

  // The computing in stretches that can be told, as a share of the steps after the first one. Where it is small, it does not show how
  // long the leader computes.
  double covers() const { return covers_; }
  static constexpr double kLeastCovered = 0.25;

  // By how much computing takes longer in the stretch before the next operation of the group, in their order: the same as before the
  // last one if its times do not tell, or if there is none. Nullopt: not known yet. When the leader has submitted an operation, by its number, and
  // when the operation has ended; 0: not yet.
  std::optional<double> next(const std::function<int64_t(uint64_t)>& submitted_ns,
                             const std::function<int64_t(uint64_t)>& done_ns);
  uint64_t number() const { return number_; }  // of that operation

 private:
  // What is computed since one of the times at which the leader can have gone on: the end of an operation for which it has waited, or
  // the submission with which the stretch begins.
  struct Since {
    uint64_t number = 0;
    bool is_end = false;
    double computed_ns = 0;
  };

  const double share_;
  const bool follows_level_;
  double covers_ = 0;
  std::vector<std::vector<Since>> stretches_;  // [operation]; empty: it cannot be told
  uint64_t number_ = 0;
  double factor_ = 1;           // of the last one
  std::vector<double> ratios_;  // of all stretches until there
};

// The record of a rank as of a job of `world_size` ranks: each rank has as many elements as before. kUnsupported: ranks have
// unequal parts.
Status change_world_size(int world_size, program::Program* record);

}  // namespace netsum::ghost

#endif  // NETSUM_EMULATE_GHOST_CAST_H_
