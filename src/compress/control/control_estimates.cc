#include "src/compress/control/control_estimates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace netsum::compress {
namespace {

// Fewer bytes tell nothing about the rate of a network.
constexpr int64_t kLeastBytes = 64 << 10;
constexpr uint64_t kLeastProbe = 32 << 10, kMostProbe = 4 << 20;
// A probe has this part of the bytes of an uncompressed step, and a larger one, if it would not take longer than an empty operation.
constexpr uint64_t kProbePart = 256, kLargeProbePart = 32;
// Links and switches let short bursts through at a higher rate than what follows. A probe that is to tell the rate is longer than
// the burst by this factor. One that is to tell the burst has at most so many bytes.
constexpr uint64_t kBurstProbe = 1 << 20;
constexpr int64_t kBeyondBurstPercent = 250;
// Measurements beyond these count as these, so that no product overflows: 100 us an element or a byte, 16 bytes an element.
constexpr int64_t kMostPs = 100'000'000, kMostMilliBytes = 16'000, kMostComputeNs = 1'000'000'000'000;

int32_t clamped(int64_t value) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::clamp(value, -kMost, kMost));
}

int32_t log_of(double norm) {
  if (!(norm >= 0)) return kNoNorm;
  // What is not finite, which the training leaves out, and zero are no reason to compress differently.
  if (!std::isfinite(norm) || norm == 0) return kNoNorm;
  return static_cast<int32_t>(std::lround(256 * std::log2(norm)));
}

int64_t rounded(double value) {
  return std::llround(value);
}

}  // namespace

void to_numbers(const StepRecord& record, std::span<int32_t> numbers) {
  const uint64_t ppm =
      record.packets == 0
          ? 0
          : std::min<uint64_t>(1'000'000, record.retransmissions * 1'000'000 / record.packets);
  const HeadNumbers head{.digest = 0,
                         .negative_digest = 0,
                         .negative_agreement = clamped(record.agree_us - record.agreed_us),
                         .retransmitted_ppm = static_cast<int32_t>(ppm)};
  std::memcpy(numbers.data(), &head, sizeof head);
  // Buckets are computed, summed and decoded one after the other.
  int64_t computed = record.begin_us, summed = record.agreed_us, decoded = 0;
  for (size_t i = 0; i < record.buckets.size(); ++i) {
    const BucketRecord& r = record.buckets[i];
    const BucketNumbers bucket{
        .compute = clamped(r.ready_us - computed),
        .encode = clamped(r.handed_us - r.ready_us),
        .negative_service = clamped(std::max(r.handed_us, summed) - r.summed_us),
        .decode = clamped(r.done_us - std::max(r.summed_us, decoded)),
        .queued = clamped(std::max<int64_t>(0, summed - r.handed_us)),
        .bytes64 = clamped(static_cast<int64_t>((r.sent_bytes + 63) / 64)),
        .gradient_log = log_of(r.gradient_norm),
        .residual_log = log_of(r.residual_norm),
    };
    computed = r.handed_us;
    summed = std::max(summed, r.summed_us);
    decoded = std::max(decoded, r.done_us);
    std::memcpy(&numbers[kHeadNumbers + i * kBucketNumbers], &bucket, sizeof bucket);
  }
}

HeadNumbers head_of(std::span<const int32_t> numbers) {
  HeadNumbers head{};
  std::memcpy(&head, numbers.data(), sizeof head);
  return head;
}

BucketNumbers bucket_of(std::span<const int32_t> numbers, size_t bucket) {
  BucketNumbers found{};
  std::memcpy(&found, &numbers[kHeadNumbers + bucket * kBucketNumbers], sizeof found);
  return found;
}

Estimates::Estimates(const std::vector<ControlledLevel>& levels) {
  for (const ControlledLevel& level : levels)
    levels_.push_back({.expected = {.encode_ps = rounded(1000 * level.encode_ns_per_element),
                                    .decode_ps = rounded(1000 * level.decode_ns_per_element),
                                    .extra_ps = 0,
                                    .milli_bytes = rounded(1000 * level.bytes_per_element)},
                       .encode_ps = {},
                       .decode_ps = {},
                       .extra_ps = {},
                       .milli_bytes = {}});
}

