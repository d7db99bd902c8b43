// Others flood the aggregator of a job, with and without a key. They get no more than their quota, and its
// sums stay right. What that costs the job: bench/netsum_bench/labs/jobs.py.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/attack/flood.h"

namespace netsum::attack::flood_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{120};
// Less than an aggregator can read: more would only show that sockets have limits.
constexpr uint64_t kFlood = 60'000;

std::unique_ptr<Aggregator> start(int64_t job_packets_per_second) {
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  options.job_packets_per_second = job_packets_per_second;
  auto aggregator = Aggregator::start(options);
  EXPECT_TRUE(aggregator.ok()) << aggregator.status().to_string();
  return aggregator.ok() ? std::move(aggregator).value() : nullptr;
}

// False if the counter does not get there in time.
bool wait_for(const Aggregator& aggregator, const char* name, uint64_t value) {
  const auto deadline = Clock::now() + kPatience;
  while (counter(aggregator, name) < value) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// The job gets on while the flood lasts, and ends well after it.
void expect_sums_under(Flood& flood, QuietJob& job) {
  const uint64_t sums = job.sums();
  const auto deadline = Clock::now() + kPatience;
  while (job.sums() < sums + 5 && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_GE(job.sums(), sums + 5) << "the job sums under the flood";
  flood.stop();
  const Status ended = job.end();
  EXPECT_TRUE(ended.ok()) << ended.to_string();
}

TEST(Flood, ForgedPacketsAreRefusedAndTheJobGoesOn) {
  const auto aggregator = start(0);
  ASSERT_NE(aggregator, nullptr);
  QuietJob job(aggregator->control_address());
  auto flood = Flood::of_forgeries(aggregator->control_address(), kFlood);
  ASSERT_TRUE(flood.ok()) << flood.status().to_string();
  EXPECT_TRUE(wait_for(*aggregator, "drop_bad_check", 100'000));
  expect_sums_under(*flood.value(), job);
  // Nothing was taken in but what the two ranks of each round have sent.
  EXPECT_EQ(counter(*aggregator, "contributions"),
            QuietJob::kRanks * counter(*aggregator, "rounds_completed"));
  EXPECT_EQ(counter(*aggregator, "mismatches"), 0u);
}

TEST(Flood, ATenantGetsItsQuotaAndNoMore) {
  constexpr int64_t kRate = 20'000;
  const auto aggregator = start(kRate);
  ASSERT_NE(aggregator, nullptr);
  QuietJob job(aggregator->control_address());
  const auto began = Clock::now();
  auto flood = Flood::of_tenant(aggregator->control_address(), kFlood);
  ASSERT_TRUE(flood.ok()) << flood.status().to_string();
  EXPECT_TRUE(wait_for(*aggregator, "drop_over_rate", 100'000));
  expect_sums_under(*flood.value(), job);
  EXPECT_EQ(counter(*aggregator, "mismatches"), 0u);
  // Both jobs together cannot have more answers than both their quotas, with what each had saved up.
  const std::chrono::duration<double> lasted = Clock::now() - began;
  EXPECT_LE(static_cast<double>(counter(*aggregator, "results_repeated")),
            2 * kRate * (lasted.count() + 0.2));
  EXPECT_GT(counter(*aggregator, "results_repeated"), 0u);
}

}  // namespace
}  // namespace netsum::attack::flood_test
