#include "src/bursts/bursts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "src/base/rng.h"
#include "src/base/soak.h"
#include "src/bursts/bins.h"
#include "src/bursts/meter.h"

namespace netsum::bursts::bursts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kUs = 1'000;
constexpr int64_t kMs = 1'000'000;
constexpr uint64_t kPerUs = 1'000'000;  // bytes per second in a byte per microsecond

using Arrivals = std::vector<Arrival>;

// `periods` bursts of 64 packets of 1500 bytes, one packet every 12 us: 1 Gbit/s.
Arrivals on_off(int64_t period_ns, int periods, int64_t offset_ns = 0) {
  Arrivals log;
  for (int p = 0; p < periods; ++p) {
    for (int i = 0; i < 64; ++i) log.push_back({offset_ns + p * period_ns + i * 12 * kUs, 1500});
  }
  return log;
}

Arrivals merged(const std::vector<Arrivals>& logs) {
  Arrivals all;
  for (const Arrivals& log : logs) all.insert(all.end(), log.begin(), log.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at_ns < b.at_ns; });
  return all;
}

TEST(Bursts, OnOffTraffic) {
  const Arrivals log = on_off(10 * kMs, 1000);
  EXPECT_EQ(envelope(log, 756 * kUs), 96'000u);
  EXPECT_EQ(envelope(log, 756 * kUs - 1),
            94'500u);  // the window is closed: it had the first and the last packet
  EXPECT_EQ(envelope(log, 0), 1500u);
  EXPECT_NEAR(*peak_to_mean(log, 756 * kUs), 13.2, 0.05);
  EXPECT_EQ(backlog(log, 50 * kPerUs), 58'200);
  EXPECT_EQ(backlog(log, 0), 96'000'000);
  EXPECT_EQ(backlog(log, 125 * kPerUs), 1500);
}

TEST(Bursts, PeakToMeanBySixtyNeedsALongPeriod) {
  EXPECT_GT(*peak_to_mean(on_off(400 * kMs, 100), 5 * kMs), 60);
  EXPECT_GT(*peak_to_mean(on_off(310 * kMs, 100), 5 * kMs), 60);
  EXPECT_LT(*peak_to_mean(on_off(290 * kMs, 100), 5 * kMs), 60);
}

TEST(Bursts, PeakToMeanFollowsTheFormula) {
  const int64_t period = 10 * kMs;
  const Arrivals log = on_off(period, 1000);
  for (const int64_t tau : geometric_grid(100 * kUs, period)) {
    // Burst b at rate R every T: T R / b up to b / R, then T / tau. A packet is what the formula does not know.
    const double expected =
        static_cast<double>(period) / std::max<double>(static_cast<double>(tau), 64 * 12 * kUs);
    const double packet = 1500.0 / (static_cast<double>(tau) * 1e-9 * *mean_rate(log, span_ns(log)));
    EXPECT_NEAR(*peak_to_mean(log, tau), expected, packet + 0.01 * expected) << tau;
  }
}

TEST(Bursts, JobsInAndOutOfPhase) {
  const auto both = [](int64_t offset) {
    return merged({on_off(10 * kMs, 10), on_off(10 * kMs, 10, offset)});
  };
  EXPECT_EQ(backlog(both(0), 125 * kPerUs), 97'500);
  EXPECT_EQ(backlog(both(400 * kUs), 125 * kPerUs), 47'500);
  EXPECT_EQ(backlog(both(768 * kUs), 125 * kPerUs), 1500);
}

TEST(Bursts, FanIn) {
  const Arrivals log = merged(std::vector<Arrivals>(8, on_off(10 * kMs, 1)));
  // b (N - r / R), and the packets that are already there when the first one leaves.
  EXPECT_EQ(backlog(log, 125 * kPerUs), 672'000 + 1500);
}

TEST(Bursts, GapsBurstsAndQuantiles) {
  const Arrivals log = on_off(10 * kMs, 3);
  const std::vector<Burst> bursts = bursts_of(log, 12 * kUs);
  ASSERT_EQ(bursts.size(), 3u);
  EXPECT_EQ(bursts[1].from_ns, 10 * kMs);
  EXPECT_EQ(bursts[1].to_ns, 10 * kMs + 756 * kUs);
  EXPECT_EQ(bursts[1].bytes, 96'000u);
  EXPECT_EQ(bursts[1].arrivals, 64u);
  EXPECT_EQ(bursts_of(log, 12 * kUs - 1).size(), log.size());
  const std::vector<int64_t> gaps = idle_gaps(log);
  EXPECT_EQ(gaps.size(), 191u);
  EXPECT_EQ(quantile(gaps, 0.98), 12 * kUs);
  EXPECT_EQ(quantile(gaps, 0.99), 10 * kMs - 756 * kUs);
  const std::vector<int> four = {1, 2, 3, 4};
  EXPECT_EQ(quantile(four, 0.0), 1);
  EXPECT_EQ(quantile(four, 0.5), 2);
  EXPECT_EQ(quantile(four, 0.51), 3);
  EXPECT_EQ(quantile(four, 1.0), 4);
}

TEST(Bursts, EmptyAndShortLogs) {
  EXPECT_EQ(envelope({}, 5), 0u);
  EXPECT_EQ(backlog({}, 5), 0);
  EXPECT_EQ(BacklogCurve({}).at(5), 0);
  EXPECT_THAT(bursts_of({}, 5), IsEmpty());
  EXPECT_THAT(idle_gaps({}), IsEmpty());
  const Arrivals one = {{7, 100}};
  EXPECT_EQ(peak_to_mean(one, 5), std::nullopt);
  EXPECT_EQ(BacklogCurve(one).at(5), 100);
}

TEST(Bursts, WrongLogsAreRefused) {
  const auto refused = [](const Arrivals& log, const std::string& words) {
    const Status status = check_log(log);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  EXPECT_TRUE(check_log(on_off(10 * kMs, 2)).ok());
  refused({{5, 1}, {4, 1}}, "arrival 2 is earlier");
  refused({{INT64_MIN, 1}, {INT64_MAX, 1}}, "arrival 2 is more than 2^62 ns after");
  refused({{0, uint64_t{1} << 49}, {1, uint64_t{1} << 49}}, "up to arrival 2");
  refused({{0, UINT64_MAX}, {1, 2}}, "up to arrival 1");
}

TEST(Grid, HasEightPerDecade) {
  const std::vector<int64_t> grid = geometric_grid();
  EXPECT_EQ(grid.size(), 57u);
  EXPECT_EQ(grid.front(), kUs);
  EXPECT_EQ(grid[8], 10 * kUs);
  EXPECT_EQ(grid.back(), 10'000 * kMs);
}

TEST(Bins, RefuseTooManyAndSayWhatIsEnough) {
  const Arrivals log = {{0, 1}, {int64_t{1} << 40, 1}};
  const auto bins = bins_of(log, 1000, 0);
  EXPECT_EQ(bins.status().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(bins.status().message(), HasSubstr("take bins of 262145 ns or more"));
  EXPECT_FALSE(bins_of(log, 262'144, 0).ok());
  EXPECT_TRUE(bins_of(log, 262'145, 0).ok());
}

TEST(Bins, AutocorrelationFindsThePeriod) {
  const std::vector<uint64_t> bins = *bins_of(on_off(10 * kMs, 20), kMs, 0);
  const std::vector<double> correlation = autocorrelation(bins, 15);
  ASSERT_EQ(correlation.size(), 16u);
  EXPECT_EQ(correlation[0], 1);
  EXPECT_EQ(std::max_element(correlation.begin() + 1, correlation.end()) - correlation.begin(), 10);
  EXPECT_THAT(autocorrelation(std::vector<uint64_t>{3, 3, 3}, 2), IsEmpty());
  EXPECT_THAT(autocorrelation({}, 2), IsEmpty());
}

TEST(Bins, SynchronisedIfMoreThanHalfOfThePortsAreMoreThanHalfFull) {
  const std::vector<PortBins> ports = {
      {{51, 51, 50, 0}, 100}, {{51, 51, 51, 100}, 100}, {{0, 9, 51}, 10}, {{51}, 100}};
  EXPECT_THAT(synchronised_bins(ports), ElementsAre(0, 1));
  EXPECT_THAT(synchronised_bins(std::span(ports).first(3)), ElementsAre(0, 1, 2));
}

TEST(Meter, CountsBinsAndTimesThatStepBack) {
  Meter meter(160, kMs);
  EXPECT_EQ(meter.rate(0), 10u);
  EXPECT_EQ(meter.rate(15), 160u);
  meter.add(0, 1000);
  meter.add(kMs - 1, 24);
  EXPECT_EQ(meter.largest_bin(), 0u);  // it is not complete
  meter.add(10 * kMs, 1025);
  EXPECT_EQ(meter.largest_bin(), 1024u);
  EXPECT_EQ(meter.bins(0), 1u);
  meter.add(9 * kMs, 1);
  EXPECT_EQ(meter.time_steps_back(), 1u);
  meter.add(11 * kMs, uint64_t{1} << 40);
  EXPECT_EQ(meter.bins(1), 1u);
  meter.add(12 * kMs, 1);
  EXPECT_EQ(meter.bins(Meter::kBinBuckets), 1u);
  EXPECT_EQ(meter.bytes(), 1000u + 24 + 1025 + 1 + (uint64_t{1} << 40) + 1);
}

TEST(Meter, AddsUpWithOthersOfTheSameLink) {
  Bursts all;
  for (const uint64_t bytes_per_s : {1'600'000u, 0u}) {
    Meter meter(bytes_per_s, kMs);
    for (int ms = 0; ms < 12; ++ms) meter.add(ms * kMs, 1000);
    EXPECT_EQ(meter.largest_long_bin(), 10'000u);
    meter.add_to(&all);
  }
  // A server of a 16th, 100 bytes in a millisecond, has all but what it serves until the last ones come; one of the rate has 1000.
  EXPECT_EQ(all.backlog_bytes.size(), Meter::kRates) << "of the one whose rate is known";
  EXPECT_EQ(all.backlog_bytes.front(), 12'000u - 11 * 100);
  EXPECT_EQ(all.backlog_bytes.back(), 1000u);
  EXPECT_EQ(all.bytes, 24'000u);
  EXPECT_EQ(all.largest_ms_bytes, 2000u);
  EXPECT_EQ(all.largest_10ms_bytes, 20'000u);
  EXPECT_EQ(all.milliseconds.front(), 22u);
}

// Up to 60 arrivals with ties, lulls and crowds.
Arrivals random_log(Rng& rng) {
  Arrivals log(1 + rng.below(60));
  int64_t now = static_cast<int64_t>(rng.below(1000)) - 500;
  for (Arrival& arrival : log) {
    now += static_cast<int64_t>(rng.chance(0.3) ? 0 : rng.below(rng.chance(0.1) ? 100'000 : 1000));
    arrival = {now, rng.below(2000)};
  }
  return log;
}

uint64_t bytes_between(const Arrivals& log, int64_t from, int64_t to) {
  uint64_t bytes = 0;
  for (const Arrival& arrival : log)
    bytes += arrival.at_ns >= from && arrival.at_ns <= to ? arrival.bytes : 0;
  return bytes;
}

TEST(RandomLogs, AgreeWithTheDefinitions) {
  const char* given = std::getenv("NETSUM_SIM_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 41;
  SCOPED_TRACE("replay: NETSUM_SIM_SEED=" + std::to_string(seed));
  Rng rng(seed);
  const int logs = soak() ? 1000 : 100;
  for (int n = 0; n < logs; ++n) {
    SCOPED_TRACE("log " + std::to_string(n));
    const Arrivals log = random_log(rng);
    ASSERT_TRUE(check_log(log).ok());
    // Bursts begin and end with arrivals.
    std::vector<Arrival> windows;  // length, bytes
    for (const Arrival& first : log) {
      for (const Arrival& last : log) {
        if (last.at_ns >= first.at_ns)
          windows.push_back({last.at_ns - first.at_ns, bytes_between(log, first.at_ns, last.at_ns)});
      }
    }
    for (int i = 0; i < 20; ++i) {
      const auto tau = static_cast<int64_t>(rng.below(uint64_t{1} << rng.below(22)));
      uint64_t most = 0;
      for (const Arrival& window : windows) most = std::max(most, window.at_ns <= tau ? window.bytes : 0);
      ASSERT_EQ(envelope(log, tau), most) << tau;
    }
    const BacklogCurve curve(log);
    const uint64_t link = 16 * (1 + rng.below(uint64_t{1} << rng.below(36)));
    Meter meter(link, 1000);
    for (const Arrival& arrival : log) meter.add(arrival.at_ns, arrival.bytes);
    for (size_t i = 0; i < Meter::kRates; ++i) {
      const uint64_t rate = meter.rate(i);
      double most = 0;
      for (const Arrival& window : windows) {
        const __int128 exact =
            static_cast<__int128>(window.bytes) * 1'000'000'000 - static_cast<__int128>(rate) * window.at_ns;
        most = std::max(most, static_cast<double>(exact) * 1e-9);
      }
      ASSERT_EQ(backlog(log, rate), most) << rate;
      ASSERT_EQ(curve.at(rate), most) << rate;
      ASSERT_NEAR(static_cast<double>(meter.backlog(i)), most, 1) << rate;
    }
    const int64_t width = 1 + static_cast<int64_t>(rng.below(5000));
    const int64_t from = log[0].at_ns - static_cast<int64_t>(rng.below(5000));
    const std::vector<uint64_t> bins = *bins_of(log, width, from);
    for (size_t k = 1; k <= 5; ++k) {
      const uint64_t exact = envelope(log, static_cast<int64_t>(k) * width);
      ASSERT_LE(most_in_bins(bins, k), exact);
      ASSERT_GE(most_in_bins(bins, k + 1), exact);
    }
  }
}

}  // namespace
}  // namespace netsum::bursts::bursts_test
