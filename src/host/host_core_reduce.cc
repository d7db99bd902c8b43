// The phase of reducing: what this rank computes of a step's result, from inputs in the segment slot or in place.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "src/base/assert.h"
#include "src/host/host_core.h"
#include "src/kernels/kernels.h"
#include "src/worker/mismatch.h"

namespace netsum {
namespace {

// One call sums or moves so much, so that the engine looks at its mail and at deadlines in between.
constexpr int kPiecesPerCall = 16;
constexpr size_t kMovedPerCall = size_t{1} << 20;

}  // namespace

bool HostCore::reduce() {
  if (reduced_ == staged_) return false;
  const uint32_t slot = slot_of(reduced_);
  Step& current = step(reduced_);
  if (!reducing_) {
    if (!segment_->staged(slot).complete(round_of(reduced_), ranks())) return false;
    if (!begin_reduce(current, slot)) return true;
  }
  if (current.pending->result == Result::kLast && !current.was_last) return await_last(current, slot);
  bool sent = false;
  if (left_.size() > 0) {
    if (!alone()) {
      send_portion(current, slot);
      sent = true;
    } else if (current.pending->result == Result::kMoved) {
      move_some(current, slot);
    } else {
      sum_some(&current, slot);
    }
  }
  if (status_.ok() && left_.size() == 0) end_reduce(current, slot, sent);
  return true;
}

// All ranks have staged. False if this rank has failed, because they are not in the same operation.
bool HostCore::begin_reduce(const Step& current, uint32_t slot) {
  peers_.probe();
  if (Status status = compare_signatures(current, slot); !status.ok()) {
    // Those in another operation may wait for this to be told, too.
    if (current.was_last) notify_others(FutexEvent::kStaged);
    fail(status);
    return false;
  }
  left_ = to_reduce(current);
  read_from_.assign(ranks(), false);
  reducing_ = true;
  return true;
}

// This rank has nothing to do until the one that staged last has summed.
bool HostCore::await_last(const Step& current, uint32_t slot) {
  if (!segment_->reduced(slot).complete(round_of(reduced_), owners())) return false;
  end_reduce(current, slot, true);
  return true;
}

// What this rank has to do of the step.
HostCore::Range HostCore::to_reduce(const Step& step) const {
  const Pending& pending = *step.pending;
  switch (pending.result) {
    case Result::kShared:
      return options_.placement.is_owner() ? portion_of(step) : Range{};
    case Result::kMoved:
      if (!alone() && options_.placement.is_owner()) return portion_of(step);
      return pending.in_place ? Range{step.begin, step.begin + step.count} : Range{};
    case Result::kLast:
      return step.was_last ? Range{step.begin, step.begin + step.count} : Range{};
    case Result::kOwn:
      break;
  }
  // Whole chunks, because a chunk may have one scale.
  Range range = received_of(step);
  if (range.size() == 0) return range;
  const size_t chunk = chunk_of(*pending.operation);
  range.begin = range.begin / chunk * chunk;
  range.end = std::min((range.end + chunk - 1) / chunk * chunk, step.begin + step.count);
  return range;
}

HostCore::Range HostCore::portion_of(const Step& step) const {
  const size_t chunk = chunk_of(*step.pending->operation);
  const size_t chunks = (step.count + chunk - 1) / chunk;
  const size_t begin = std::min(chunks * local() / owners() * chunk, step.count);
  const size_t end = std::min(chunks * (local() + 1) / owners() * chunk, step.count);
  return {step.begin + begin, step.begin + end};
}

// From the first to the last element for which this rank has an output.
HostCore::Range HostCore::received_of(const Step& step) const {
  Range range;
  step.pending->operation->chunk_of(step.begin, step.count).for_each_run([&](const Run& run) {
    if (run.output == nullptr) return;
    if (range.size() == 0) range.begin = step.begin + run.done;
    range.end = step.begin + run.done + run.count;
  });
  return range;
}

void HostCore::send_portion(const Step& step, uint32_t slot) {
  const Operation& whole = *step.pending->operation;
  const bool floats = step.pending->adds_floats;
  const size_t offset = (left_.begin - step.begin) * element_of_sums(*step.pending);
  uint8_t* const sum = segment_->sum(slot) + offset;
  Inputs inputs;
  find_inputs(step, slot, left_, &inputs);
  if (floats) {
    kernels::sum_in_order(whole.type(), inputs, left_.size(), 1, DataType::kFloat32, sum);
    inputs.assign(1, sum);
  }
  PartialSum portion{.slot = slot, .spec = sum_of(step, inputs, left_, sum)};
  portion.spec.deadline_us += kNetworkGraceUs;
  left_.begin = left_.end;
  options_.to_network(std::move(portion));
}

// The elements of the step's result, where all have been summed: the sums over the hosts are in float32 until now.
const uint8_t* HostCore::finished_sum(const Step& step, uint32_t slot) {
  const uint8_t* const sum = segment_->sum(slot);
  if (alone() || !step.pending->adds_floats) return sum;
  const Operation& whole = *step.pending->operation;
  if (whole.type() == DataType::kFloat32 && divisor_of(whole) == 1) return sum;
  own_sum_.resize(std::max(own_sum_.size(), step.count * size_of(whole.type())));
  kernels::sum_in_order(DataType::kFloat32, {&sum, 1}, step.count, divisor_of(whole), whole.type(),
                        own_sum_.data());
  return own_sum_.data();
}

void HostCore::on_network_done(uint32_t slot, const Status& status) {
  if (!status_.ok()) return;
  if (!status.ok()) return fail(status);
  arrive(segment_->reduced(slot), owners(), FutexEvent::kReduced);
}

void HostCore::end_reduce(const Step& step, uint32_t slot, bool sent) {
  const Pending& pending = *step.pending;
  for (size_t rank = 0; rank < ranks(); ++rank) {
    if (!read_from_[rank] || !peers_.withdrawn(rank)) continue;
    return fail(Status(ErrorCode::kPeerLost,
                       pending.operation->describe() + ": rank " + std::to_string(rank_of(rank)) +
                           " of this host has given it up",
                       rank_of(rank)));
  }
  reducing_ = false;
  segment_->progress(local()).reduced.store(++reduced_, std::memory_order_relaxed);
  Barrier& barrier = segment_->reduced(slot);
  if (pending.result == Result::kLast && step.was_last) {
    barrier.arrive_for_all(owners());
    return notify_others(FutexEvent::kReduced);
  }
  if (sent || !options_.placement.is_owner()) return;
  if (pending.result == Result::kShared || pending.in_place || !alone())
    arrive(barrier, owners(), FutexEvent::kReduced);
  else
    barrier.arrive(owners());  // nobody waits, but the barrier counts rounds
}

// --- Sums -------------------------------------------------------------------------------------------------

size_t HostCore::piece_elements(const Step& step) const {
  const Pending& pending = *step.pending;
  if ((pending.result == Result::kShared && !pending.in_place) || pending.result == Result::kLast)
    return step.count;
  const Operation& whole = *pending.operation;
  const size_t chunk = chunk_of(whole);
  return piece_bytes_ / (chunk * size_of(whole.type())) * chunk;
}

void HostCore::sum_some(Step* step, uint32_t slot) {
  const Pending& pending = *step->pending;
  const Operation& whole = *pending.operation;
  const bool shared = pending.result == Result::kShared || pending.result == Result::kLast;
  const size_t chunk = chunk_of(whole), most = piece_elements(*step);
  const Range received = shared ? left_ : received_of(*step);
  for (int i = 0; i < kPiecesPerCall && left_.size() > 0 && status_.ok(); ++i) {
    Range piece{left_.begin, std::min(left_.end, left_.begin + most)};
    // Chunks that are received only in part are pieces of their own.
    if (piece.begin < received.begin) piece.end = std::min(piece.end, piece.begin + chunk);
    if (piece.end > received.end && piece.size() > chunk)
      piece.end = std::max(piece.begin + chunk, received.end / chunk * chunk);
    if (!find_inputs(*step, slot, piece, &inputs_)) return;
    uint8_t* const sum =
        shared ? segment_->sum(slot) + (piece.begin - step->begin) * size_of(whole.type()) : own_sum_.data();
    bool fits = true;
    if (pending.adds_floats)
      kernels::sum_in_order(whole.type(), inputs_, piece.size(), divisor_of(whole), whole.type(), sum);
    else
      fits = local_sum_.run(whole.encoding(), sequence_of(whole, inputs_, piece.begin, piece.size(), sum));
    left_.begin = piece.end;
    if (shared) {
      if (!fits) segment_->note(slot, local()).overflow = 1;
      continue;
    }
    counters_.bytes_taken.add(ranks() * piece.size() * size_of(whole.type()));
    if (!fits) return fail(overflow_status(*step));
    const bool partly = piece.begin < received.begin || piece.end > received.end;
    // The ranks that receive the rest of the chunk may still read its elements here.
    if (partly && pending.in_place)
      step->edges.push_back({piece, {sum, sum + piece.size() * size_of(whole.type())}});
    else
      whole.copy_out(sum, piece.begin, piece.size());
  }
}

// The inputs of `piece` by local rank; of one that is not in the segment, a copy. Fails if it cannot be read.
bool HostCore::find_inputs(const Step& step, uint32_t slot, Range piece, Inputs* inputs) {
  const Pending& pending = *step.pending;
  const size_t offset = (piece.begin - step.begin) * size_of(pending.operation->type());
  if (pending.result == Result::kMoved) {
    inputs->assign(1, segment_->moved(slot) + offset);
    return true;
  }
  inputs->resize(ranks());
  if (!pending.in_place) {
    for (size_t rank = 0; rank < ranks(); ++rank) (*inputs)[rank] = segment_->input(slot, rank) + offset;
    return true;
  }
  read_pieces_.resize(ranks() * piece_bytes_);
  for (size_t rank = 0; rank < ranks(); ++rank) {
    uint8_t* const to = read_pieces_.data() + rank * piece_bytes_;
    (*inputs)[rank] = rank == local() ? own_input(step, piece, to) : to;
    if (rank == local() || read_input(step, slot, rank, piece, to)) continue;
    fail(unreadable_status(rank));
    return false;
  }
  return true;
}

// Where it is or, if it is in several tensors, a copy.
const uint8_t* HostCore::own_input(const Step& step, Range piece, uint8_t* to) const {
  const Operation& whole = *step.pending->operation;
  const uint8_t* input = nullptr;
  size_t runs = 0;
  whole.chunk_of(piece.begin, piece.size()).for_each_run([&](const Run& run) {
    input = run.input;
    ++runs;
  });
  if (runs == 1 && input != nullptr) return input;
  whole.copy_in(piece.begin, piece.size(), to);
  return to;
}

uint64_t HostCore::address_of(const Step& step, uint32_t slot, size_t rank, const Run& run) const {
  uint64_t address = 0;
  std::memcpy(&address, segment_->input(slot, rank) + (run.tensor - step.first_tensor) * sizeof address,
              sizeof address);
  return address == 0 ? 0 : address + run.offset * size_of(step.pending->operation->type());
}

bool HostCore::read_input(const Step& step, uint32_t slot, size_t rank, Range piece, uint8_t* to) {
  const Operation& whole = *step.pending->operation;
  bool ok = true;
  size_t bytes = 0;
  remote_.clear();
  read_from_[rank] = true;
  const auto read = [&] {
    if (!remote_.empty()) ok = ok && peers_.read(rank, remote_, to, bytes);
    counters_.bytes_read_in_place.add(bytes);
    to += std::exchange(bytes, 0);
    remote_.clear();
  };
  whole.chunk_of(piece.begin, piece.size()).for_each_run([&](const Run& run) {
    const size_t size = run.count * size_of(whole.type());
    const uint64_t address = address_of(step, slot, rank, run);
    if (address != 0) {
      remote_.push_back({reinterpret_cast<void*>(address), size});
      bytes += size;
      return;
    }
    read();
    std::memset(to, 0, size);
    to += size;
  });
  read();
  return ok;
}

// Of several hosts, each says which parts it has, and which it needs.
OperationSpec HostCore::sum_of(const Step& step, const Inputs& inputs, Range piece, uint8_t* sum) const {
  const Operation& whole = *step.pending->operation;
  OperationSpec spec;
  const bool floats = step.pending->adds_floats;
  const size_t element = floats ? sizeof(float) : size_of(whole.type());
  spec.type = floats ? DataType::kFloat32 : whole.type();
  spec.op = floats ? ReduceOp::kSum : whole.op();
  spec.joint.summed = floats;
  spec.one_tensor = !whole.encoding().separates_tensors();
  spec.deadline_us = whole.deadline_us();
  spec.joint.more_inputs.assign(inputs.begin() + 1, inputs.end());
  spec.joint.context = whole.signature();
  spec.joint.first_offset = whole.offset_of(piece.begin);
  const Role& role = whole.role();
  if (role.contributors.of(0) == Ranks::kEvery && role.receivers.of(0) == Ranks::kEvery) {
    if (floats)
      spec.tensors = {{.input = sum, .output = sum, .count = piece.size()}};
    else
      spec.tensors = sequence_of(whole, inputs, piece.begin, piece.size(), sum).tensors();
    return spec;
  }
  const bool moved = step.pending->result == Result::kMoved;
  whole.chunk_of(piece.begin, piece.size()).for_each_run([&](const Run& run) {
    const size_t offset = run.done * element;
    const bool has = !moved || is_here(role.contributors.of(run.tensor));
    const bool needs = is_here(role.receivers.of(run.tensor));
    spec.tensors.push_back({.input = has ? inputs.front() + offset : nullptr,
                            .output = needs ? sum + offset : nullptr,
                            .count = run.count,
                            .id = run.tensor_id});
  });
  return spec;
}

// Whether `rank`, or some rank if it stands for all, is on this host.
bool HostCore::is_here(int rank) const {
  const std::vector<int>& here = options_.placement.local_ranks();
  return rank == Ranks::kEvery || std::find(here.begin(), here.end(), rank) != here.end();
}

// --- Moves ------------------------------------------------------------------------------------------------

// Reads what this rank receives from where it is.
void HostCore::move_some(const Step& step, uint32_t slot) {
  const Operation& whole = *step.pending->operation;
  size_t moved = 0;
  while (moved < kMovedPerCall && left_.size() > 0) {
    const size_t n = std::min(left_.size(), kMovedPerCall);
    bool ok = true;
    size_t from = 0;
    whole.chunk_of(left_.begin, n).for_each_run([&](const Run& run) {
      if (run.output == nullptr || !ok) return;
      moved += run.count;
      from = static_cast<size_t>(whole.role().contributors.of(run.tensor));
      if (from == local()) {
        kernels::copy_out(run.output, run.input, run.count);
        return;
      }
      const iovec there{reinterpret_cast<void*>(address_of(step, slot, from, run)), run.count};
      ok = peers_.read(from, {&there, 1}, run.output, run.count);
      read_from_[from] = true;
      counters_.bytes_read_in_place.add(run.count);
    });
    if (!ok) return fail(unreadable_status(from));
    left_.begin += n;
  }
  counters_.bytes_taken.add(moved);
}

// --- Errors -----------------------------------------------------------------------------------------------

Status HostCore::unreadable_status(size_t rank) const {
  return Status(ErrorCode::kPeerLost,
                "the memory of rank " + std::to_string(rank_of(rank)) +
                    " of this host cannot be read any more: its process has ended",
                rank_of(rank));
}

Status HostCore::compare_signatures(const Step& step, uint32_t slot) const {
  const Operation& operation = *step.pending->operation;
  bool same = true;
  for (size_t rank = 0; rank < ranks(); ++rank)
    same &= segment_->note(slot, rank).signature == operation.signature();
  if (same) return Status();
  std::vector<uint64_t> calls;
  for (size_t rank = 0; rank < ranks(); ++rank) calls.push_back(segment_->note(slot, rank).signature);
  return mismatch(operation, rank_of(local()), rank_of(first_unusual(calls)));
}

Status HostCore::overflow_status(const Step& step) const {
  return Status(ErrorCode::kOverflow, step.pending->operation->describe() +
                                          ": the exact sum of an element of [" + std::to_string(step.begin) +
                                          ", " + std::to_string(step.begin + step.count) +
                                          ") does not fit the type");
}

}  // namespace netsum
