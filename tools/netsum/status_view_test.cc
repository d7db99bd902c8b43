#include "tools/netsum/status_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "src/base/text.h"

namespace netsum::tool::status_view_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RemoteStatus look(uint64_t packets, uint64_t sums, std::vector<uint64_t> waited_ms, uint64_t age_ms) {
  RemoteStatus remote;
  remote.dataplane = "user-space";
  remote.status.version = "1.2.3";
  remote.status.slots_per_core = 1024;
  remote.status.slots_free = 752;
  remote.status.counters = {
      {"packets_received", packets}, {"bytes_received", packets * 1000}, {"drop_too_short", 4}};
  AggregatorJobStatus job;
  job.name = "mine";
  job.world_size = 2;
  job.joined = {0, 1};
  job.hosts = {"10.0.0.1", "10.0.0.2"};
  job.state = "running";
  job.age_ms = age_ms;
  job.sums = sums;
  job.payload_bytes = 1440;
  job.waited_ms = std::move(waited_ms);
  remote.status.jobs = {job};
  return remote;
}

TEST(StatusViewTest, RatesAreThoseBetweenTheLooks) {
  const Json report =
      status_report("a:1", look(1000, 50, {0, 100}, 1000), look(3000, 150, {0, 1100}, 3000), 2);
  EXPECT_DOUBLE_EQ(report.at("packets_received_per_s"), 1000);
  EXPECT_DOUBLE_EQ(report.at("received_gbits_per_s"), 0.008);
  EXPECT_DOUBLE_EQ(report.at("dropped_per_s"), 0);
  EXPECT_EQ(report.at("slots_in_use"), 272);
  const Json& job = report.at("jobs").at(0);
  EXPECT_DOUBLE_EQ(job.at("sums_per_s"), 50);
  ASSERT_EQ(job.at("late").size(), 1u) << job;
  EXPECT_EQ(job.at("late").at(0).at("rank"), 1);
  EXPECT_DOUBLE_EQ(job.at("late").at(0).at("share"), 0.5);
  EXPECT_THAT(status_text(report), HasSubstr("rank 1 late 50 % of the time"));
  EXPECT_THAT(status_text(report), HasSubstr("1=10.0.0.2"));
}