void Estimates::set_buckets(std::span<const ControlledBucket> buckets) {
  buckets_.assign(buckets.begin(), buckets.end());
  compute_ns_.assign(buckets.size(), {});
}

void Estimates::learn(std::span<const int32_t> agreed, const Past& past, const Past& before) {
  const HeadNumbers head = head_of(agreed);
  std::vector<Sums> by_level(levels_.size());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const BucketNumbers numbers = bucket_of(agreed, i);
    const uint8_t level = past.levels[i];
    compute_ns_[i].add(1000 * std::max<int64_t>(0, numbers.compute));
    // The sum of gradients whose size is not known tells nothing.
    if (buckets_[i].elements + buckets_[i].other_bytes == 0) continue;
    // The first step of a level allocates memory.
    if (level != 0 && (before.levels.size() != past.levels.size() || before.levels[i] != level)) continue;
    Sums& sums = by_level[level];
    sums.elements += static_cast<int64_t>(buckets_[i].elements);
    sums.other_bytes += static_cast<int64_t>(buckets_[i].other_bytes);
    sums.encode_us += std::max<int64_t>(0, numbers.encode);
    sums.decode_us += std::max<int64_t>(0, numbers.decode);
    sums.service_us += std::max<int64_t>(0, -static_cast<int64_t>(numbers.negative_service));
    sums.bytes += 64 * static_cast<int64_t>(numbers.bytes64);
    sums.bytes_known = sums.bytes_known && numbers.bytes64 > 0;
    ++sums.count;
  }
  retransmitted_ppm_.add(head.retransmitted_ppm);
  learn_network(head, by_level[0], past.probe_bytes);
  for (size_t level = 0; level < levels_.size(); ++level)
    if (by_level[level].elements > 0) learn_level(level, by_level[level]);
}

void Estimates::learn_network(const HeadNumbers& head, const Sums& dense, uint64_t probe_bytes) {
  surprised_ = false;
  steps_since_burst_ = std::min(steps_since_burst_ + 1, kBurstPeriod);
  const int64_t agreement_ns = -1000 * static_cast<int64_t>(head.negative_agreement);
  if (agreement_ns < 0) return;
  if (probe_bytes == 0) latency_ns_.add(agreement_ns);
  const int64_t latency_ns = latency_ns_.value();
  const auto length = static_cast<int64_t>(probe_bytes);
  const int64_t beyond_latency = (agreement_ns - latency_ns) * 1000;
  int64_t of_probe = 0, of_traffic = 0;
  const int64_t bytes = dense.elements * levels_[0].expected.milli_bytes / 1000 + dense.other_bytes;
  if (bytes >= least_bytes())
    of_traffic = std::max<int64_t>(1, (1000 * dense.service_us - dense.count * latency_ns) * 1000 / bytes);
  if (probe_bytes > 0) {
    if (of_traffic > 0 && wants_burst_) learn_burst(length, beyond_latency, of_traffic);
    of_probe = std::max<int64_t>(1, beyond_latency / std::max(length - burst_bytes_, length / 4));
    if (of_traffic > 0) compare_probe(length, of_probe, of_traffic);
  }
  const int64_t sample = of_traffic > 0 ? of_traffic : of_probe * probe_permille_.value_or(1000) / 1000;
  if (sample == 0) return;
  const int64_t estimate = byte_ps_.value_or(sample);
  const bool is_faster = 3 * sample < 2 * estimate;
  surprised_ = 2 * sample > 3 * estimate || is_faster;
  if (of_traffic == 0 && is_faster && !exceeds_burst(length)) {
    // Perhaps it was let through at once: the next probe, which is due now, tells.
    verifies_ = true;
    least_burst_ = length;
    return;
  }
  if (verifies_ && length >= static_cast<int64_t>(burst_probe())) {
    if (is_faster) byte_ps_.add(std::min(sample, kMostPs));  // twice: it is the second one that says so
    if (!is_faster) set_burst(length, beyond_latency, estimate);
  }
  verifies_ = false;
  byte_ps_.add(std::min(sample, kMostPs));
}

