// For tests of the controller: a model of a job's computation and network, in which it decides. Deterministic.
#ifndef NETSUM_SRC_COMPRESS_CONTROL_CONTROL_WORLD_H_
#define NETSUM_SRC_COMPRESS_CONTROL_CONTROL_WORLD_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "netsum/compression_control.h"
#include "src/base/rng.h"

namespace netsum::compress {

struct WorldLevel {
  std::string name;
  double bytes_per_element = 4, encode_ns = 0, decode_ns = 0;
  double extra_ns = 0;  // of the sum, an element, which the controller is not told
};

// What real machines of one core need, about: docs/compression.md.
inline std::vector<WorldLevel> usual_levels() {
  return {{"none", 4, 0, 0, 0},
          {"bf16", 2, 0.3, 0.2, 0},
          {"int8", 1.34, 0.9, 0.5, 0},
          {"topk 1 %", 0.12, 2.5, 0.8, 0.5}};
}

struct WorldBucket {
  uint64_t elements = 0;
  double compute_us = 0;
};

// A job of several ranks. Every step, the ranks compute with noise, the network sums a bucket when the last rank has handed it over,
// and each rank gets the result at the same time.
class World {
 public:
  World(std::vector<WorldLevel> levels, std::vector<WorldBucket> buckets, int ranks, uint64_t seed)
      : levels_(std::move(levels)), buckets_(std::move(buckets)), records_(ranks), random_(seed) {
    for (StepRecord& record : records_) record.buckets.resize(buckets_.size());
  }

  double rate_bits = 1e9;
  double latency_us = 200;
  double loss = 0;         // of packets; each loss costs a time-out of the step
  double noise = 0;        // relative, of every time
  double slow_rank = 0;    // by what part the last rank computes slower
  double burst_bytes = 0;  // that a link which has been idle lets through at the rate of the machine

  // Returns the time of the step in microseconds. `agreement_values`: of the operation of the step's agreement; 0: there is none.
  double step(std::span<const uint8_t> levels, size_t agreement_values) {
    const double begin = now_us_;
    double network = begin, end = begin;
    uint64_t packets = 0, retransmissions = 0;
    const auto sum_us = [&](double bytes, double now) {
      const auto count = static_cast<uint64_t>(bytes / 1400) + 1;
      packets += count;
      double us = latency_us * jitter() + shaped_us(bytes, now) * jitter();
      // Windows of packets wait for those that were lost.
      const double lost = loss * static_cast<double>(count);
      retransmissions += static_cast<uint64_t>(lost);
      us += lost / 16 * 1000 + (random_.chance(lost - std::floor(lost)) ? 1000 : 0);
      return us;
    };
    std::vector<double> computed(records_.size(), begin), decoded(records_.size(), begin);
    for (size_t r = 0; r < records_.size(); ++r) records_[r].begin_us = us(begin);
    for (size_t i = 0; i < buckets_.size(); ++i) {
      const WorldLevel& level = levels_[levels.empty() ? 0 : levels[i]];
      const auto elements = static_cast<double>(buckets_[i].elements);
      double handed = 0, ready = 0;
      for (size_t r = 0; r < records_.size(); ++r) {
        const double slower = r + 1 == records_.size() ? 1 + slow_rank : 1;
        computed[r] += buckets_[i].compute_us * slower * jitter();
        ready = std::max(ready, computed[r]);
        records_[r].buckets[i].ready_us = us(computed[r]);
        if (i == 0) records_[r].agree_us = us(computed[r]);
        computed[r] += elements * level.encode_ns / 1000 * jitter();
        records_[r].buckets[i].handed_us = us(computed[r]);
        handed = std::max(handed, computed[r]);
      }
      if (i == 0) {
        network =
            ready + (agreement_values == 0 ? 0 : sum_us(4.0 * static_cast<double>(agreement_values), ready));
        for (StepRecord& record : records_) record.agreed_us = us(network);
      }
      const double bytes = elements * level.bytes_per_element;
      network = std::max(network, handed);
      network += sum_us(bytes, network) + elements * level.extra_ns / 1000 * jitter();
      for (size_t r = 0; r < records_.size(); ++r) {
        decoded[r] = std::max(decoded[r], network) + elements * level.decode_ns / 1000 * jitter();
        records_[r].buckets[i].summed_us = us(network);
        records_[r].buckets[i].done_us = us(decoded[r]);
        records_[r].buckets[i].sent_bytes = static_cast<uint64_t>(bytes);
        end = std::max({end, decoded[r], computed[r]});
      }
    }
    for (StepRecord& record : records_) {
      record.packets = packets;
      record.retransmissions = retransmissions;
    }
    now_us_ = end;
    return end - begin;
  }

