// The controller: when to change levels, and what is remembered from step to step.
#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <utility>

#include "netsum/compression_control.h"
#include "src/base/assert.h"
#include "src/base/fnv.h"
#include "src/compress/control/control_estimates.h"
#include "src/compress/control/control_guards.h"
#include "src/compress/control/control_trace.h"
#include "src/compress/control/cost_model.h"

namespace netsum {
namespace compress {
namespace {

constexpr size_t kMostLevels = 16, kMostControlledBuckets = 4096;
constexpr uint64_t kMostElements = uint64_t{1} << 32;
// A step that is longer by this part counts as equal.
constexpr int64_t kSlackPercent = 2;
// Levels change for this gain in two of three steps in succession, or for the greater one at once.
constexpr int64_t kGainPercent = 3, kGreatGainPercent = 25;
// Or if a gentler choice makes the step hardly longer.
constexpr int64_t kGentlerPercent = 1;
// Steps between two changes: at first, and at most where changes follow each other though the network stays as it is.
constexpr uint64_t kLeastHold = 4, kLongestHold = 64;
// The network has changed when its time of a byte has by this factor, or its share of packets sent again by this difference.
constexpr int64_t kChangePercent = 150, kChangePpm = 10'000;
// Steps between two probes of the network: where its traffic tells its rate; and where it does not, as many as make probes this
// part of the time, within limits.
constexpr uint64_t kCalibrationPeriod = 16, kLeastProbePeriod = 4, kMostProbePeriod = 16;
constexpr int64_t kProbePercent = 3;

Status invalid_control(std::string why) {
  return {ErrorCode::kInvalidArgument, std::move(why)};
}

int32_t digest_of(std::span<const int64_t> state) {
  uint64_t hash = kFnvBasis;
  for (const int64_t number : state) hash = fnv1a(hash, static_cast<uint64_t>(number));
  return static_cast<int32_t>((hash ^ hash >> 32) & 0x3FFFFFFF) + 1;
}

class Control : public CompressionControl {
 public:
  explicit Control(CompressionControlOptions options)
      : options_(std::move(options)), estimates_(options_.levels) {}

  Status set_buckets(std::span<const ControlledBucket> buckets) override {
    if (buckets.size() > kMostControlledBuckets)
      return invalid_control("there are " + std::to_string(buckets.size()) + " buckets; at most " +
                             std::to_string(kMostControlledBuckets) + " can be controlled: make them larger");
    uint64_t elements = 0, bytes = 0;
    for (const ControlledBucket& bucket : buckets) {
      elements += std::min(bucket.elements, kMostElements + 1);
      bytes += std::min(bucket.other_bytes, 4 * kMostElements + 1);
    }
    if (elements > kMostElements || bytes > 4 * kMostElements)
      return invalid_control(
          "the buckets have more than 2^32 elements together, or more than 2^34 other bytes");
    estimates_.set_buckets(buckets);
    guards_.assign(buckets.size(), {});
    levels_.assign(buckets.size(), 0);
    past_ = {};
    for (Past& past : past_) past.levels = levels_;
    return {};
  }

  Status begin_step(std::span<const int32_t> agreed) override {
    change_.clear();
    if (!agreed.empty() && agreed.size() < agreed_values())
      return invalid_control("the ranks have agreed on " + std::to_string(agreed.size()) + " numbers, and " +
                             std::to_string(agreed_values()) + " describe the buckets");
    agreed_.assign(agreed.begin(), agreed.begin() + (agreed.empty() ? 0 : agreed_values()));
    if (!agreed_.empty()) {
      const HeadNumbers head = head_of(agreed_);
      if (head.digest != -head.negative_digest)
        return {
            ErrorCode::kMismatch,
            "the ranks have decided differently how to compress: all must create the controller alike, and "
            "restore the same state"};
      if (head.digest != 0) learn();
    }
    ++step_;
    decide();
    std::rotate(past_.begin(), past_.end() - 1, past_.end());
    past_[0] = {.levels = levels_, .probe_bytes = probe_bytes()};
    return {};
  }

