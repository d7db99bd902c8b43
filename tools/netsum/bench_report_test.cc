#include "tools/netsum/bench_report.h"

#include <gtest/gtest.h>

namespace netsum::tool::bench_report_test {
namespace {

Json iteration(int n, int64_t time_us, uint64_t checksum, uint64_t wrong = 0) {
  return {{"event", "iteration"},
          {"n", n},
          {"timed", n > 0},
          {"time_us", time_us},
          {"verified", 1},
          {"wrong", wrong},
          {"first_wrong", wrong > 0 ? "element 3: got 1, expected 2" : ""},
          {"worst_error", 0.0},
          {"squared_error", 0.09},
          {"squared_expected", 4.0},
          {"checksum", checksum}};
}

BenchReport two_ranks() {
  BenchSettings settings;
  settings.bytes = 1'000'000;
  settings.iterations = 2;
  settings.warmup = 1;
  return {settings, 1500, 2, "netsum bench allreduce"};
}

TEST(BenchReportTest, AnIterationTakesAsLongAsItsSlowestRankAndWarmupDoesNotCount) {
  BenchReport report = two_ranks();
  const int64_t times[3][2] = {{90'000, 90'000}, {1000, 2000}, {4000, 3000}};
  for (int n = 0; n < 3; ++n) {
    for (int rank = 0; rank < 2; ++rank) report.on_event(rank, iteration(n, times[n][rank], 7));
  }
  const Json json = report.to_json();
  EXPECT_EQ(json.at("time_us").at("min"), 2000);
  EXPECT_EQ(json.at("time_us").at("max"), 4000);
  EXPECT_EQ(json.at("time_us").at("median"), 3000) << "the median of two is their mean";
  EXPECT_DOUBLE_EQ(json.at("algorithm_bandwidth_bytes_per_s").get<double>(), 1e6 / 3e-3);
  EXPECT_EQ(json.at("results_verified"), 6);
  EXPECT_TRUE(report.verified());
}

TEST(BenchReportTest, OtherBitsOnOneRankAreNotVerified) {
  BenchReport report = two_ranks();
  report.on_event(0, iteration(0, 1000, 7));
  report.on_event(1, iteration(0, 1000, 8));
  EXPECT_FALSE(report.verified());
  EXPECT_NE(report.to_json().at("first_wrong").get<std::string>().find("other bits"), std::string::npos);
}

TEST(BenchReportTest, CompressedMeansHaveARelativeError) {
  BenchSettings settings;
  settings.compression = CompressionOptions{.method = "topk", .ratio = 0.01};
  BenchReport report(settings, 1500, 2, "netsum bench allreduce");
  EXPECT_EQ(report.to_json().at("relative_error"), 0);
  for (int rank = 0; rank < 2; ++rank) report.on_event(rank, iteration(1, 1000, 7));
  const Json json = report.to_json();
  EXPECT_DOUBLE_EQ(json.at("relative_error").get<double>(), 0.15);
  EXPECT_NE(json.at("compression").get<std::string>().find("topk"), std::string::npos);
  EXPECT_NE(report.to_table().find("relative error of the means: 0.1500"), std::string::npos);
  EXPECT_FALSE(two_ranks().to_json().contains("relative_error"));
}

TEST(BenchReportTest, AWrongResultIsNamed) {
  BenchReport report = two_ranks();
  report.on_event(1, iteration(0, 1000, 7, 1));
  EXPECT_FALSE(report.verified());
  EXPECT_EQ(report.to_json().at("first_wrong"), "rank 1, iteration 0, element 3: got 1, expected 2");
}

TEST(BenchReportTest, NothingCheckedOrARankThatFailedIsNotVerified) {
  BenchReport report = two_ranks();
  EXPECT_FALSE(report.verified());
  report.on_event(0, iteration(0, 1000, 7));
  EXPECT_TRUE(report.verified());
  report.on_event(1, {{"event", "error"}, {"message", "timeout: waited 30 s for rank 0"}});
  EXPECT_FALSE(report.verified());
  EXPECT_TRUE(report.has_ended(1));
  EXPECT_EQ(report.failures().at(1), "timeout: waited 30 s for rank 0");
}

}  // namespace
}  // namespace netsum::tool::bench_report_test