  std::vector<StepRecord>& records() { return records_; }
  const std::vector<WorldLevel>& levels() const { return levels_; }
  const std::vector<WorldBucket>& buckets() const { return buckets_; }

 private:
  // Of a token bucket.
  double shaped_us(double bytes, double now) {
    constexpr double kMachineBits = 25e9;
    const double byte_us = 8e6 / rate_bits, fast_us = 8e6 / std::max(rate_bits, kMachineBits);
    tokens_ = std::min(burst_bytes, tokens_ + (now - filled_us_) / byte_us);
    const double at_once = std::min(bytes, tokens_);
    const double us = at_once * fast_us + (bytes - at_once) * byte_us;
    tokens_ -= at_once;
    filled_us_ = now + us;
    return us;
  }
  static int64_t us(double time) { return static_cast<int64_t>(time); }
  // About log-normal, by the sum of uniform numbers.
  double jitter() {
    if (noise == 0) return 1;
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += random_.unit() - 0.5;
    return std::exp(noise * sum * std::sqrt(3.0));
  }

  std::vector<WorldLevel> levels_;
  std::vector<WorldBucket> buckets_;
  std::vector<StepRecord> records_;
  Rng random_;
  double now_us_ = 0;
  double tokens_ = 0, filled_us_ = 0;
};

// The controllers of all ranks of a world, which agree as a job does.
class ControlledJob {
 public:
  ControlledJob(World& world, CompressionControlOptions options)
      : norms(world.buckets().size()), world_(world) {
    for (const WorldLevel& level : usual_levels())
      options.levels.push_back({.name = level.name,
                                .bytes_per_element = level.bytes_per_element,
                                .encode_ns_per_element = level.encode_ns,
                                .decode_ns_per_element = level.decode_ns});
    std::vector<ControlledBucket> buckets;
    for (const WorldBucket& bucket : world.buckets())
      buckets.push_back({.elements = bucket.elements, .other_bytes = 0});
    for (size_t r = 0; r < world.records().size(); ++r) {
      auto made = compression_control(options);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      ranks_.push_back(std::move(made).value());
      EXPECT_TRUE(ranks_.back()->set_buckets(buckets).ok());
    }
  }

  struct Norms {
    double gradient = 1, residual = 0;
  };
  std::vector<Norms> norms;  // of each bucket

  CompressionControl& rank(size_t index) { return *ranks_[index]; }
  size_t ranks() const { return ranks_.size(); }

  // Returns the time of the step.
  double step() {
    const std::vector<int32_t> agreed = agreed_;
    for (const auto& control : ranks_) {
      const Status status = control->begin_step(agreed);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    const CompressionDecision first = ranks_.front()->decision();
    for (const auto& control : ranks_) {
      const CompressionDecision mine = control->decision();
      EXPECT_TRUE(
          std::equal(first.levels.begin(), first.levels.end(), mine.levels.begin(), mine.levels.end()));
      EXPECT_EQ(mine.agreement_values, first.agreement_values);
    }
    agreed_.assign(first.agreement_values, has_record_ ? std::numeric_limits<int32_t>::min() : 0);
    std::vector<int32_t> mine(first.agreement_values);
    for (size_t r = 0; has_record_ && r < ranks_.size(); ++r) {
      EXPECT_TRUE(ranks_[r]->measurement(world_.records()[r], mine).ok());
      for (size_t i = 0; i < mine.size(); ++i) agreed_[i] = std::max(agreed_[i], mine[i]);
    }
    has_record_ = true;
    const double us = world_.step(first.levels, first.agreement_values);
    for (StepRecord& record : world_.records()) {
      for (size_t i = 0; i < record.buckets.size(); ++i) {
        record.buckets[i].gradient_norm = first.wants_norms ? norms[i].gradient : -1;
        record.buckets[i].residual_norm = first.wants_norms ? norms[i].residual : -1;
      }
    }
    return us;
  }

 private:
  World& world_;
  std::vector<std::unique_ptr<CompressionControl>> ranks_;
  std::vector<int32_t> agreed_;
  bool has_record_ = false;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_CONTROL_CONTROL_WORLD_H_