  CompressionDecision decision() const override {
    return {.levels = levels_,
            .agreement_values = agreed_values() + static_cast<size_t>(past_[0].probe_bytes / sizeof(int32_t)),
            .wants_norms = step_ % Guards::kNormPeriod == 0};
  }

  Status measurement(const StepRecord& record, std::span<int32_t> mine) const override {
    if (record.buckets.size() != levels_.size())
      return invalid_control("the record has " + std::to_string(record.buckets.size()) +
                             " buckets instead of " + std::to_string(levels_.size()));
    if (mine.size() < agreed_values())
      return invalid_control("there is room for " + std::to_string(mine.size()) + " numbers instead of " +
                             std::to_string(agreed_values()));
    to_numbers(record, mine);
    mine[0] = digest_of(state());
    mine[1] = -mine[0];
    // What makes the operation longer: not zero, which might not be sent.
    for (size_t i = agreed_values(); i < mine.size(); ++i) mine[i] = static_cast<int32_t>(i * 0x9E3779B1u);
    return {};
  }

  std::vector<int64_t> state() const override {
    std::vector<int64_t> numbers = {static_cast<int64_t>(options_.levels.size()),
                                    static_cast<int64_t>(levels_.size())};
    for (const uint64_t number : {step_, changes_, last_change_, hold_, uint64_t{votes_}, probe_at_})
      numbers.push_back(static_cast<int64_t>(number));
    for (const int64_t number : {byte_ps_then_, ppm_then_, predicted_ns_, uncompressed_ns_})
      numbers.push_back(number);
    estimates_.save(&numbers);
    for (const Guards& guards : guards_) guards.save(&numbers);
    numbers.insert(numbers.end(), levels_.begin(), levels_.end());
    for (const Past& past : past_) {
      numbers.insert(numbers.end(), past.levels.begin(), past.levels.end());
      numbers.push_back(static_cast<int64_t>(past.probe_bytes));
    }
    return numbers;
  }

  Status restore(std::span<const int64_t> state) override {
    if (state.size() != this->state().size() || state[0] != static_cast<int64_t>(options_.levels.size()) ||
        state[1] != static_cast<int64_t>(levels_.size()))
      return invalid_control("the state is not one of a controller of " +
                             std::to_string(options_.levels.size()) + " levels and " +
                             std::to_string(levels_.size()) + " buckets");
    const size_t tail = levels_.size() * (past_.size() + 1) + past_.size();
    for (size_t i = state.size() - tail, column = 0; i < state.size(); ++i, ++column) {
      const size_t of_block = column < levels_.size() ? 0 : (column - levels_.size()) % (levels_.size() + 1);
      const bool is_level = column < levels_.size() || of_block < levels_.size();
      if (is_level && (state[i] < 0 || state[i] >= state[0]))
        return invalid_control("the state has a level " + std::to_string(state[i]) + ", and there are " +
                               std::to_string(options_.levels.size()));
    }
    const int64_t* from = state.data() + 2;
    for (uint64_t* number : {&step_, &changes_, &last_change_, &hold_})
      *number = static_cast<uint64_t>(*from++);
    votes_ = static_cast<uint8_t>(*from++);
    probe_at_ = static_cast<uint64_t>(*from++);
    for (int64_t* number : {&byte_ps_then_, &ppm_then_, &predicted_ns_, &uncompressed_ns_}) *number = *from++;
    estimates_.restore(&from);
    for (Guards& guards : guards_) guards.restore(&from);
    for (uint8_t& level : levels_) level = static_cast<uint8_t>(*from++);
    for (Past& past : past_) {
      for (uint8_t& level : past.levels) level = static_cast<uint8_t>(*from++);
      past.probe_bytes = static_cast<uint64_t>(*from++);
    }
    change_.clear();
    agreed_.clear();
    return {};
  }

