// The page's text, its metrics, and what the endpoint answers. Over real HTTP: tests/cli/operations_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <thread>

#include "src/base/histogram.h"
#include "src/telemetry/aggregator_metrics.h"
#include "src/telemetry/metrics_endpoint.h"
#include "src/telemetry/metrics_page.h"
#include "src/telemetry/worker_metrics.h"

namespace netsum::metrics_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HistogramTest, EveryTimeFallsIntoTheFirstBucketThatReachesIt) {
  for (const int64_t time_us :
       {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{8}, int64_t{9}, int64_t{16}, int64_t{17},
        int64_t{1'000'000}, int64_t{8} << 22, (int64_t{8} << 22) + 1, std::numeric_limits<int64_t>::max()}) {
    Histogram histogram;
    histogram.add(time_us);
    TimeHistogram times;
    histogram.add_to(&times);
    ASSERT_EQ(times.count(), 1u);
    bool reached = false;
    for (const TimeHistogram::Bucket& bucket : times.buckets) {
      EXPECT_EQ(bucket.count, !reached && time_us <= bucket.up_to_us ? 1u : 0u)
          << time_us << " in " << bucket.up_to_us;
      reached |= time_us <= bucket.up_to_us;
    }
  }
}

TEST(HistogramTest, SeveralAddUp) {
  Histogram one, other;
  one.add(5);
  one.add(100);
  other.add(6);
  TimeHistogram times;
  one.add_to(&times);
  other.add_to(&times);
  EXPECT_EQ(times.count(), 3u);
  EXPECT_EQ(times.buckets[0].count, 2u);
  EXPECT_EQ(times.sum_us, 111);
}

TEST(MetricsPageTest, OneFamilyPerName) {
  MetricsPage page;
  page.counter("a_total", "Help", {{"rank", "0"}}, 3);
  page.gauge("b", "Other", {}, 0.5);
  page.counter("a_total", "Help", {{"rank", "1"}}, 4);
  EXPECT_EQ(page.text(),
            "# HELP a_total Help\n# TYPE a_total counter\na_total{rank=\"0\"} 3\na_total{rank=\"1\"} 4\n"
            "# HELP b Other\n# TYPE b gauge\nb 0.5\n");
}

