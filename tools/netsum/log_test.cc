#include "tools/netsum/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "src/base/text.h"
#include "tools/netsum/aggregator_log.h"

namespace netsum::tool::log_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What a stranger would like to have in the log.
constexpr char kHostile[] = "x reason=ok\n2026-01-01T00:00:00.000+0000 error \x1b[2J\"} \x7f\xc2\x9b\xff\\";

AggregatorEvent hostile_event() {
  AggregatorEvent event;
  event.kind = AggregatorEvent::Kind::kJoinRefused;
  event.job = kHostile;
  event.host = kHostile;
  event.reason = kHostile;
  return event;
}

std::string logged(bool json, const std::function<void(Log& log)>& write) {
  ::testing::internal::CaptureStderr();
  {
    Log log("debug", json);
    write(log);
  }
  return ::testing::internal::GetCapturedStderr();
}

void expect_one_printable_line(std::string text) {
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(text.back(), '\n');
  text.pop_back();
  EXPECT_TRUE(is_printable(text)) << printable(text);
}

TEST(LogTest, HostileTextStaysInItsLineAndItsField) {
  const std::string text = logged(false, [](Log& log) { log_event(hostile_event(), &log); });
  expect_one_printable_line(text);
  EXPECT_THAT(text, HasSubstr(" job=\"x reason=ok\\n2026"));
  EXPECT_THAT(text, Not(HasSubstr(" job=x")));
}

TEST(LogTest, PacketsOfAWrongLengthNameTheOffload) {
  const auto warnings_at = [](const std::string& dataplane, const std::vector<uint64_t>& counts) {
    const std::string text = logged(false, [&](Log& log) {
      LengthLog lengths(&log);
      for (const uint64_t count : counts) {
        AggregatorStatus status;
        status.dataplane = dataplane;
        status.counters = {{"contributions", 7}, {"drop_bad_length", count}};
        lengths.look(status);
      }
    });
    if (!text.empty()) {
      EXPECT_THAT(text, HasSubstr("tx-udp-segmentation off"));
    }
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(warnings_at("p4", {0, 0}), 0);
  EXPECT_EQ(warnings_at("p4", {0, 3, 4, 29}), 1);
  EXPECT_EQ(warnings_at("p4", {3, 30, 31}), 2);
  EXPECT_EQ(warnings_at("xdp", {3}), 0);
}

TEST(LogTest, HostileTextStaysInItsLineAsJson) {
  const std::string text = logged(true, [](Log& log) { log_event(hostile_event(), &log); });
  expect_one_printable_line(text);
  const Json line = Json::parse(text);
  EXPECT_EQ(line.at("level"), "warning");
  EXPECT_THAT(line.at("job").get<std::string>(), ::testing::StartsWith("x reason=ok\n2026"));
  EXPECT_EQ(line.size(), 6u) << "time, level, message and what is known of the event";
}

TEST(LogTest, HostileMessagesAreOneLine) {
  expect_one_printable_line(logged(false, [](Log& log) { log.error(kHostile); }));
  expect_one_printable_line(logged(true, [](Log& log) { log.error(kHostile); }));
}

// Nobody reads: who logs goes on, and what is lost is counted.
TEST(LogTest, AFullPipeStopsNobody) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(pipe_fds[1], STDERR_FILENO);
  std::string text;
  {
    Log log("debug", false);
    const std::string line(200, 'x');
    for (size_t i = 0; i < 2 * Log::kMostLines; ++i) log.info(line);
    std::thread reader([&] {
      char bytes[4096];
      for (ssize_t got = 0; (got = ::read(pipe_fds[0], bytes, sizeof bytes)) > 0;)
        text.append(bytes, static_cast<size_t>(got));
    });
    log.flush();
    log.info("last");
    log.flush();
    ::dup2(before, STDERR_FILENO);
    ::close(pipe_fds[1]);
    reader.join();
  }
  ::close(pipe_fds[0]);
  ::close(before);
  EXPECT_THAT(text, HasSubstr("lines are not in this log"));
  EXPECT_THAT(text, HasSubstr("last\n"));
}

