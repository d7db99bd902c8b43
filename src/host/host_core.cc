#include "src/host/host_core.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "src/base/assert.h"

namespace netsum {
namespace {

// Up to this size, summing everything on every rank costs less than another wait.
constexpr size_t kDirectBytes = size_t{8} << 10;
// A host that waits for one of its own ranks can name it, and does so at the deadline. The operations over the network get
// this much longer, and the other hosts twice as much, so that the most specific message comes first.
constexpr int64_t kNetworkGraceUs = 200'000;

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace

HostCore::HostCore(HostOptions options, std::unique_ptr<Segment> segment)
    : options_(std::move(options)),
      segment_(std::move(segment)),
      local_sum_(options_.payload_bytes),
      direct_sum_(kDirectBytes) {
  NETSUM_ASSERT(ranks() == options_.placement.local_ranks().size());
  NETSUM_ASSERT(alone() || options_.to_network);
}

void HostCore::submit(uint64_t id, OperationSpec spec) {
  NETSUM_ASSERT(spec.joint.more_inputs.empty() && spec.role.chunk_map == nullptr);
  if (!status_.ok()) {
    completions_.push_back({id, status_});
    return;
  }
  auto operation =
      std::make_unique<Operation>(next_number_++, std::move(spec), options_.world_size, options_.encoding);
  if (operation->count() == 0) {
    completions_.push_back({id, Status()});
    return;
  }
  const bool direct = alone() && operation->count() * size_of(operation->type()) <= kDirectBytes;
  operations_.push_back({id, std::move(operation), 0, direct});
}

bool HostCore::advance() {
  return status_.ok() && (take() || reduce() || stage());
}

uint32_t HostCore::awaited() const {
  uint32_t causes = 0;
  if (taken_ != reduced_) causes |= FutexEvent::kReduced;
  if (reduced_ != staged_) causes |= FutexEvent::kStaged;
  if (staged_ - taken_ < Segment::kSlots) causes |= FutexEvent::kTaken;
  return causes;
}

void HostCore::arrive(Barrier& barrier, size_t expected, FutexEvent::Cause cause) {
  if (!barrier.arrive(expected)) return;
  for (size_t rank = 0; rank < ranks(); ++rank) {
    if (rank != options_.placement.local) segment_->event(rank).notify(cause);
  }
}

// --- Stage ------------------------------------------------------------------------------------------------

HostCore::Pending* HostCore::next_to_stage() {
  for (Pending& pending : operations_) {
    if (pending.staged < pending.operation->count()) return &pending;
  }
  return nullptr;
}

bool HostCore::slot_is_free() const {
  if (staged_ - taken_ == Segment::kSlots) return false;
  const uint64_t round = round_of(staged_);
  return round == 0 || segment_->taken(slot_of(staged_)).complete(round - 1, ranks());
}

bool HostCore::stage() {
  Pending* pending = slot_is_free() ? next_to_stage() : nullptr;
  if (pending == nullptr) return false;
  const Operation& operation = *pending->operation;
  const size_t chunk = operation.encoding().chunk_elements(options_.payload_bytes);
  const size_t most = segment_->host_block_bytes() / (chunk * size_of(operation.type())) * chunk;
  const uint32_t slot = slot_of(staged_);
  const size_t local = options_.placement.local;
  const Step next{pending, pending->staged, std::min(most, operation.count() - pending->staged)};
  step(staged_) = next;
  pending->staged += next.count;
  operation.copy_in(next.begin, next.count, segment_->input(slot, local));
  segment_->note(slot, local).signature = operation.signature();
  counters_.bytes_staged.add(next.count * size_of(operation.type()));
  segment_->progress(local).staged.store(++staged_, std::memory_order_relaxed);
  arrive(segment_->staged(slot), ranks(), FutexEvent::kStaged);
  return true;
}

// --- Reduce -----------------------------------------------------------------------------------------------

bool HostCore::reduce() {
  if (reduced_ == staged_) return false;
  const uint32_t slot = slot_of(reduced_);
  if (!segment_->staged(slot).complete(round_of(reduced_), ranks())) return false;
  const Step& current = step(reduced_);
  if (Status status = compare_signatures(current, slot); !status.ok()) {
    fail(status);
    return true;
  }
  ++reduced_;
  if (current.pending->direct) {
    reduce_directly(current, slot);
  } else if (options_.placement.is_owner()) {
    reduce_own_portion(current, slot);
  }
  segment_->progress(options_.placement.local).reduced.store(reduced_, std::memory_order_relaxed);
  return true;
}

// The sum of elements [begin, begin + count) of the block over all ranks' inputs.
PartialSum HostCore::portion_of(const Step& step, uint32_t slot, size_t begin, size_t count,
                                uint8_t* sum) const {
  const Operation& whole = *step.pending->operation;
  const uint8_t* input = segment_->input(slot, 0) + begin * size_of(whole.type());
  // An all-reduce, whatever the role: zeros lie where a rank contributes nothing, and copy_out() drops what it does not
  // receive.
  PartialSum portion{.slot = slot,
                     .spec = {.type = whole.type(),
                              .op = whole.op(),
                              .tensors = whole.tensors_of(step.begin + begin, count),
                              .role = {},
                              .deadline_us = whole.deadline_us() + kNetworkGraceUs,
                              .joint = {.more_inputs = {},
                                        .context = whole.signature(),
                                        .first_offset = whole.offset_of(step.begin + begin)}}};
  for (size_t rank = 1; rank < ranks(); ++rank)
    portion.spec.joint.more_inputs.push_back(segment_->input(slot, rank) + begin * size_of(whole.type()));
  for (TensorView& view : portion.spec.tensors) {
    view.input = input;
    view.output = sum;
    input += view.count * size_of(whole.type());
    sum += view.count * size_of(whole.type());
  }
  return portion;
}

bool HostCore::sum_here(const PartialSum& portion) {
  return local_sum_.run(Operation(0, portion.spec, options_.world_size, options_.encoding));
}

void HostCore::reduce_own_portion(const Step& step, uint32_t slot) {
  const Operation& whole = *step.pending->operation;
  const size_t chunk = whole.encoding().chunk_elements(options_.payload_bytes);
  const size_t chunks = (step.count + chunk - 1) / chunk;
  const size_t local = options_.placement.local;
  const size_t begin = std::min(chunks * local / owners() * chunk, step.count);
  const size_t end = std::min(chunks * (local + 1) / owners() * chunk, step.count);
  uint8_t* sum = segment_->sum(slot) + begin * size_of(whole.type());
  Segment::Note& note = segment_->note(slot, local);
  note.overflow = 0;
  if (begin < end) {
    const PartialSum portion = portion_of(step, slot, begin, end - begin, sum);
    if (!alone()) return options_.to_network(portion);
    note.overflow = sum_here(portion) ? 0 : 1;
  }
  arrive(segment_->reduced(slot), owners(), FutexEvent::kReduced);
}

void HostCore::reduce_directly(const Step& step, uint32_t slot) {
  if (!sum_here(portion_of(step, slot, 0, step.count, direct_sum_.data()))) {
    return fail(overflow_status(step));  // on all ranks alike
  }
  const Operation& whole = *step.pending->operation;
  whole.copy_out(direct_sum_.data(), 0, step.count);
  counters_.bytes_taken.add(ranks() * step.count * size_of(whole.type()));
  // No rank waits for this portion, but the barrier counts rounds.
  segment_->reduced(slot).arrive(owners());
  arrive(segment_->taken(slot), ranks(), FutexEvent::kTaken);
}

void HostCore::on_network_done(uint32_t slot, const Status& status) {
  if (!status_.ok()) return;
  if (!status.ok()) return fail(status);
  arrive(segment_->reduced(slot), owners(), FutexEvent::kReduced);
}

Status HostCore::compare_signatures(const Step& step, uint32_t slot) const {
  const Operation& operation = *step.pending->operation;
  bool same = true;
  for (size_t rank = 0; rank < ranks(); ++rank)
    same &= segment_->note(slot, rank).signature == operation.signature();
  if (same) return Status();
  std::map<uint32_t, size_t> votes;
  for (size_t rank = 0; rank < ranks(); ++rank) ++votes[segment_->note(slot, rank).signature];
  // Which rank is wrong is unknown. All ranks name the same one: the first that differs from the most frequent signature.
  const auto usual = std::max_element(votes.begin(), votes.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  size_t differs = 0;
  while (segment_->note(slot, differs).signature == usual->first) ++differs;
  const int self = options_.placement.local_ranks()[options_.placement.local];
  const int other = options_.placement.local_ranks()[differs];
  const std::string text =
      "rank " + std::to_string(self) + " is in " + operation.describe() + "; " +
      (other == self ? "other ranks are in another operation"
                     : "rank " + std::to_string(other) +
                           " is not, or differs in root, count, type, operation or lane width");
  return Status(ErrorCode::kMismatch, text + ": all ranks must call the same collectives in the same order",
                other);
}

// --- Take -------------------------------------------------------------------------------------------------

bool HostCore::take() {
  if (taken_ == reduced_) return false;
  const Step current = step(taken_);
  const Operation& operation = *current.pending->operation;
  if (!current.pending->direct) {
    const uint32_t slot = slot_of(taken_);
    if (!segment_->reduced(slot).complete(round_of(taken_), owners())) return false;
    for (size_t owner = 0; owner < owners(); ++owner) {
      if (segment_->note(slot, owner).overflow == 0) continue;
      fail(overflow_status(current));
      return true;
    }
    operation.copy_out(segment_->sum(slot), current.begin, current.count);
    counters_.bytes_taken.add(current.count * size_of(operation.type()));
    arrive(segment_->taken(slot), ranks(), FutexEvent::kTaken);
  }
  segment_->progress(options_.placement.local).taken.store(++taken_, std::memory_order_relaxed);
  if (current.begin + current.count == operation.count()) {
    completions_.push_back({current.pending->id, Status()});
    operations_.pop_front();  // steps are taken in order
  }
  return true;
}

Status HostCore::overflow_status(const Step& step) const {
  return Status(ErrorCode::kOverflow, step.pending->operation->describe() +
                                          ": the exact sum of an element of [" + std::to_string(step.begin) +
                                          ", " + std::to_string(step.begin + step.count) +
                                          ") does not fit the type");
}

// --- Deadlines and ends -----------------------------------------------------------------------------------

void HostCore::on_tick(int64_t now_us) {
  if (!status_.ok()) return;
  for (const Pending& pending : operations_) {
    const Operation& operation = *pending.operation;
    if (now_us < operation.deadline_us()) continue;
    if (!alone() && now_us < operation.deadline_us() + 2 * kNetworkGraceUs && late_ranks().empty()) continue;
    return fail(timeout_status(operation));
  }
}

int64_t HostCore::next_tick_us() const {
  if (!status_.ok()) return INT64_MAX;
  int64_t next = INT64_MAX;
  for (const Pending& pending : operations_) next = std::min(next, pending.operation->deadline_us());
  return next;
}

// The ranks that the oldest step waits for: those that have not staged it or, if all have, not reduced it; if its slot is
// still in use, those that have not freed it.
std::vector<int> HostCore::late_ranks() const {
  const auto behind = [&](std::atomic<uint64_t> Segment::Progress::*stage, uint64_t step) {
    std::vector<int> ranks_behind;
    for (size_t rank = 0; rank < ranks(); ++rank) {
      if ((segment_->progress(rank).*stage).load(std::memory_order_relaxed) <= step)
        ranks_behind.push_back(options_.placement.local_ranks()[rank]);
    }
    return ranks_behind;
  };
  if (taken_ == staged_) {
    return taken_ < Segment::kSlots ? std::vector<int>()
                                    : behind(&Segment::Progress::taken, taken_ - Segment::kSlots);
  }
  std::vector<int> late = behind(&Segment::Progress::staged, taken_);
  return late.empty() ? behind(&Segment::Progress::reduced, taken_) : late;
}

Status HostCore::timeout_status(const Operation& operation) const {
  const std::string what = operation.describe() + " is not finished by its deadline: ";
  const std::vector<int> late = late_ranks();
  if (!late.empty()) {
    return Status(ErrorCode::kTimeout,
                  what + "waiting for " + list(late) + " (stopped, unreachable, or not in this operation)",
                  late.front());
  }
  return Status(ErrorCode::kTimeout, what + "all ranks of this host take part, but " +
                                         (alone() ? "one of them is too slow"
                                                  : "those of another host, or the network, are too slow"));
}

void HostCore::take_completions(std::vector<Completion>* out) {
  std::move(completions_.begin(), completions_.end(), std::back_inserter(*out));
  completions_.clear();
}

void HostCore::fail(const Status& status) {
  if (!status_.ok()) return;
  NETSUM_ASSERT(!status.ok());
  status_ = status;
  for (const Pending& pending : operations_) completions_.push_back({pending.id, status});
  operations_.clear();
}

}  // namespace netsum
