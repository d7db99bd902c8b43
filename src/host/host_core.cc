#include "src/host/host_core.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "src/base/assert.h"

namespace netsum {
namespace {

// Up to this number of bytes, of all inputs together, it costs less that one rank sums them than that all wait for each
// other's sums.
constexpr size_t kOneRanksWork = size_t{128} << 10;
// Smaller tensors, on average, are not read in place, because each costs a part of a system call.
constexpr size_t kInPlaceTensorBytes = 4096;
// The pieces of all ranks' inputs that are read in place and then summed fit the cache of a core.
constexpr size_t kAllPiecesBytes = size_t{1} << 20;
constexpr size_t kLeastPieceBytes = size_t{16} << 10;
constexpr size_t kMostPieceBytes = size_t{128} << 10;
// A piece has at least a chunk. In memory, that of 8-bit lanes takes so many times the bytes of its packet: 4 for each float32.
constexpr size_t kLongestInMemory = 4;

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace

HostCore::HostCore(HostOptions options, std::unique_ptr<Segment> segment)
    : options_(std::move(options)),
      segment_(std::move(segment)),
      peers_(segment_.get(), options_.placement.local, options_.in_place_bytes != SIZE_MAX && alone()),
      local_sum_(options_.payload_bytes),
      piece_bytes_(std::max<size_t>(std::clamp(kAllPiecesBytes / ranks(), kLeastPieceBytes, kMostPieceBytes),
                                    kLongestInMemory * options_.payload_bytes)),
      own_sum_(piece_bytes_) {
  NETSUM_ASSERT(ranks() == options_.placement.local_ranks().size());
  NETSUM_ASSERT(alone() || options_.to_network);
}

void HostCore::submit(uint64_t id, OperationSpec&& spec) {
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
  const int64_t deadline_us = operation->deadline_us();
  if (operation->has_watermarks()) watermarked_.push_back(operation.get());
  operations_.add({id, std::move(operation)}, deadline_us);
}

bool HostCore::advance() {
  if (!status_.ok()) return false;
  for (const Operation* const operation : watermarked_) {
    if (!operation->watermarks().failed()) continue;
    fail(operation->watermarks().failure());
    return true;
  }
  return take() || reduce() || stage();
}

uint32_t HostCore::awaited() const {
  uint32_t causes = 0;
  if (!status_.ok()) return causes;
  if (taken_ != reduced_) causes |= FutexEvent::kReduced;
  if (reduced_ != staged_) {
    causes |= FutexEvent::kStaged;
    // It is not this rank: that would not wait.
    if (steps_[slot_of(reduced_)].pending->result == Result::kLast) causes |= FutexEvent::kReduced;
  }
  if (has_more_to_stage() && staged_ - taken_ < Segment::kSlots) causes |= FutexEvent::kTaken;
  return causes;
}

void HostCore::arrive(Barrier& barrier, size_t expected, FutexEvent::Cause cause) {
  if (barrier.arrive(expected)) notify_others(cause);
}

void HostCore::notify_others(uint32_t causes) {
  for (size_t rank = 0; rank < ranks(); ++rank) {
    if (rank != local()) segment_->event(rank).notify(causes);
  }
}

// --- Stage ------------------------------------------------------------------------------------------------

bool HostCore::slot_is_free() const {
  if (staged_ - taken_ == Segment::kSlots) return false;
  const uint64_t round = round_of(staged_);
  return round == 0 || segment_->taken(slot_of(staged_)).complete(round - 1, ranks());
}

// All ranks decide alike: by what the signature covers, and by what all of them have told in the first step, which all have
// taken before its slot is used again.
void HostCore::plan(Pending* pending) {
  const Operation& operation = *pending->operation;
  const bool moved = operation.type() == DataType::kByte && operation.role().contributors.of(0) >= 0;
  if (moved) pending->result = Result::kMoved;
  pending->adds_floats = adds_floats(operation);
  if (!alone()) return;
  const std::vector<TensorView>& tensors = operation.chunk_of(0, 0).sequence->tensors();
  const size_t bytes = operation.count() * size_of(operation.type());
  if (staged_ >= Segment::kSlots) counters_.large_inputs.set(peers_.available() ? 1 : 2);
  pending->in_place = counters_.large_inputs.get() == 1 && bytes >= options_.in_place_bytes &&
                      tensors.size() * kInPlaceTensorBytes <= bytes &&
                      tensors.size() * sizeof(uint64_t) <= segment_->host_block_bytes();
  if (moved) return;
  size_t received = bytes;  // by the rank that receives most
  if (operation.role().collective == Collective::kReduceScatter) {
    received = 0;
    for (const TensorView& part : tensors)
      received = std::max(received, part.count * size_of(operation.type()));
    if (pending->in_place) pending->result = Result::kOwn;
  }
  if (received * ranks() > kOneRanksWork) return;
  const Collective collective = operation.role().collective;
  const bool all_receive_all = collective == Collective::kAllReduce || collective == Collective::kBarrier;
  pending->result = all_receive_all ? Result::kLast : Result::kOwn;
  pending->in_place = false;
}

// Over several hosts, the sums of each travel in float32, whatever the type. Small operations may take more bytes so.
bool HostCore::adds_floats(const Operation& operation) const {
  if (operation.travels_as_floats()) return true;
  if (alone() || !is_floating(operation.type()) || !operation.may_be_inline(options_.payload_bytes))
    return false;
  const size_t bytes = operation.count() * sizeof(float);
  return options_.network_adds_floats && bytes <= kMostInlineChunks * options_.payload_bytes &&
         bytes <= segment_->host_block_bytes();
}

// Of one step. What is read in place and not summed in the segment needs no room there.
size_t HostCore::most_elements(const Pending& pending) const {
  if (pending.in_place && pending.result != Result::kShared) return pending.operation->count();
  const size_t chunk = chunk_of(*pending.operation);
  return segment_->host_block_bytes() / (chunk * element_of_sums(pending)) * chunk;
}

bool HostCore::stage() {
  if (!has_more_to_stage() || !slot_is_free()) return false;
  Pending* const pending = &operations_.at(staging_);
  if (pending->staged == 0) plan(pending);
  const Operation& operation = *pending->operation;
  const size_t count = std::min(most_elements(*pending), operation.count() - pending->staged);
  if (!operation.is_available(operation.chunk_of(pending->staged, count))) return false;
  const uint32_t slot = slot_of(staged_);
  Step& next = step(staged_);
  next = {.pending = pending, .begin = pending->staged, .count = count};
  pending->staged += next.count;
  if (pending->staged == operation.count()) ++staging_;
  if (pending->in_place) {
    publish_addresses(&next, slot);
  } else if (pending->result == Result::kMoved) {
    operation.chunk_of(next.begin, next.count).for_each_run([&](const Run& run) {
      if (run.input != nullptr) std::memcpy(segment_->moved(slot) + run.done, run.input, run.count);
    });
  } else {
    operation.copy_in(next.begin, next.count, segment_->input(slot, local()));
  }
  segment_->note(slot, local()) = {.signature = operation.signature(), .overflow = 0};
  counters_.bytes_staged.add(next.count * size_of(operation.type()));
  segment_->progress(local()).staged.store(++staged_, std::memory_order_relaxed);
  next.was_last = segment_->staged(slot).arrive(ranks());
  if (!next.was_last) return true;
  if (pending->result == Result::kLast)
    segment_->summing(slot).store(static_cast<uint32_t>(local()), std::memory_order_relaxed);
  else
    notify_others(FutexEvent::kStaged);
  return true;
}

// Where each tensor of the step begins in this rank's memory; 0: this rank does not contribute.
void HostCore::publish_addresses(Step* step, uint32_t slot) {
  const Operation& operation = *step->pending->operation;
  uint8_t* const table = segment_->input(slot, local());
  bool first = true;
  operation.chunk_of(step->begin, step->count).for_each_run([&](const Run& run) {
    if (std::exchange(first, false)) step->first_tensor = run.tensor;
    uint64_t address = 0;
    if (run.input != nullptr) {
      address = reinterpret_cast<uint64_t>(run.input) - run.offset * size_of(operation.type());
      step->lends = true;
    }
    std::memcpy(table + (run.tensor - step->first_tensor) * sizeof address, &address, sizeof address);
  });
}

// --- Take -------------------------------------------------------------------------------------------------

bool HostCore::take() {
  if (taken_ == reduced_) return false;
  const Step& current = step(taken_);
  const Pending& pending = *current.pending;
  const Operation& operation = *pending.operation;
  const uint32_t slot = slot_of(taken_);
  const bool shared = pending.result == Result::kShared || pending.result == Result::kLast;
  const bool waits = shared || current.lends || !alone();
  if (waits && !segment_->reduced(slot).complete(round_of(taken_), owners())) return false;
  if (shared) {
    for (size_t rank = 0; rank < ranks(); ++rank) {
      if (segment_->note(slot, rank).overflow == 0) continue;
      fail(overflow_status(current));
      return true;
    }
  }
  if (shared || (pending.result == Result::kMoved && !pending.in_place)) {
    const bool as_moved = !shared && alone();
    operation.copy_out(as_moved ? segment_->moved(slot) : finished_sum(current, slot), current.begin,
                       current.count);
    counters_.bytes_taken.add(current.count * size_of(operation.type()));
  }
  for (const Edge& edge : current.edges) operation.copy_out(edge.sum.data(), edge.at.begin, edge.at.size());
  if (operation.has_watermarks())
    operation.watermarks().note_delivered(0, (current.begin + current.count) * size_of(operation.type()));
  const bool last = current.begin + current.count == operation.count();
  arrive(segment_->taken(slot), ranks(), FutexEvent::kTaken);
  segment_->progress(local()).taken.store(++taken_, std::memory_order_relaxed);
  if (last) {
    completions_.push_back({pending.id, Status()});
    if (operation.has_watermarks()) std::erase(watermarked_, &operation);
    operations_.end_front();  // steps are taken in order
  }
  return true;
}

// --- Deadlines and ends -----------------------------------------------------------------------------------

void HostCore::on_tick(int64_t now_us) {
  if (!status_.ok()) return;
  const Pending* const late = operations_.due(now_us);
  if (late == nullptr) return;
  const Operation& operation = *late->operation;
  for (const Operation* const watermarked : watermarked_) {
    const std::string missing = watermarked->missing_input();
    if (watermarked->number() > operation.number() || missing.empty()) continue;
    return fail(Status(ErrorCode::kTimeout,
                       operation.describe() + " is not finished by its deadline: " + missing,
                       rank_of(local())));
  }
  if (!alone() && now_us < operation.deadline_us() + 2 * kNetworkGraceUs && late_ranks().empty()) return;
  fail(timeout_status(operation));
}

int64_t HostCore::next_tick_us() const {
  return status_.ok() ? operations_.next_deadline_us() : INT64_MAX;
}

// The ranks that the oldest step waits for: those that have not staged it or, if all have, not reduced it; if its slot is
// still in use, those that have not freed it.
std::vector<int> HostCore::late_ranks() const {
  const auto behind = [&](std::atomic<uint64_t> Segment::Progress::*stage, uint64_t step) {
    std::vector<int> ranks_behind;
    for (size_t rank = 0; rank < ranks(); ++rank) {
      if ((segment_->progress(rank).*stage).load(std::memory_order_relaxed) <= step)
        ranks_behind.push_back(rank_of(rank));
    }
    return ranks_behind;
  };
  if (taken_ == staged_) {
    return taken_ < Segment::kSlots ? std::vector<int>()
                                    : behind(&Segment::Progress::taken, taken_ - Segment::kSlots);
  }
  std::vector<int> late = behind(&Segment::Progress::staged, taken_);
  if (!late.empty()) return late;
  const uint32_t slot = slot_of(taken_);
  if (steps_[slot].pending->result == Result::kLast)
    return {rank_of(segment_->summing(slot).load(std::memory_order_relaxed))};
  return behind(&Segment::Progress::reduced, taken_);
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
  if (completions_.empty()) return;
  std::move(completions_.begin(), completions_.end(), std::back_inserter(*out));
  completions_.clear();
}

void HostCore::fail(const Status& status) {
  if (!status_.ok()) return;
  NETSUM_ASSERT(!status.ok());
  status_ = status;
  peers_.withdraw();
  watermarked_.clear();
  while (!operations_.empty()) completions_.push_back({operations_.end_front().id, status});
}

}  // namespace netsum