  uint64_t step() const override { return step_; }
  uint64_t changes() const override { return changes_; }
  int64_t predicted_step_ns() const override { return predicted_ns_; }
  int64_t uncompressed_step_ns() const override { return uncompressed_ns_; }
  double bits_per_second() const override {
    return estimates_.byte_ps() == 0 ? 0 : 8e12 / static_cast<double>(estimates_.byte_ps());
  }
  std::string_view change() const override { return change_; }

  std::string trace_head() const override { return compress::trace_head(options_); }
  std::string trace_buckets() const override {
    return compress::trace_buckets(estimates_.buckets(), state());
  }
  std::string trace_step() const override {
    return compress::trace_step(step_, agreed_, levels_, decision().agreement_values, change_);
  }

 private:
  size_t agreed_values() const { return kHeadNumbers + levels_.size() * kBucketNumbers; }

  // What was agreed on in the last step describes the step before it.
  void learn() {
    estimates_.learn(agreed_, past_[1], past_[2]);
    for (size_t i = 0; i < guards_.size(); ++i)
      guards_[i].learn(bucket_of(agreed_, i), options_, past_[1].levels[i], step_ - 1);
  }

  void decide() {
    std::vector<BucketCost> buckets = estimates_.bucket_costs();
    bool forced = false;
    Levels allowed = levels_;
    for (size_t i = 0; i < buckets.size(); ++i) {
      buckets[i].most = buckets[i].elements == 0 ? 0 : guards_[i].most(options_, step_);
      allowed[i] = std::min(allowed[i], buckets[i].most);
      forced = forced || allowed[i] != levels_[i];
    }
    if (forced) change_to(std::move(allowed), "a guard");
    if (!estimates_.known()) return;
    const Costs costs = estimates_.costs();
    const Choice choice = choose(costs, buckets, std::lround(1000 * options_.payoff), kSlackPercent);
    uncompressed_ns_ = choice.uncompressed_ns;
    const int64_t now_ns = step_ns(costs, buckets, levels_);
    predicted_ns_ = now_ns;
    if (!may_change(choice, now_ns)) return;
    predicted_ns_ = choice.ns;
    hold_ = next_hold();
    last_change_ = step_;
    votes_ = 0;
    byte_ps_then_ = estimates_.byte_ps();
    ppm_then_ = estimates_.retransmitted_ppm();
    char why[96];
    std::snprintf(why, sizeof why, "predicted %.1f ms -> %.1f ms a step", static_cast<double>(now_ns) / 1e6,
                  static_cast<double>(choice.ns) / 1e6);
    change_to(choice.levels, why);
  }

  bool may_change(const Choice& choice, int64_t now_ns) {
    const auto loss = [](const Levels& levels) {
      uint64_t sum = 0;
      for (const uint8_t level : levels) sum += level;
      return sum;
    };
    const auto gains = [&](int64_t percent) { return choice.ns <= now_ns / 100 * (100 - percent); };
    const bool gentler =
        loss(choice.levels) < loss(levels_) && choice.ns <= now_ns / 100 * (100 + kGentlerPercent);
    const bool wants = choice.levels != levels_ && (gains(kGainPercent) || gentler);
    votes_ = static_cast<uint8_t>((votes_ << 1 | (wants ? 1 : 0)) & 7);
    if (!wants) return false;
    if (!gains(kGreatGainPercent) && std::popcount(votes_) < 2) return false;
    if (last_change_ == 0) return true;
    const uint64_t since = step_ - last_change_;
    return since >= hold_ || (since >= kLeastHold && network_has_changed());
  }

  bool network_has_changed() const {
    const int64_t now = estimates_.byte_ps(), then = byte_ps_then_;
    const int64_t ppm = estimates_.retransmitted_ppm() - ppm_then_;
    return 100 * now > kChangePercent * then || kChangePercent * now < 100 * then ||
           std::abs(ppm) > kChangePpm;
  }

  uint64_t next_hold() const {
    if (last_change_ == 0 || network_has_changed()) return kLeastHold;
    if (step_ - last_change_ < 4 * hold_) return std::min(2 * hold_, kLongestHold);
    return std::max(hold_ / 2, kLeastHold);
  }