TEST(StatusViewTest, NamesWhatIsAtFault) {
  RemoteStatus now = look(0, 0, {}, 5000);
  now.status.jobs[0].faults = {{{1}, "loss_to_aggregator", 0.0051, 0.0001, ""},
                               {{0, 1}, "slow", 0.0041, 0.0002, ""},
                               {{0}, "slow", 0.0041, 0.0002, "link"},
                               {{1}, "slow", 0.0041, 0.0002, "host"}};
  const std::string text = status_text(status_report("a:1", now, now, 1));
  EXPECT_THAT(
      text, HasSubstr("link of rank 1, to the aggregator: loses 0.51 % of its packets, the others 0.01 %\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "ranks 0, 1: late all through operations, by 4.10 ms, the others by 0.20 ms: link or processor\n"));
  EXPECT_THAT(text, HasSubstr("0.20 ms: its link\n"));
  EXPECT_THAT(text, HasSubstr("0.20 ms: its processor, for which packets wait in its sockets\n"));
}

TEST(StatusViewTest, NamesWhoHangsAndWhoseShareIsAway) {
  RemoteStatus now = look(0, 0, {}, 5000);
  now.status.jobs[0].hangs = {"rank 1 has not submitted operation 118; its main thread is at train.py:41"};
  now.status.jobs[0].away = {1};
  const std::string text = status_text(status_report("a:1", now, now, 1));
  EXPECT_THAT(text,
              HasSubstr("    rank 1 has not submitted operation 118; its main thread is at train.py:41\n"));
  EXPECT_THAT(text, HasSubstr("    shares are away from bad links or slow hosts: rank 1\n"));
}

TEST(StatusViewTest, SaysWhatProtectsTheSums) {
  RemoteStatus now = look(0, 0, {}, 5000);
  for (const char* mode : {"", "packet"}) {
    now.status.jobs[0].verify = mode;
    EXPECT_THAT(status_text(status_report("a:1", now, now, 1)), Not(HasSubstr("verify"))) << mode;
  }
  for (const char* mode : {"both", "sum"}) {
    now.status.jobs[0].verify = mode;
    const Json report = status_report("a:1", now, now, 1);
    EXPECT_EQ(report.at("jobs").at(0).at("verify"), mode);
    EXPECT_THAT(status_text(report),
                HasSubstr(std::string("the ranks verify every sum (verify: ") + mode + ")"));
  }
}

TEST(StatusViewTest, SaysHowManyJobsHaveFailedAndWhy) {
  RemoteStatus now = look(0, 0, {}, 5000);
  now.status.counters.push_back({"jobs_failed_wrong_sum", 0});
  EXPECT_THAT(status_text(status_report("a:1", now, now, 1)), Not(HasSubstr("failed")));
  now.status.counters.back().value = 2;
  now.status.counters.push_back({"jobs_failed_peer_lost", 1});
  EXPECT_THAT(status_text(status_report("a:1", now, now, 1)),
              HasSubstr("jobs failed since it started: 2 wrong_sum, 1 peer_lost\n"));
}

TEST(StatusViewTest, AnotherJobOfTheSameNameStartsFromNothing) {
  const Json report = status_report("a:1", look(0, 500, {0, 0}, 9000), look(0, 20, {0, 0}, 100), 1);
  EXPECT_DOUBLE_EQ(report.at("jobs").at(0).at("sums_per_s"), 0);
}

TEST(StatusViewTest, ACounterSetBackByARestartGivesNoRate) {
  const Json report = status_report("a:1", look(1000, 0, {}, 1), look(10, 0, {}, 2), 1);
  EXPECT_DOUBLE_EQ(report.at("packets_received_per_s"), 0);
}

TEST(StatusViewTest, SaysWhomAJobWaitsFor) {
  RemoteStatus now = look(0, 0, {}, 5000);
  now.status.jobs[0].waiting_for = {1};
  now.status.jobs[0].waiting_ms = 2100;
  EXPECT_THAT(status_text(status_report("a:1", now, now, 1)), HasSubstr("waits for rank 1 since 2.1 s"));
  // A look always finds some sum half done; that is nobody's delay.
  now.status.jobs[0].waiting_ms = 3;
  EXPECT_THAT(status_text(status_report("a:1", now, now, 1)), Not(HasSubstr("waits")));
  now.status.jobs[0].state = "joining";
  EXPECT_THAT(status_text(status_report("a:1", now, now, 1)), HasSubstr("waits for rank 1"));
}

TEST(StatusViewTest, HostileTextCannotCommandTheTerminal) {
  RemoteStatus now = look(0, 0, {}, 5000);
  const std::string hostile = "x\n  \x1b]0;title\x07\xc2\x9b 2J";
  now.dataplane = now.status.version = hostile;
  now.status.jobs[0].name = now.status.jobs[0].hosts[0] = hostile;
  now.status.jobs[0].state = "failed: " + hostile;
  const std::string usual = status_text(status_report("a:1", look(0, 0, {}, 5000), look(0, 0, {}, 5000), 1));
  const std::string text = status_text(status_report("a:1", now, now, 1));
  const std::string failure = status_text(status_failure("a:1", Status(ErrorCode::kUnreachable, hostile)));
  for (const std::string& shown : {text, failure})
    for (const char c : shown) EXPECT_TRUE(c == '\n' || is_printable(std::string_view(&c, 1))) << int{c};
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), std::count(usual.begin(), usual.end(), '\n') + 1)
      << "a failed job has a line more";
  EXPECT_EQ(std::count(failure.begin(), failure.end(), '\n'), 1);
}

TEST(StatusViewTest, AnAggregatorThatDoesNotAnswer) {
  const Json report = status_failure("a:1", Status(ErrorCode::kUnreachable, "nobody listens at a:1"));
  EXPECT_FALSE(report.at("ok"));
  EXPECT_THAT(status_text(report), HasSubstr("nobody listens at a:1"));
}

}  // namespace
}  // namespace netsum::tool::status_view_test