bool Estimates::exceeds_burst(int64_t length) const {
  return length >= static_cast<int64_t>(burst_probe()) || (burst_bytes_ > 0 && length >= 2 * burst_bytes_);
}

void Estimates::compare_probe(int64_t length, int64_t of_probe, int64_t of_traffic) {
  if (!exceeds_latency(length, of_traffic)) return;
  const int64_t permille = of_traffic * 1000 / of_probe;
  probe_permille_.add(std::clamp<int64_t>(permille, 250, 4000));
  if (permille < 500 && burst_bytes_ > 0) want_burst();
  if (permille <= 2000 || length >= static_cast<int64_t>(burst_probe())) return;
  // Most of the probe seems to have been let through at once.
  least_burst_ = length;
  burst_bytes_ = std::max(burst_bytes_, 2 * length);  // until it is known
  probe_permille_ = {};
  want_burst();
}

// Otherwise the network is so fast that the time of such an operation is about that of an empty one.
bool Estimates::exceeds_latency(int64_t length, int64_t of_traffic) const {
  return length * std::min(of_traffic, kMostPs) > 1000 * latency_ns_.value();
}

void Estimates::want_burst() {
  if (steps_since_burst_ >= kBurstPeriod) wants_burst_ = true;
}

void Estimates::learn_burst(int64_t length, int64_t beyond_latency, int64_t of_traffic) {
  wants_burst_ = false;
  steps_since_burst_ = 0;
  if (!exceeds_latency(length, of_traffic)) return;
  set_burst(length, beyond_latency, of_traffic);
  probe_permille_ = {};
}

void Estimates::set_burst(int64_t length, int64_t beyond_latency, int64_t byte_ps) {
  burst_bytes_ = std::clamp(length - beyond_latency / std::max<int64_t>(1, byte_ps),
                            std::min(least_burst_, length), length);
}

void Estimates::learn_level(size_t level, const Sums& sums) {
  Level& known = levels_[level];
  known.encode_ps.add(1'000'000 * sums.encode_us / sums.elements);
  known.decode_ps.add(1'000'000 * sums.decode_us / sums.elements);
  if (sums.bytes_known && sums.bytes > sums.other_bytes)
    known.milli_bytes.add(1000 * (sums.bytes - sums.other_bytes) / sums.elements);
  if (level == 0 || byte_ps_.empty() || surprised_) return;
  const int64_t bytes = sums.other_bytes + sums.elements * cost_of(known).milli_bytes / 1000;
  const int64_t extra_ps =
      1000 * (1000 * sums.service_us - sums.count * latency_ns_.value()) - bytes * byte_ps_.value();
  known.extra_ps.add(std::max<int64_t>(0, extra_ps / sums.elements));
}

bool Estimates::known() const {
  return byte_ps_.full() && latency_ns_.full() &&
         std::all_of(compute_ns_.begin(), compute_ns_.end(), [](const Median& m) { return m.full(); });
}

LevelCost Estimates::cost_of(const Level& level) const {
  const auto known = [](const Median& measured, int64_t expected, int64_t most) {
    return std::clamp<int64_t>(measured.value_or(expected), 0, most);
  };
  return {.encode_ps = known(level.encode_ps, level.expected.encode_ps, kMostPs),
          .decode_ps = known(level.decode_ps, level.expected.decode_ps, kMostPs),
          .extra_ps = known(level.extra_ps, 0, kMostPs),
          .milli_bytes = known(level.milli_bytes, level.expected.milli_bytes, kMostMilliBytes)};
}

Costs Estimates::costs() const {
  Costs costs{.latency_ns = std::clamp<int64_t>(latency_ns_.value(), 0, kMostComputeNs),
              .byte_ps = std::clamp<int64_t>(byte_ps_.value(), 0, kMostPs),
              .levels = {}};
  for (const Level& level : levels_) costs.levels.push_back(cost_of(level));
  return costs;
}

