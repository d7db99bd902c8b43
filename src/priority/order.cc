#include "src/priority/order.h"

#include <algorithm>

#include "src/base/assert.h"
#include "src/base/rng.h"

namespace netsum {
namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  return Rng(hash ^ Rng(value).next()).next();
}

}  // namespace

void PriorityOrder::add(const Operation& operation) {
  NETSUM_ASSERT(operation.elements > 0 && operation.element_bytes > 0 && operation.grain > 0);
  operations_.push_back({operation});
  ++added_;
}

std::optional<PriorityOrder::Step> PriorityOrder::next() {
  if (agreeing_) return {};
  if (batch_.empty()) {
    // Also between batches, so that the ranks' steps alternate.
    if (waiting_.empty() && agreed_ == added_) return {};
    return agreement();
  }
  // The batch before the last one has this one's place.
  if (!batch_begun_ && in_flight_[batch_.front().batch % 2] > 0) return {};
  batch_begun_ = true;
  const Step step = batch_.front();
  batch_.pop_front();
  ++in_flight_[step.batch % 2];
  return step;
}

PriorityOrder::Step PriorityOrder::agreement() {
  agreeing_ = true;
  return {.signature = static_cast<uint32_t>(mixed(signature_, batches_) >> 32),
          .report = {.submitted = added_, .was_idle = std::exchange(was_idle_, false) ? 1u : 0u}};
}

void PriorityOrder::agreed(std::span<const Report> reports) {
  agreeing_ = false;
  // The first batch after a pause waits for its agreement in any case.
  was_idle_ = !waiting_.empty() && in_flight_[0] + in_flight_[1] == 0;
  uint64_t everywhere = added_;
  bool any_idle = false;
  for (const Report& report : reports) {
    everywhere = std::min(everywhere, report.submitted);
    any_idle |= report.was_idle != 0;
  }
  if (any_idle) {
    batch_bytes_ = std::min(batch_bytes_ * 2, kMostBatch);
    calm_ = 0;
  } else if (++calm_ == kCalm) {
    batch_bytes_ = std::max(batch_bytes_ / 8 * 7, kLeastBatch);
    calm_ = 0;
  }
  for (; agreed_ < everywhere; ++agreed_) {
    const Operation& operation = known(agreed_).operation;
    for (const uint64_t part : {static_cast<uint64_t>(static_cast<uint32_t>(operation.priority)),
                                operation.elements, static_cast<uint64_t>(operation.element_bytes)})
      signature_ = mixed(signature_, part);
    waiting_.emplace(-static_cast<int64_t>(operation.priority), agreed_);
    oldest_.insert(agreed_);
  }
  select();
}

void PriorityOrder::select() {
  uint64_t room = batch_bytes_;
  batch_begun_ = false;
  bool oldest_first = batches_ % kTurns == kTurns - 1;
  while (!waiting_.empty()) {
    const uint64_t bytes = add_piece(oldest_first ? *oldest_.begin() : waiting_.begin()->second, room);
    oldest_first = false;
    if (bytes == 0 || bytes >= room) break;
    room -= bytes;
  }
  ++batches_;
}

// Returns its bytes; 0: the room that is left in the batch is too small.
uint64_t PriorityOrder::add_piece(uint64_t number, uint64_t room) {
  Known& one = known(number);
  const Operation& operation = one.operation;
  const uint64_t left = operation.elements - one.begin;
  uint64_t count = room / operation.element_bytes / operation.grain * operation.grain;
  if (count <= operation.least) {
    if (!batch_.empty()) return 0;
    count = (operation.least / operation.grain + 1) * operation.grain;
  }
  if (left <= count + operation.least) count = left;  // the rest would be too small
  Step step{.kind = Kind::kPiece, .operation = number, .begin = one.begin, .count = count, .batch = batches_};
  one.begin += count;
  step.is_last = one.begin == operation.elements;
  step.signature = static_cast<uint32_t>(mixed(mixed(signature_, batches_), mixed(number, one.begin)) >> 32);
  batch_.push_back(step);
  if (step.is_last) {
    waiting_.erase({-static_cast<int64_t>(operation.priority), number});
    oldest_.erase(number);
    one.issued = true;
  }
  const uint64_t bytes = count * operation.element_bytes;
  for (; !operations_.empty() && operations_.front().issued; ++first_) operations_.pop_front();
  return bytes;
}

void PriorityOrder::ended(const Step& piece) {
  NETSUM_ASSERT(in_flight_[piece.batch % 2] > 0);
  --in_flight_[piece.batch % 2];
}

}  // namespace netsum