TEST(MetricsPageTest, HistogramsAreCumulativeAndInSeconds) {
  Histogram histogram;
  histogram.add(8);
  histogram.add(16);
  histogram.add(int64_t{100} * 1'000'000);
  TimeHistogram times;
  histogram.add_to(&times);
  MetricsPage page;
  page.histogram("t_seconds", "Times", {}, times);
  const std::string text = page.text();
  EXPECT_THAT(text, HasSubstr("t_seconds_bucket{le=\"8e-06\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("t_seconds_bucket{le=\"1.6e-05\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("t_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("t_seconds_count 3\n"));
  EXPECT_THAT(text, HasSubstr("t_seconds_sum 100.000024\n"));
}

TEST(MetricsPageTest, LabelsAreEscaped) {
  MetricsPage page;
  page.gauge("g", "Help", {{"job", "quo\"te\\ \n"}}, 1);
  EXPECT_THAT(page.text(), HasSubstr(R"(g{job="quo\"te\\ \n"} 1)"));
}

TEST(AggregatorMetricsTest, CountersDropsJobsAndWaits) {
  AggregatorStatus status;
  status.version = "1.2.3";
  status.dataplane = "user-space";
  status.slots_per_core = 100;
  status.slots_free = 60;
  status.counters = {
      {"packets_received", 7}, {"drop_bad_check", 2}, {"drop_too_short", 0}, {"jobs_failed_wrong_sum", 3}};
  AggregatorJobStatus job;
  job.name = "mine";
  job.world_size = 2;
  job.joined = {0, 1};
  job.state = "running";
  job.waiting_for = {1};
  job.waiting_ms = 1500;
  job.waited_ms = {0, 2500};
  job.sums = 12;
  job.verify = "both";
  job.faults = {{{1}, "slow", 0.004, 0}, {{0}, "loss_to_aggregator", 0.01, 0}};
  AggregatorJobStatus failed = job;
  failed.state = "failed: peer_lost: ...";
  job.id = failed.id = "0a0b0c0d";
  status.ports = {{.address = "10.0.0.9",
                   .received = {.backlog_bytes = {40, 30, 20, 10},
                                .bytes = 5000,
                                .largest_ms_bytes = 3000,
                                .largest_10ms_bytes = 4000,
                                .milliseconds = {2, 1, 4}}}};
  status.jobs = {failed, job};  // of one name and token: the later one counts
  MetricsPage page;
  add_aggregator_metrics(status, &page);
  const std::string text = page.text();
  for (const char* line :
       {"netsum_aggregator_info{version=\"1.2.3\",dataplane=\"user-space\"} 1\n",
        "netsum_aggregator_packets_received_total 7\n",
        "netsum_aggregator_packets_dropped_total{reason=\"bad_check\"} 2\n",
        "netsum_aggregator_packets_dropped_total{reason=\"too_short\"} 0\n",
        "netsum_aggregator_jobs_failed_total{code=\"wrong_sum\"} 3\n",
        "netsum_aggregator_job_info{job_name=\"mine\",job_id=\"0a0b0c0d\",verify=\"both\"} 1\n",
        "netsum_aggregator_slots_in_use 40\n",
        "netsum_aggregator_job_running{job_name=\"mine\",job_id=\"0a0b0c0d\"} 1\n",
        "netsum_aggregator_port_backlog_bytes{port=\"10.0.0.9\",direction=\"in\",rate=\"0.25\"} 40\n",
        "netsum_aggregator_port_backlog_bytes{port=\"10.0.0.9\",direction=\"in\",rate=\"1\"} 10\n",
        "netsum_aggregator_port_largest_window_bytes{port=\"10.0.0.9\",direction=\"in\",window=\"1ms\"} "
        "3000\n",
        "netsum_aggregator_port_largest_window_bytes{port=\"10.0.0.9\",direction=\"in\",window=\"10ms\"} "
        "4000\n",
        "netsum_aggregator_port_millisecond_bytes_bucket{port=\"10.0.0.9\",direction=\"in\",le=\"2048\"} 3\n",
        "netsum_aggregator_port_millisecond_bytes_bucket{port=\"10.0.0.9\",direction=\"in\",le=\"+Inf\"} 7\n",
        "netsum_aggregator_port_millisecond_bytes_sum{port=\"10.0.0.9\",direction=\"in\"} 5000\n",
        "netsum_aggregator_job_lossy_link{job_name=\"mine\",job_id=\"0a0b0c0d\",rank=\"0\",direction=\"to_"
        "aggregator\"} 1\n",
        "netsum_aggregator_job_lossy_link{job_name=\"mine\",job_id=\"0a0b0c0d\",rank=\"0\",direction=\"from_"
        "aggregator\"} 0\n",
        "netsum_aggregator_job_slow_rank{job_name=\"mine\",job_id=\"0a0b0c0d\",rank=\"1\"} 1\n",
        "netsum_aggregator_job_slow_rank{job_name=\"mine\",job_id=\"0a0b0c0d\",rank=\"0\"} 0\n",
        "netsum_aggregator_job_sums_total{job_name=\"mine\",job_id=\"0a0b0c0d\"} 12\n",
        "netsum_aggregator_job_waiting_seconds{job_name=\"mine\",job_id=\"0a0b0c0d\",rank=\"0\"} 0\n",
        "netsum_aggregator_job_waiting_seconds{job_name=\"mine\",job_id=\"0a0b0c0d\",rank=\"1\"} 1.5\n",
        "netsum_aggregator_job_waited_seconds_total{job_name=\"mine\",job_id=\"0a0b0c0d\",rank=\"1\"} "
        "2.5\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("job_running{job_name=\"mine\",job_id=\"0a0b0c0d\"} 0")));
}

// A stranger's job of the same name must not take the place of the one that an alarm watches.
TEST(AggregatorMetricsTest, JobsOfOneNameHaveSeriesOfTheirOwn) {
  AggregatorStatus status;
  AggregatorJobStatus victim;
  victim.name = "train";
  victim.id = "00000001";
  victim.world_size = 4;
  victim.joined = {0};
  victim.state = "joining";
  victim.waiting_for = {1, 2, 3};
  victim.waiting_ms = 7000;
  AggregatorJobStatus stranger = victim;
  stranger.id = "00000002";
  stranger.world_size = 1;
  stranger.state = "running";
  stranger.waiting_for = {};
  status.jobs = {victim, stranger};
  MetricsPage page;
  add_aggregator_metrics(status, &page);
  const std::string text = page.text();
  EXPECT_THAT(text, HasSubstr("job_running{job_name=\"train\",job_id=\"00000001\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("job_running{job_name=\"train\",job_id=\"00000002\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("job_waiting_seconds{job_name=\"train\",job_id=\"00000001\",rank=\"3\"} 7\n"));
}

// One join of 100 bytes must not make a thousand series.
TEST(AggregatorMetricsTest, RanksThatHaveNotJoinedMakeFewSeries) {
  AggregatorStatus status;
  for (const char* state : {"joining", "queued", "failed: timeout"}) {
    AggregatorJobStatus& job = status.jobs.emplace_back();
    job.name = state;
    job.world_size = 512;
    job.state = state;
    job.joined = {7};
    for (int rank = 0; rank < 512; ++rank)
      if (rank != 7) job.waiting_for.push_back(rank);
  }
  MetricsPage page;
  add_aggregator_metrics(status, &page);
  const std::string text = page.text();
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 150);
  EXPECT_THAT(text, HasSubstr("job_waiting_seconds{job_name=\"joining\",job_id=\"\",rank=\"0\"}"));
  EXPECT_THAT(text, HasSubstr("job_waiting_seconds{job_name=\"joining\",job_id=\"\",rank=\"7\"} 0"));
}

TEST(WorkerMetricsTest, ModeAndWrongSumsByAggregator) {
  WorkerView worker;
  worker.job = "mine";
  worker.rank = 3;
  worker.verify = "both";
  worker.places = {"10.0.0.9:5151", "hosts"};
  worker.stats.sums_refused = 2;
  // Of the second place, and of one that the job has left.
  worker.stats.wrong_sums = {{"hosts", 1, "10.0.0.1:7000", 2},
                             {"10.0.0.8:5151", 0, "10.0.0.8:7000", 4},
                             {"10.0.0.8:5151", 1, "10.0.0.8:7001", 5}};
  MetricsPage page;
  add_worker_metrics(worker, &page);
  const std::string text = page.text();
  const std::string refused = "netsum_worker_sums_refused_total{job_name=\"mine\",rank=\"3\",aggregator=";
  for (const std::string& line :
       {std::string("netsum_worker_info{job_name=\"mine\",rank=\"3\",verify=\"both\"} 1\n"),
        refused + "\"10.0.0.9:5151\"} 0\n", refused + "\"hosts\"} 2\n", refused + "\"10.0.0.8:5151\"} 9\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

MetricsEndpoint::Source source(const std::string& metric, std::string not_ready = {}) {
  return {[metric](MetricsPage* page) { page->gauge(metric, "Help", {}, 1); },
          [not_ready] { return not_ready; }};
}

TEST(MetricsEndpointTest, SourcesComeAndGo) {
  auto endpoint = MetricsEndpoint::open("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
  MetricsEndpoint& pages = **endpoint;
  EXPECT_EQ(pages.get("/healthz").status, 200);
  EXPECT_EQ(pages.get("/readyz").status, 503) << "nothing is served yet";
  const uint64_t first = pages.add(source("first"));
  const uint64_t second = pages.add(source("second", "waiting for rank 3"));
  EXPECT_THAT(pages.get("/metrics").body, HasSubstr("first 1\n"));
  EXPECT_THAT(pages.get("/metrics").body, HasSubstr("second 1\n"));
  EXPECT_EQ(pages.get("/readyz").status, 503);
  EXPECT_EQ(pages.get("/readyz").body, "waiting for rank 3\n");
  pages.remove(second);
  EXPECT_EQ(pages.get("/readyz").status, 200);
  EXPECT_THAT(pages.get("/metrics").body, Not(HasSubstr("second")));
  pages.remove(first);
  EXPECT_EQ(pages.get("/elsewhere").status, 404);
}

int connect_to(const std::string& address) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1))));
  const timeval patience{30, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

std::string get(int fd, const std::string& path) {
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  char bytes[4096];
  const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
  return {bytes, got < 0 ? 0 : static_cast<size_t>(got)};
}

// Whose requests are never complete. A probe by a new connection is answered while they send on.
TEST(MetricsEndpointTest, SlowConnectionsDoNotKeepAProbeOut) {
  auto endpoint = MetricsEndpoint::open("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
  std::vector<int> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(connect_to((*endpoint)->address()));
    ::send(slow.back(), "GET /metrics HTTP/1.1\r\n", 23, MSG_NOSIGNAL);
  }
  // More often than the library waits for.
  std::promise<void> done;
  std::thread sending([&, stop = done.get_future()] {
    do {
      for (const int fd : slow) ::send(fd, "X-Header: 1\r\n", 13, MSG_NOSIGNAL);
    } while (stop.wait_for(std::chrono::milliseconds(500)) != std::future_status::ready);
  });
  for (int i = 0; i < 4; ++i) {
    const int probe = connect_to((*endpoint)->address());
    EXPECT_THAT(get(probe, "/healthz"), HasSubstr("200 OK"));
    ::close(probe);
  }
  done.set_value();
  sending.join();
  for (const int fd : slow) ::close(fd);
}

TEST(MetricsEndpointTest, ARequestThatIsNotCompleteEndsInTime) {
  auto endpoint = MetricsEndpoint::open("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
  const int fd = connect_to((*endpoint)->address());
  ::send(fd, "GET /metrics HTTP/1.1\r\n", 23, MSG_NOSIGNAL);
  // More often than the library waits for.
  char byte = 0;
  ssize_t got = -1;
  for (int i = 0; i < 60 && got < 0; ++i) {
    ::send(fd, "X: 1\r\n", 6, MSG_NOSIGNAL);
    pollfd closed{fd, POLLIN, 0};
    if (::poll(&closed, 1, 500) > 0) got = ::recv(fd, &byte, 1, 0);
  }
  EXPECT_EQ(got, 0);
  ::close(fd);
}

TEST(MetricsEndpointTest, OneLookServesAllThatAskAtOnce) {
  int looks = 0;
  auto endpoint = MetricsEndpoint::open("127.0.0.1:0");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
  (*endpoint)->add({[&](MetricsPage* page) { page->gauge("look", "Help", {}, ++looks); }, [] { return ""; }});
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ((*endpoint)->get("/metrics").status, 200);
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_LE(looks, 1 + took / std::chrono::milliseconds(100));
}

TEST(MetricsEndpointTest, OneAddressIsSharedWithinAProcess) {
  auto free_one = MetricsSource::open("127.0.0.1:0", source("free"));
  ASSERT_TRUE(free_one.ok());
  const std::string address = (*free_one)->address();
  free_one->reset();
  auto one = MetricsEndpoint::open(address);
  ASSERT_TRUE(one.ok()) << one.status().to_string();
  auto other = MetricsEndpoint::open(address);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_EQ(one->get(), other->get());
}

TEST(MetricsEndpointTest, AFreePortIsSharedUnderTheAddressThatItGot) {
  auto one = MetricsEndpoint::open("127.0.0.1:0");
  ASSERT_TRUE(one.ok()) << one.status().to_string();
  auto other = MetricsEndpoint::open((*one)->address());
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_EQ(one->get(), other->get());
  auto next = MetricsEndpoint::open("127.0.0.1:0");
  ASSERT_TRUE(next.ok()) << next.status().to_string();
  EXPECT_NE(one->get(), next->get());
}

TEST(MetricsEndpointTest, AddressesThatCannotBeServedAreNamed) {
  auto taken = MetricsEndpoint::open("127.0.0.1:0");
  ASSERT_TRUE(taken.ok());
  // Under another spelling, so that it is not taken for the same endpoint.
  const std::string port = (*taken)->address().substr((*taken)->address().rfind(':'));
  const auto again = MetricsEndpoint::open("localhost" + port);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), ErrorCode::kAddressInUse);
  EXPECT_THAT(again.status().message(), HasSubstr(port));
  EXPECT_FALSE(MetricsEndpoint::open("nonsense").ok());
  EXPECT_FALSE(MetricsEndpoint::open("192.0.2.1:9100").ok()) << "not an address of this host";
}

}  // namespace
}  // namespace netsum::metrics_test
