#include "emulate/ghost/player.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace netsum::ghost {

using program::Instruction;

double Knobs::factor(uint64_t step) const {
  double factor = 1 / speed;
  for (const Straggler& one : stragglers)
    if (one.from <= step && step < one.to) factor *= one.factor;
  return factor;
}

std::vector<uint64_t> first_ids_of(const std::vector<const program::Step*>& steps) {
  std::vector<uint64_t> ids;
  uint64_t operations = 0;
  for (const program::Step* step : steps) {
    ids.push_back(operations);
    operations += step->operations.size();
  }
  return ids;
}

uint64_t id_of(const std::vector<const program::Step*>& steps, const std::vector<uint64_t>& first_ids,
               uint64_t step, uint64_t operation) {
  const program::Step& in = *steps[step];
  if (operation < in.operations.size()) return first_ids[step] + operation;
  const program::Carried& carried = in.carried[operation - in.operations.size()];
  return first_ids[step - carried.steps_back] + carried.operation;
}

Player::Player(std::vector<const program::Step*> steps, Knobs knobs)
    : steps_(std::move(steps)), knobs_(std::move(knobs)) {
  first_ids_ = first_ids_of(steps_);
  size_t threads = 1;
  for (const program::Step* step : steps_) threads = std::max(threads, step->threads.size());
  threads_.resize(threads);
  if (!steps_.empty()) done_ns_.resize(first_ids_.back() + steps_.back()->operations.size(), INT64_MAX);
}

void Player::start(int64_t now_ns) {
  const auto pause = knobs_.pauses_ns.find(0);
  begins_ns_ = {now_ns + (pause != knobs_.pauses_ns.end() ? pause->second : 0)};
  for (Thread& thread : threads_) thread.at_ns = begins_ns_.front();
}

uint64_t Player::id_of(uint64_t step, uint64_t operation) const {
  return ghost::id_of(steps_, first_ids_, step, operation);
}

void Player::follow(int group) {
  int64_t next = 0;
  for (const program::Step* step : steps_)
    for (const program::Operation& operation : step->operations)
      numbers_.push_back(operation.group == group ? next++ : -1);
}

std::optional<double> Player::factor_of(const Thread& of, size_t thread) const {
  const double own = knobs_.factor(of.step);
  if (numbers_.empty() || of.step == 0) return own;
  const std::vector<Instruction>& instructions = steps_[of.step]->threads[thread];
  const auto next =
      std::find_if(instructions.begin() + static_cast<std::ptrdiff_t>(of.next), instructions.end(),
                   [](const Instruction& one) { return one.kind == Instruction::Kind::kSubmit; });
  const int64_t number = next == instructions.end() ? -1 : numbers_[id_of(of.step, next->value)];
  if (number < 0) return own * (factors_.empty() ? 1 : factors_.back().first);
  if (static_cast<size_t>(number) >= factors_.size()) return std::nullopt;
  return own * factors_[static_cast<size_t>(number)].first;
}

void Player::set_factor(double factor, int64_t now_ns) {
  factors_.emplace_back(factor, now_ns);
}

void Player::complete(uint64_t id, int64_t now_ns) {
  done_ns_[id] = now_ns;
}

void Player::advance(int64_t now_ns, std::vector<Submission>* out) {
  // A thread may wait for its turn to submit.
  for (bool again = true; again;) {
    again = false;
    for (size_t thread = 0; thread < threads_.size(); ++thread) again |= advance(thread, now_ns, out);
  }
}

// The first thread decides when a step begins.
bool Player::begin_step(size_t thread) {
  Thread& of = threads_[thread];
  if (thread == 0) {
    const auto pause = knobs_.pauses_ns.find(of.step + 1);
    if (pause != knobs_.pauses_ns.end()) of.at_ns += pause->second;
    begins_ns_.push_back(of.at_ns);
  } else if (begins_ns_.size() <= of.step + 1) {
    return false;
  }
  ++of.step;
  of.next = 0;
  of.at_ns = std::max(of.at_ns, begins_ns_[of.step]);
  return true;
}

bool Player::advance(size_t thread, int64_t now_ns, std::vector<Submission>* out) {
  Thread& of = threads_[thread];
  bool went_on = false;
  while (of.step < steps_.size() && of.at_ns <= now_ns && !(thread == 0 && crashes())) {
    const program::Step& step = *steps_[of.step];
    if (thread >= step.threads.size() || of.next == step.threads[thread].size()) {
      if (!begin_step(thread)) break;
      went_on = true;
      continue;
    }
    const Instruction& instruction = step.threads[thread][of.next];
    if (instruction.kind == Instruction::Kind::kCompute) {
      const std::optional<double> factor = factor_of(of, thread);
      if (!factor) break;
      of.at_ns += std::llround(static_cast<double>(instruction.value) * *factor);
    } else if (instruction.kind == Instruction::Kind::kSubmit) {
      const uint64_t id = id_of(of.step, instruction.value);
      if (id != submitted_ns_.size()) break;  // all ranks submit in the same order
      of.at_ns = std::max(of.at_ns, submission_ns_);
      submission_ns_ = of.at_ns;
      submitted_ns_.push_back(now_ns);
      // What was due before its computing had a factor could not be in time.
      const int64_t number = numbers_.empty() || of.step == 0 ? -1 : numbers_[id];
      const bool has_own = number >= 0 && static_cast<size_t>(number) < factors_.size();
      const int64_t known_ns = has_own ? factors_[static_cast<size_t>(number)].second
                               : of.step > 0 && !factors_.empty() ? factors_.back().second
                                                                  : 0;
      lateness_ns_.push_back(now_ns - std::max(of.at_ns, known_ns));
      out->push_back({id, &step.operations[instruction.value]});
    } else {
      const int64_t done_ns = done_ns_[id_of(of.step, instruction.value)];
      if (done_ns == INT64_MAX) break;
      of.at_ns = std::max(of.at_ns, done_ns);
    }
    ++of.next;
    went_on = true;
  }
  return went_on;
}

int64_t Player::next_ns() const {
  int64_t next = INT64_MAX;
  for (size_t thread = 0; thread < threads_.size(); ++thread) {
    const Thread& of = threads_[thread];
    if (of.step >= steps_.size() || (thread == 0 && crashes())) continue;
    const program::Step& step = *steps_[of.step];
    if (thread >= step.threads.size() || of.next == step.threads[thread].size()) {
      if (thread == 0 || begins_ns_.size() > of.step + 1) next = std::min(next, of.at_ns);
      continue;
    }
    const Instruction& instruction = step.threads[thread][of.next];
    const bool waits = instruction.kind == Instruction::Kind::kWait &&
                       done_ns_[id_of(of.step, instruction.value)] == INT64_MAX;
    const bool waits_for_turn = instruction.kind == Instruction::Kind::kSubmit &&
                                id_of(of.step, instruction.value) != submitted_ns_.size();
    const bool waits_for_factor =
        instruction.kind == Instruction::Kind::kCompute && !factor_of(of, thread).has_value();
    if (!waits && !waits_for_turn && !waits_for_factor) next = std::min(next, of.at_ns);
  }
  return next;
}

}  // namespace netsum::ghost