std::vector<BucketCost> Estimates::bucket_costs() const {
  std::vector<BucketCost> costs;
  for (size_t i = 0; i < buckets_.size(); ++i)
    costs.push_back({.compute_ns = std::clamp<int64_t>(compute_ns_[i].value(), 0, kMostComputeNs),
                     .elements = buckets_[i].elements,
                     .other_bytes = buckets_[i].other_bytes,
                     .most = 0});
  return costs;
}

bool Estimates::has_dense_traffic(const Levels& levels) const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < levels.size(); ++i)
    if (levels[i] == 0) bytes += dense_bytes(buckets_[i]);
  return bytes >= static_cast<uint64_t>(least_bytes());
}

uint64_t Estimates::dense_bytes(const ControlledBucket& bucket) const {
  return bucket.elements * static_cast<uint64_t>(levels_[0].expected.milli_bytes) / 1000 + bucket.other_bytes;
}

uint64_t Estimates::dense_bytes() const {
  uint64_t bytes = 0;
  for (const ControlledBucket& bucket : buckets_) bytes += dense_bytes(bucket);
  return bytes;
}

// Fewer bytes of uncompressed buckets tell nothing about the rate of the network.
int64_t Estimates::least_bytes() const {
  return std::max(kLeastBytes, static_cast<int64_t>(beyond_burst()));
}

// What tells the rate of the network though its burst is let through at once, or the longest probe.
uint64_t Estimates::beyond_burst() const {
  return std::min(static_cast<uint64_t>(burst_bytes_ * kBeyondBurstPercent / 100), longest_probe());
}

// As long as the largest bucket at most, whose sum is as long anyway.
uint64_t Estimates::longest_probe() const {
  uint64_t bytes = 0;
  for (const ControlledBucket& bucket : buckets_) bytes = std::max(bytes, dense_bytes(bucket));
  return std::clamp(bytes, kLeastProbe, kMostProbe);
}

uint64_t Estimates::burst_probe() const {
  return std::min(longest_probe(), kBurstProbe);
}

uint64_t Estimates::probe_bytes(bool has_traffic) const {
  if (has_traffic ? wants_burst_ : verifies_) return burst_probe();
  uint64_t bytes = dense_bytes() / kProbePart;
  if (!byte_ps_.empty() && !latency_ns_.empty()) {
    const auto as_long_as_latency =
        static_cast<uint64_t>(1000 * latency_ns_.value() / std::max<int64_t>(1, byte_ps_.value()));
    bytes = std::max(bytes, std::min(as_long_as_latency, dense_bytes() / kLargeProbePart));
  }
  return std::max(std::clamp(bytes, kLeastProbe, kMostProbe), beyond_burst());
}

void Estimates::save(std::vector<int64_t>* to) const {
  for (const Level& level : levels_)
    for (const Median* median : {&level.encode_ps, &level.decode_ps, &level.extra_ps, &level.milli_bytes})
      median->save(to);
  for (const Median* median : {&latency_ns_, &byte_ps_, &retransmitted_ppm_, &probe_permille_})
    median->save(to);
  for (const int64_t number : {int64_t{surprised_}, int64_t{wants_burst_}, int64_t{verifies_},
                               steps_since_burst_, least_burst_, burst_bytes_})
    to->push_back(number);
  for (const Median& median : compute_ns_) median.save(to);
}

void Estimates::restore(const int64_t** from) {
  for (Level& level : levels_)
    for (Median* median : {&level.encode_ps, &level.decode_ps, &level.extra_ps, &level.milli_bytes})
      median->restore(from);
  for (Median* median : {&latency_ns_, &byte_ps_, &retransmitted_ppm_, &probe_permille_})
    median->restore(from);
  for (bool* flag : {&surprised_, &wants_burst_, &verifies_}) *flag = *(*from)++ != 0;
  steps_since_burst_ = std::clamp<int64_t>(*(*from)++, 0, kBurstPeriod);
  for (int64_t* bytes : {&least_burst_, &burst_bytes_})
    *bytes = std::clamp<int64_t>(*(*from)++, 0, static_cast<int64_t>(kMostProbe));
  for (Median& median : compute_ns_) median.restore(from);
}

}  // namespace netsum::compress