  void change_to(Levels levels, const char* why) {
    size_t changed = 0, begin = levels.size();
    for (size_t i = 0; i < levels.size(); ++i) {
      if (levels[i] == levels_[i]) continue;
      ++changed;
      begin = std::min(begin, i);
    }
    ++changes_;
    char rate[64] = "";
    if (estimates_.byte_ps() > 0)
      std::snprintf(rate, sizeof rate, ", network %.1f Mbit/s", bits_per_second() / 1e6);
    change_ = "step " + std::to_string(step_) + ": " + std::to_string(changed) + " of " +
              std::to_string(levels.size()) + " buckets, the first from " +
              options_.levels[levels_[begin]].name + " to " + options_.levels[levels[begin]].name + ": " +
              why + rate;
    levels_ = std::move(levels);
  }

  uint64_t probe_bytes() {
    const bool is_unknown = !estimates_.has_dense_traffic(levels_);
    const bool is_due =
        step_ >= probe_at_ || (step_ > 1 && (is_unknown ? estimates_.surprised() : estimates_.wants_burst()));
    if (!is_due || options_.levels.size() == 1) return 0;
    const uint64_t bytes = estimates_.probe_bytes(!is_unknown);
    probe_at_ = step_ + (is_unknown ? probe_period(bytes) : kCalibrationPeriod);
    return bytes;
  }

  uint64_t probe_period(uint64_t bytes) const {
    if (predicted_ns_ == 0) return kLeastProbePeriod;
    const int64_t probe_ns = static_cast<int64_t>(bytes) * estimates_.costs().byte_ps / 1000;
    const int64_t steps = probe_ns / std::max<int64_t>(1, predicted_ns_ / 100 * kProbePercent);
    return std::clamp(static_cast<uint64_t>(steps), kLeastProbePeriod, kMostProbePeriod);
  }

  const CompressionControlOptions options_;
  Estimates estimates_;
  std::vector<Guards> guards_;  // of each bucket
  Levels levels_;
  std::array<Past, 3> past_;  // of this step, and of those before it
  uint64_t step_ = 0, changes_ = 0;
  uint64_t last_change_ = 0, hold_ = kLeastHold;
  uint8_t votes_ = 0;  // for a change, one bit for each of the last three steps
  uint64_t probe_at_ = 2;
  int64_t byte_ps_then_ = 0, ppm_then_ = 0;  // at the last change
  int64_t predicted_ns_ = 0, uncompressed_ns_ = 0;
  std::string change_;
  std::vector<int32_t> agreed_;
};

Status check(const CompressionControlOptions& options) {
  if (options.levels.empty() || options.levels.size() > kMostLevels)
    return invalid_control("there are " + std::to_string(options.levels.size()) +
                           " levels; there must be 1 to " + std::to_string(kMostLevels));
  for (const ControlledLevel& level : options.levels) {
    const auto in_range = [](double value) { return value >= 0 && value <= 1e5; };
    if (!in_range(level.bytes_per_element) || !in_range(level.encode_ns_per_element) ||
        !in_range(level.decode_ns_per_element))
      return invalid_control("the expected costs of the level '" + level.name +
                             "' must be between 0 and 1e5 an element");
  }
  if (!(options.payoff > 0 && options.payoff < 1))
    return invalid_control("payoff is " + std::to_string(options.payoff) +
                           "; it must be above 0 and below 1");
  if (!(options.residual_cap > 0 && options.residual_cap <= 1e9))
    return invalid_control("residual_cap is " + std::to_string(options.residual_cap) +
                           "; it must be above 0 and at most 1e9");
  return {};
}

}  // namespace
}  // namespace compress

Result<std::unique_ptr<CompressionControl>> compression_control(const CompressionControlOptions& options) {
  if (Status status = compress::check(options); !status.ok()) return status;
  return std::unique_ptr<CompressionControl>(std::make_unique<compress::Control>(options));
}

}  // namespace netsum