TEST(LogTest, AReaderThatNeverReadsDoesNotKeepTheProcess) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(pipe_fds[1], STDERR_FILENO);
  {
    Log log("debug", false);
    for (size_t i = 0; i < 1000; ++i) log.info(std::string(200, 'x'));
  }
  ::dup2(before, STDERR_FILENO);
  for (const int fd : {before, pipe_fds[0], pipe_fds[1]}) ::close(fd);
}

// Two tenants' jobs of one name, which wait for different ranks, are each logged once.
TEST(WaitLogTest, JobsOfOneNameAreLoggedOnceEach) {
  const std::string text = logged(false, [](Log& log) {
    WaitLog waits(&log);
    AggregatorStatus status;
    for (int i = 0; i < 2; ++i) {
      AggregatorJobStatus& job = status.jobs.emplace_back();
      job.name = "bench";
      job.id = std::to_string(i);
      job.state = "running";
      job.waiting_for = {i};
      job.waiting_ms = 2000;
    }
    for (int i = 0; i < 50; ++i) waits.look(status);
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(FaultLogTest, SaysOnceThatALinkIsAtFaultAndOnceThatItIsNot) {
  const std::string text = logged(false, [](Log& log) {
    FaultLog faults(&log);
    AggregatorStatus status;
    AggregatorJobStatus& job = status.jobs.emplace_back();
    job.name = "train";
    job.state = "running";
    for (int i = 0; i < 100; ++i) {
      status.unix_time_ms += 1000;
      job.faults.clear();
      job.away.clear();
      if (i < 50) job.faults = {{{3}, "loss_to_aggregator", 0.005, 0.0001}};
      if (i >= 20 && i < 70) job.away = {2};
      faults.look(status);
    }
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
  EXPECT_THAT(text, HasSubstr("link loses packets "));
  EXPECT_THAT(text, HasSubstr("no longer: link loses packets job=train ranks=3"));
  EXPECT_THAT(text, HasSubstr("share taken from a bad link or slow host job=train ranks=2"));
  EXPECT_THAT(text, HasSubstr("no longer: share taken from a bad link or slow host job=train ranks=2"));
}

// Every second, for a day.
TEST(FaultLogTest, ALinkThatFlapsDoesNotFillTheLog) {
  std::string text = logged(false, [](Log& log) {
    FaultLog faults(&log);
    AggregatorStatus status;
    AggregatorJobStatus& job = status.jobs.emplace_back();
    job.name = "train";
    job.state = "running";
    for (int i = 0; i < 24 * 3600; ++i) {
      status.unix_time_ms += 1000;
      job.faults.clear();
      if (i % 2 == 0) job.faults = {{{3}, "slow", 0.005, 0.0001}};
      faults.look(status);
    }
  });
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_GT(lines, 20) << text;  // it is still there
  EXPECT_LE(lines, 64) << text;
  EXPECT_THAT(text, HasSubstr("times=1800"));
}

TEST(FaultLogTest, AClockThatStepsBackDoesNotSilenceTheLog) {
  const std::string text = logged(false, [](Log& log) {
    FaultLog faults(&log);
    AggregatorStatus status;
    AggregatorJobStatus& job = status.jobs.emplace_back();
    job.name = "train";
    job.state = "running";
    status.unix_time_ms = 1'800'000'000'000;
    for (int i = 0; i < 300; ++i) {
      status.unix_time_ms += 1000;
      if (i == 30) status.unix_time_ms -= 365LL * 24 * 3600 * 1000;
      job.faults.clear();
      if (i % 2 == 0) job.faults = {{{3}, "loss_to_aggregator", 0.005, 0.0001}};
      faults.look(status);
    }
  });
  EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 4)
      << text;  // at once, and each time that the pause is over
}

TEST(LogTest, PlainValuesStayPlain) {
  const std::string text = logged(false, [](Log& log) {
    log.info("job began", {{"job", "train-1/0"}, {"world_size", 2}, {"reason", "two words"}, {"host", ""}});
  });
  EXPECT_THAT(text, HasSubstr("job began job=train-1/0 world_size=2 reason=\"two words\" host=\"\""));
}

}  // namespace
}  // namespace netsum::tool::log_test
