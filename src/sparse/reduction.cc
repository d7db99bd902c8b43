#include "src/sparse/reduction.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "src/base/assert.h"
#include "src/base/rng.h"

namespace netsum::sparse {
namespace {

// Smaller tensors are not worth the round trips of an index.
constexpr double kLeastAutoBytes = 64 << 10;
// Nothing travels while the first segment is scanned, and nothing but its index until that is complete. So segments are smaller
// than Settings::segment_bytes where there are few, but not smaller than this.
constexpr double kFineSegments = 48;
constexpr double kLeastSegmentBytes = 64 << 10;
constexpr double kMostSegments = 64;
// What a level costs beside its bits: about a round trip, 1 ms at 100 Mbit/s or 10 us at 10 Gbit/s.
constexpr double kLevelCost = 100'000;
// Values of so many segments may be in flight or not yet stored.
constexpr size_t kSegmentsInFlight = 3;

uint64_t mix(uint64_t hash, uint64_t value) {
  return Rng(hash ^ Rng(value).next()).next();
}

}  // namespace

Reduction::Reduction(std::unique_ptr<Tensor> tensor, const Settings& settings, Profile* profile,
                     std::vector<Part>* spare)
    : tensor_(std::move(tensor)),
      settings_(settings),
      or_by_sum_(settings.ranks),
      profile_(profile),
      lender_(spare) {
  if (lender_ != nullptr) spare_parts_.swap(*lender_);
  shape_.positions = tensor_->positions();
  shape_.unit_bytes = static_cast<double>(tensor_->unit_bytes());
  shape_.ranks = settings_.ranks;
  shape_.bit_cost = settings_.combines_bits ? 1 : or_by_sum_.expansion();
  for (const uint64_t part : {shape_.positions, uint64_t{tensor_->unit_elements()},
                              static_cast<uint64_t>(tensor_->type()), static_cast<uint64_t>(settings_.op),
                              static_cast<uint64_t>(settings_.mode), uint64_t{tensor_->dense() != nullptr}})
    signature_ = mix(signature_, part);
  if (settings_.tag != 0) signature_ = mix(signature_, settings_.tag);
  const TensorView* const dense = tensor_->dense();
  stats_.elements = dense != nullptr ? dense->count : shape_.positions * tensor_->unit_elements();
}

const SubOperation* Reduction::next() {
  if (phase_ == Phase::kBegin) begin();
  if (phase_ == Phase::kCount) {
    if (!count_operation_) return issue_count();
    if (!has_ended(count_operation_)) return nullptr;
    read_count();
  }
  if (phase_ == Phase::kPlan) plan();
  if (phase_ == Phase::kDense) {
    phase_ = Phase::kIssued;
    return issue(Kind::kDense, tensor_->type(), settings_.op, *tensor_->dense());
  }
  const SubOperation* const issued = phase_ == Phase::kTurns ? next_in_turns() : nullptr;
  return phase_ == Phase::kCount ? issue_count() : issued;
}

const SubOperation* Reduction::issue(Kind kind, DataType type, ReduceOp op, const TensorView& view) {
  operation_ = {.number = ended_.size(), .kind = kind, .type = type, .op = op, .view = view};
  const uint64_t what = static_cast<uint64_t>(kind) << 56 | operation_.number;
  operation_.parameter = static_cast<uint32_t>(mix(signature_, what) >> 32);
  ended_.push_back(false);
  ++in_flight_;
  return &operation_;
}

void Reduction::begin() {
  const bool is_dense = tensor_->dense() != nullptr;
  const bool can_choose = is_dense && settings_.mode == SparseMode::kAuto;
  if (is_dense && shape_.positions == 0) {
    end_issuing();
  } else if ((is_dense && settings_.mode == SparseMode::kOff) ||
             (can_choose && shape_.dense_bytes() < kLeastAutoBytes)) {
    phase_ = Phase::kDense;
  } else {
    if (!is_dense) stored_ = profile_->last_count();
    assumes_count_ = stored_ > 0;
    const bool counts =
        is_dense ? (can_choose ? profile_->wants_count() : !profile_->known()) : !assumes_count_;
    phase_ = counts ? Phase::kCount : Phase::kPlan;
  }
}

const SubOperation* Reduction::issue_count() {
  const Status& own = tensor_->status();
  if (own.code() == ErrorCode::kOverflow) {
    count_[3] = 1;
  } else if (!own.ok()) {
    count_[1] = 1;
    count_[2] = settings_.rank + 1;
  } else {
    const uint64_t units = tensor_->count();
    counted_ = tensor_->dense() == nullptr ? profile_->to_count(units) : units;
    count_[0] = static_cast<int64_t>(counted_);
    count_[4] = units == shape_.positions ? 1 : 0;
  }
  count_operation_ = ended_.size();
  return issue(Kind::kCount, DataType::kInt64, ReduceOp::kSum, {count_.data(), count_.data(), count_.size()});
}

void Reduction::read_count() {
  const auto [stored, invalid, invalid_ranks, overflows, full] = count_;
  if (invalid + overflows > 0) {
    Status status = tensor_->status();
    if (status.ok() && invalid == 1) {
      const auto rank = static_cast<int>(invalid_ranks - 1);
      status = {ErrorCode::kInvalidArgument,
                "rank " + std::to_string(rank) + " has invalid indices: its own error names them", rank};
    } else if (status.ok()) {
      status = {invalid > 0 ? ErrorCode::kInvalidArgument : ErrorCode::kOverflow,
                std::to_string(invalid + overflows) +
                    " other ranks have invalid indices, or duplicates whose sum overflows: their own errors "
                    "name them"};
    }
    fail(status);
    return;
  }
  stored_ = static_cast<uint64_t>(stored);
  if (stored_ > 0) {
    // Where a rank has everything, the union is known.
    const bool needs_no_index = full > 0 && tensor_->dense() != nullptr && settings_.mode == SparseMode::kOn;
    phase_ = needs_no_index ? Phase::kDense : Phase::kPlan;
    return;
  }
  BitSet nothing;
  std::vector<uint8_t> no_values;
  tensor_->unpack({0, shape_.positions}, &nothing, &no_values);
  if (shape_.positions > 0) profile_->learn(shape_, {}, 0, 0);
  end_issuing();
}

void Reduction::plan() {
  if (tensor_->dense() != nullptr && settings_.mode == SparseMode::kAuto &&
      profile_->prefers_dense(shape_, stored_)) {
    phase_ = Phase::kDense;
    return;
  }
  const Occupancy expected = profile_->expected(shape_, stored_);
  levels_ = Levels::choose(shape_.positions, expected, kLevelCost / shape_.bit_cost);
  const double bytes =
      expected.blocks[0] * shape_.unit_bytes + levels_.bits(shape_.positions, expected) * shape_.bit_cost / 8;
  const double parts =
      std::max(bytes / settings_.segment_bytes, std::min(bytes / kLeastSegmentBytes, kFineSegments));
  const auto segments = static_cast<uint64_t>(std::clamp(parts, 1.0, kMostSegments));
  const uint64_t whole = uint64_t{1} << std::max(levels_.shifts.front(), kWordShift);
  segment_units_ = ((shape_.positions + segments - 1) / segments + whole - 1) / whole * whole;
  segments_ = static_cast<size_t>((shape_.positions + segment_units_ - 1) / segment_units_);
  signature_ = mix(signature_, segment_units_);
  for (const int shift : levels_.shifts) signature_ = mix(signature_, static_cast<uint64_t>(shift));
  phase_ = Phase::kTurns;
}

bool Reduction::use_sums() {
  if (operation_.kind != Kind::kIndex || !settings_.combines_bits) return false;
  // Ranks are told so of the first index, on which everything else depends. Otherwise the job has moved to another aggregator since,
  // and what is in flight does not begin anew.
  if (operation_.number > 1 || in_flight_ != 1) return false;
  ended_[operation_.number] = true;
  in_flight_ = 0;
  settings_.combines_bits = false;
  shape_.bit_cost = or_by_sum_.expansion();
  forget_turns();
  stats_.index_bytes = 0;
  phase_ = Phase::kPlan;
  return true;
}

void Reduction::forget_turns() {
  parts_.clear();
  turn_ = step_ = first_part_ = 0;
  in_turn_ = false;
}

// Turn t: level 0 of segment t, level 1 of segment t - 1, and so on; then the values of the segment behind the last level.
const SubOperation* Reduction::next_in_turns() {
  const size_t levels = levels_.shifts.size();
  while (phase_ == Phase::kTurns) {
    if (!in_turn_) {
      if (turn_ == segments_ + levels) {
        end_issuing();
        break;
      }
      if (!can_begin_turn()) break;
      if (turn_ == 1 && std::exchange(assumes_count_, false) && has_flag()) {
        forget_turns();
        phase_ = Phase::kCount;
        break;
      }
      in_turn_ = true;
      step_ = 0;
    }
    while (step_ <= levels && phase_ == Phase::kTurns) {
      const size_t step = step_++;
      if (step > turn_ || turn_ - step >= segments_) continue;
      Part& part = this->part(turn_ - step);
      const SubOperation* const issued = step < levels ? issue_level(&part, step) : issue_values(&part);
      if (issued != nullptr) return issued;
    }
    in_turn_ = false;
    ++turn_;
  }
  return nullptr;
}

bool Reduction::can_begin_turn() const {
  for (const Part& part : parts_)
    if (!has_ended(part.index_operation)) return false;
  return turn_ < levels_.shifts.size() + kSegmentsInFlight + first_part_;
}

bool Reduction::has_flag() const {
  const Part& first = parts_.front();
  return settings_.combines_bits ? first.words.back() != 0 : first.lanes.back() != 0;
}

Reduction::Part& Reduction::part(size_t number) {
  if (number == first_part_ + parts_.size()) {
    if (spare_parts_.empty()) {
      parts_.emplace_back();
    } else {
      parts_.push_back(std::move(spare_parts_.back()));
      spare_parts_.pop_back();
    }
    const uint64_t begin = number * segment_units_;
    parts_.back().begin({begin, std::min(begin + segment_units_, shape_.positions)});
    parts_.back().levels.reserve(levels_.shifts.size());
  }
  return parts_[number - first_part_];
}

void Reduction::Part::begin(const Segment& other) {
  segment = other;
  levels.clear();
  blocks.clear();
  values_issued = false;
  index_operation.reset();
  value_operation.reset();
}

size_t Reduction::Part::bytes() const {
  size_t bytes = words.capacity() * sizeof(uint64_t) + lanes.capacity() * sizeof(int32_t) + values.capacity();
  for (const BitSet* set : {&own, &united})
    bytes += (set->numbers.capacity() + set->words.capacity()) * sizeof(uint64_t) + set->values.capacity();
  return bytes;
}

const SubOperation* Reduction::issue_level(Part* part, size_t number) {
  const int shift = levels_.shifts[number];
  if (number == 0) {
    tensor_->find(part->segment, &part->own);
    part->levels.emplace_back(part->segment.size(), shift);
  } else {
    if (!read_level(part)) {
      break_off();
      return nullptr;
    }
    part->levels.emplace_back(part->levels.back(), part->blocks.back(), shift);
  }
  const Level& level = part->levels.back();
  const bool has_flag = assumes_count_ && number == 0;
  const bool flag = has_flag && (!tensor_->status().ok() || !profile_->fits(tensor_->count()));
  part->words.resize(words_for(level.bits()));
  if (level.bits() == 0) return nullptr;
  level.write(part->own, part->words.data());
  TensorView view;
  if (settings_.combines_bits) {
    if (has_flag) part->words.push_back(flag ? 1 : 0);
    view = {part->words.data(), part->words.data(), part->words.size()};
  } else {
    part->lanes.assign(or_by_sum_.lanes(level.bits()), 0);
    or_by_sum_.spread(part->words, part->lanes.data());
    if (has_flag) part->lanes.push_back(flag ? 1 : 0);
    view = {part->lanes.data(), part->lanes.data(), part->lanes.size()};
  }
  const DataType type = settings_.combines_bits ? DataType::kInt64 : DataType::kInt32;
  stats_.index_bytes += view.count * size_of(type);
  part->index_operation = ended_.size();
  return issue(Kind::kIndex, type, settings_.combines_bits ? ReduceOp::kBitOr : ReduceOp::kSum, view);
}

bool Reduction::read_level(Part* part) {
  const Level& level = part->levels.back();
  if (!settings_.combines_bits && level.bits() > 0) {
    std::fill(part->words.begin(), part->words.end(), 0);
    or_by_sum_.collect(part->lanes, part->words);
  }
  if (part->levels.size() == levels_.shifts.size()) return level.read(part->words.data(), &part->united);
  return level.read(part->words.data(), &part->blocks.emplace_back());
}

const SubOperation* Reduction::issue_values(Part* part) {
  if (!read_level(part)) {
    break_off();
    return nullptr;
  }
  occupancy_.add(part->united);
  part->values_issued = true;
  const size_t elements = tensor_->elements(part->segment, part->united);
  const size_t bytes = elements * size_of(tensor_->type()) + Tensor::kSlackBytes;
  if (part->values.size() < bytes) part->values.resize(bytes);
  if (!tensor_->pack(part->segment, part->united, part->own, part->values.data())) {
    break_off();
    return nullptr;
  }
  stats_.sent_elements += elements;
  if (elements == 0) {
    take_results();
    return nullptr;
  }
  part->value_operation = ended_.size();
  return issue(Kind::kValues, tensor_->type(), settings_.op,
               {part->values.data(), part->values.data(), elements});
}

void Reduction::break_off() {
  broken_ = true;
  fail({ErrorCode::kInternal,
        "the index that the ranks have agreed on lacks what this rank has, or names what does not exist",
        settings_.rank});
}

void Reduction::end_issuing() {
  if (segments_ > 0) {
    profile_->learn(shape_, occupancy_, static_cast<double>(stats_.index_bytes), stored_);
    if (count_operation_ && tensor_->dense() == nullptr) profile_->counted(counted_);
  }
  phase_ = Phase::kIssued;
  take_results();
}

void Reduction::ended(uint64_t number) {
  NETSUM_ASSERT(!ended_[number]);
  ended_[number] = true;
  --in_flight_;
  take_results();
}

void Reduction::fail(const Status& status) {
  if (status_.ok()) status_ = status;
  phase_ = Phase::kIssued;
  take_results();
}

void Reduction::take_results() {
  while (status_.ok() && !parts_.empty() && parts_.front().values_issued &&
         has_ended(parts_.front().value_operation)) {
    Part& part = parts_.front();
    tensor_->unpack(part.segment, &part.united, &part.values);
    spare_parts_.push_back(std::move(part));
    parts_.pop_front();
    ++first_part_;
  }
  if (finished_ || phase_ != Phase::kIssued || in_flight_ > 0) return;
  finished_ = true;
  if (status_.ok()) status_ = tensor_->finish();
  for (Part& part : spare_parts_) {
    if (lender_ == nullptr || lender_->size() == kMostSpareParts) break;
    if (part.bytes() <= kMostSpareBytes) lender_->push_back(std::move(part));
  }
}

SparseStats Reduction::stats() const {
  SparseStats stats = stats_;
  const size_t element = size_of(tensor_->type());
  stats.operations = 1;
  stats.dense = ended_.size() > 0 && operation_.kind == Kind::kDense ? 1 : 0;
  if (stats.dense != 0) stats.sent_elements = stats.elements;
  const uint64_t sent = stats.sent_elements * element + stats.index_bytes;
  const uint64_t whole = stats.elements * element;
  stats.spared_bytes = whole > sent ? whole - sent : 0;
  return stats;
}

}  // namespace netsum::sparse
