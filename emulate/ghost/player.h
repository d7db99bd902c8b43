// Executes a rank's recorded steps in real time, without I/O: time in, operations to submit out, completions in.
//
// Times follow from the program, not from when advance() is called: a computation that begins at t and takes d ends at t + d,
// however late that is noticed. So delays of the driver do not add up. They are counted as lateness.
#ifndef NETSUM_EMULATE_GHOST_PLAYER_H_
#define NETSUM_EMULATE_GHOST_PLAYER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "src/program/program.h"

namespace netsum::ghost {

// How a rank differs from its record.
struct Knobs {
  double speed = 1;  // computes this many times as fast
  struct Straggler {
    double factor = 1;          // computing takes this many times as long ...
    uint64_t from = 0, to = 0;  // ... in steps [from, to)
  };
  std::vector<Straggler> stragglers;
  std::map<uint64_t, int64_t> pauses_ns;  // by step: before it begins
  std::optional<uint64_t> crash;          // before this step begins

  // Of the computing in step `step`.
  double factor(uint64_t step) const;
};

// Of each step, the number of its first operation among those of all steps.
std::vector<uint64_t> first_ids_of(const std::vector<const program::Step*>& steps);
// The number of the operation that an instruction of a step names; it may be one of an earlier step.
uint64_t id_of(const std::vector<const program::Step*>& steps, const std::vector<uint64_t>& first_ids,
               uint64_t step, uint64_t operation);

class Player {
 public:
  // The steps must outlive it. Each must pass program::check() in its place.
  Player(std::vector<const program::Step*> steps, Knobs knobs);

  void start(int64_t now_ns);

  // From step 1 on, what is computed before a thread submits an operation of `group` waits for the factor of that operation; other
  // computing has the latest one. Call it before start().
  void follow(int group);
  // Computing before the next operation of that group that has no factor takes `factor` times as long. What this makes due earlier is
  // due now.
  void set_factor(double factor, int64_t now_ns);

  struct Submission {
    uint64_t id = 0;  // counts the operations of all steps from 0
    const program::Operation* operation = nullptr;
  };
  // Does what is due, and appends the operations that are to be submitted now, in the order of their numbers.
  void advance(int64_t now_ns, std::vector<Submission>* out);
  // Operation `id` has ended.
  void complete(uint64_t id, int64_t now_ns);

  // When advance() has something to do at the latest. INT64_MAX: it waits for an operation, or has ended.
  int64_t next_ns() const;
  bool ended() const { return begins_ns_.size() > steps_.size(); }
  // The step that thread 0 is in.
  uint64_t step() const { return begins_ns_.empty() ? 0 : begins_ns_.size() - 1; }
  bool crashes() const { return knobs_.crash.has_value() && step() >= *knobs_.crash; }

  // [step]: when it began; and the end of the last one, if it has ended.
  const std::vector<int64_t>& begins_ns() const { return begins_ns_; }
  // [id]: how long after it was due an operation was submitted.
  const std::vector<int64_t>& lateness_ns() const { return lateness_ns_; }
  // [id]: when.
  const std::vector<int64_t>& submitted_ns() const { return submitted_ns_; }
  // [id]: INT64_MAX: it has not ended.
  const std::vector<int64_t>& done_ns() const { return done_ns_; }

 private:
  struct Thread {
    uint64_t step = 0;
    size_t next = 0;    // instruction in that step
    int64_t at_ns = 0;  // when the one before it has ended
  };

  // Whether the thread has gone on.
  bool advance(size_t thread, int64_t now_ns, std::vector<Submission>* out);
  bool begin_step(size_t thread);
  uint64_t id_of(uint64_t step, uint64_t operation) const;
  // Of what the thread computes; none: not known yet.
  std::optional<double> factor_of(const Thread& thread, size_t index) const;

  const std::vector<const program::Step*> steps_;
  const Knobs knobs_;
  std::vector<Thread> threads_;
  std::vector<uint64_t> first_ids_;
  std::vector<int64_t> begins_ns_;
  std::vector<int64_t> done_ns_, submitted_ns_, lateness_ns_;  // by id
  int64_t submission_ns_ = 0;                                  // of the latest
  // [id]: its number in the group of follow(); -1: it is of another. Empty: computing follows nothing.
  std::vector<int64_t> numbers_;
  std::vector<std::pair<double, int64_t>> factors_;  // [number]: set_factor(), and when
};

}  // namespace netsum::ghost

#endif  // NETSUM_EMULATE_GHOST_PLAYER_H_
