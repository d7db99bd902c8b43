// Client and service together, over loopback.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "aggregator/control/control_service.h"
#include "aggregator/control/passing_service_testing.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "aggregator/dataplane/member_shards.h"
#include "src/control/client.h"

// Debian's c-ares, by which gRPC resolves names, loses some ten bytes with every look-up of "localhost".
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libcares\n";
}

namespace netsum::control_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Long enough for a loaded machine; the tests that wait for a deadline use a short one.
constexpr milliseconds kPatience{20'000};

// Receives one failure.
class FailureBox {
 public:
  std::function<void(const Status&)> callback() {
    return [this](const Status& status) {
      const std::lock_guard lock(mutex_);
      failures_.push_back(status);
      changed_.notify_all();
    };
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return !failures_.empty(); }))
      return {ErrorCode::kInternal, "no failure came"};
    return failures_.front();
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return failures_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Status> failures_;
};

struct Rank {
  FailureBox failures;  // outlives the client
  Status status;
  std::unique_ptr<ControlClient> client;
};

JoinParameters parameters(const std::string& address, int rank, int world_size) {
  JoinParameters join;
  join.address = address;
  join.job.set_name("train");
  join.job.set_token("secret");
  join.rank = rank;
  join.job.set_world_size(world_size);
  join.timeout = kPatience;
  return join;
}

void join(Rank& rank, const JoinParameters& how) {
  auto client = ControlClient::join(how, rank.failures.callback());
  rank.status = client.status();
  if (client.ok()) rank.client = std::move(client).value();
}

// All at once, each on its own thread, as in a real group.
void join_all(std::vector<Rank>& ranks, const std::vector<JoinParameters>& how) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) threads.emplace_back([&, i] { join(ranks[i], how[i]); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<JoinParameters> group(const std::string& address, int world_size,
                                  const std::string& job = "train") {
  std::vector<JoinParameters> how;
  for (int rank = 0; rank < world_size; ++rank) {
    how.push_back(parameters(address, rank, world_size));
    how.back().job.set_name(job);
  }
  return how;
}

class ControlTest : public ::testing::Test {
 protected:
  void start(const ControlServiceOptions& options = {}) { start(options, &dataplane_); }
  void start(const ControlServiceOptions& options, Dataplane* dataplane) {
    auto service = ControlService::start(options, dataplane);
    ASSERT_TRUE(service.ok()) << service.status().to_string();
    service_ = std::move(service).value();
    address_ = service_->address();
  }

  std::vector<Rank> joined(int world_size, const std::string& job = "train") {
    std::vector<Rank> ranks(static_cast<size_t>(world_size));
    join_all(ranks, group(address_, world_size, job));
    for (const Rank& rank : ranks) EXPECT_TRUE(rank.status.ok()) << rank.status.to_string();
    return ranks;
  }

  Status refusal(const std::function<void(JoinParameters&)>& change) {
    JoinParameters how = parameters(address_, 0, 2);
    change(how);
    Rank rank;
    join(rank, how);
    return rank.status;
  }

  // Polls, because what other connections do reaches the service in its own time.
  bool eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  FakeDataplane dataplane_;
  MemberShards shards_;
  std::unique_ptr<ControlService> service_;
  std::string address_;
};

TEST_F(ControlTest, FourRanksJoinAndLeave) {
  start();
  auto ranks = joined(4);
  ASSERT_THAT(dataplane_.installed(), SizeIs(1));
  const DataplaneJob job = dataplane_.installed()[0];
  EXPECT_EQ(job.members, 4);
  for (const Rank& rank : ranks) {
    ASSERT_NE(rank.client, nullptr);
    const Membership& membership = rank.client->membership();
    EXPECT_EQ(membership.job, job.job);
    EXPECT_EQ(membership.epoch, job.epoch);
    EXPECT_EQ(membership.key, job.key);
    EXPECT_EQ(membership.data_slots, 256u);
    EXPECT_EQ(membership.scale_slots, 16u);
    EXPECT_EQ(membership.payload_bytes, 1440u);
    EXPECT_EQ(membership.dataplane, "fake");
    ASSERT_THAT(membership.stripes, SizeIs(2));
    EXPECT_EQ(membership.stripes[1].endpoint, "10.0.0.9:7001");
    EXPECT_EQ(membership.stripes[1].owner_rank, kNoRank);
    EXPECT_FALSE(membership.stripes[1].embedded);
  }
  EXPECT_EQ(service_->status().jobs.at(0).state, "running");
  ranks[0].client.reset();
  ranks[1].client.reset();
  EXPECT_THAT(dataplane_.removed(), IsEmpty());
  EXPECT_THAT(service_->status().jobs.at(0).joined, ElementsAre(2, 3));
  ranks[2].client.reset();
  ranks[3].client.reset();
  // At once, unless leaving took too long on a busy machine.
  EXPECT_TRUE(eventually([&] { return service_->status().jobs.empty(); }));
  EXPECT_TRUE(eventually([&] { return !dataplane_.removed().empty(); }));
  EXPECT_THAT(dataplane_.removed(), ElementsAre(std::pair(job.job, job.epoch)));
  for (Rank& rank : ranks) EXPECT_EQ(rank.failures.count(), 0u) << "leaving is no failure";
}

TEST_F(ControlTest, AWildcardEndpointBecomesTheAddressOfTheAggregator) {
  dataplane_.set_endpoints({*Address::parse("0.0.0.0:7000")});
  start();
  Rank rank;
  JoinParameters how = parameters(address_, 0, 1);
  how.address = "localhost" + address_.substr(address_.rfind(':'));
  join(rank, how);
  ASSERT_TRUE(rank.status.ok()) << rank.status.to_string();
  EXPECT_EQ(rank.client->membership().stripes.at(0).endpoint, "127.0.0.1:7000");
}

TEST_F(ControlTest, WorksOverIpv6) {
  ControlServiceOptions options;
  options.listen = "[::1]:0";
  start(options);
  dataplane_.set_endpoints({*Address::parse("[::]:7000")});
  Rank rank;
  join(rank, parameters(address_, 0, 1));
  ASSERT_TRUE(rank.status.ok()) << rank.status.to_string();
  EXPECT_EQ(rank.client->membership().payload_bytes, 1408u);
  EXPECT_EQ(rank.client->membership().stripes.at(0).endpoint, "[::1]:7000");
}

TEST_F(ControlTest, TwoJobsAtOnceDoNotDisturbEachOther) {
  start();
  auto first = joined(2, "first");
  auto second = joined(3, "second");
  ASSERT_NE(first[0].client, nullptr);
  ASSERT_NE(second[0].client, nullptr);
  EXPECT_NE(first[0].client->membership().job, second[0].client->membership().job);
  EXPECT_NE(first[0].client->membership().key, second[0].client->membership().key);
  first[0].client->report_failure({ErrorCode::kOverflow, "sum too large"});
  EXPECT_EQ(first[1].failures.wait().code(), ErrorCode::kOverflow);
  EXPECT_THAT(service_->status().jobs.back().state, "running");
  for (Rank& rank : second) EXPECT_EQ(rank.failures.count(), 0u);
}

TEST_F(ControlTest, RefusesBadInputByName) {
  ControlServiceOptions options;
  options.token = "house";
  start(options);
  Status status = refusal([](JoinParameters&) {});
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("none was given"));

  const auto refused = [&](const std::function<void(JoinParameters&)>& change) {
    return refusal([&](JoinParameters& how) {
      how.job.set_aggregator_token("house");
      change(how);
    });
  };
  status = refused([](JoinParameters& how) { how.job.set_aggregator_token("mouse"); });
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(refused([](JoinParameters& how) { how.job.set_world_size(513); }).message(),
              HasSubstr("world size 513"));
  EXPECT_THAT(refused([](JoinParameters& how) { how.job.set_world_size(-1); }).message(),
              HasSubstr("out of range"));
  EXPECT_THAT(refused([](JoinParameters& how) { how.rank = 2; }).message(), HasSubstr("ranks 0 to 1"));
  EXPECT_THAT(refused([](JoinParameters& how) { how.rank = -1; }).message(), HasSubstr("ranks 0 to 1"));
  EXPECT_THAT(refused([](JoinParameters& how) { how.job.set_mtu(9000); }).message(),
              HasSubstr("at most 1440"));
  EXPECT_THAT(refused([](JoinParameters& how) { how.job.set_slots(3); }).message(),
              HasSubstr("power of two"));
  status = refused([](JoinParameters& how) { how.job.set_slots(4096); });
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("has 1024, of which 1024 are free"));
  EXPECT_THAT(refused([](JoinParameters& how) { how.job.set_name(""); }).message(), HasSubstr("0 bytes"));
  EXPECT_THAT(refused([](JoinParameters& how) { how.job.set_name("a\tb"); }).message(),
              HasSubstr("printable"));
  EXPECT_EQ(refused([](JoinParameters& how) { how.job.set_name("\xff\xfe"); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused([](JoinParameters& how) { how.job.set_token(std::string(300, '\xff')); }).message(),
              HasSubstr("300 bytes"));
  EXPECT_THAT(refused([](JoinParameters& how) { how.address = "nonsense"; }).message(),
              HasSubstr("nonsense"));
  EXPECT_THAT(refused([](JoinParameters& how) { how.address = "127.0.0.1:0"; }).message(),
              HasSubstr("no port"));
  EXPECT_THAT(service_->status().jobs, IsEmpty());
}

TEST_F(ControlTest, RefusesADuplicateRankAWrongTokenAndAnotherWorldSize) {
  start();
  Rank first;
  std::thread waiting([&] { join(first, parameters(address_, 0, 2)); });
  ASSERT_TRUE(eventually([&] { return !service_->status().jobs.empty(); }));

  Status status = refusal([](JoinParameters&) {});
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(status.rank(), 0);
  EXPECT_THAT(status.message(), HasSubstr("already taken, by 127.0.0.1"));
  status = refusal([](JoinParameters& how) {
    how.rank = 1;
    how.job.set_token("guess");
    how.timeout = milliseconds(1000);
  });
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("set the same token on all ranks"));
  status = refusal([](JoinParameters& how) {
    how.rank = 1;
    how.job.set_world_size(3);
  });
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("world size 2"));

  // None of that has harmed the job.
  Rank second;
  join(second, parameters(address_, 1, 2));
  waiting.join();
  EXPECT_TRUE(first.status.ok()) << first.status.to_string();
  EXPECT_TRUE(second.status.ok()) << second.status.to_string();
}

TEST_F(ControlTest, BinaryTokensWork) {
  start();
  std::vector<Rank> ranks(2);
  auto how = group(address_, 2);
  for (JoinParameters& one : how) one.job.set_token(std::string("\xff\x00\xfe", 3));
  join_all(ranks, how);
  for (const Rank& rank : ranks) EXPECT_TRUE(rank.status.ok()) << rank.status.to_string();
}

TEST_F(ControlTest, EveryRankHearsWhoDidNotCome) {
  start();
  std::vector<Rank> ranks(2);
  std::vector<JoinParameters> how = {parameters(address_, 0, 4), parameters(address_, 2, 4)};
  for (JoinParameters& one : how) one.timeout = milliseconds(1000);
  join_all(ranks, how);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.status.code(), ErrorCode::kTimeout);
    EXPECT_EQ(rank.status.rank(), 1);
    EXPECT_THAT(rank.status.message(), HasSubstr("missing: ranks 1 and 3"));
  }
  EXPECT_TRUE(eventually([&] { return service_->status().jobs.empty(); }));
}

TEST_F(ControlTest, TheAggregatorsOwnJoinTimeoutNamesTheMissing) {
  ControlServiceOptions options;
  options.join_timeout = milliseconds(300);
  start(options);
  const Status status = refusal([](JoinParameters& how) { how.rank = 1; });
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_EQ(status.rank(), 0);
  EXPECT_THAT(status.message(), HasSubstr("1 of 2 ranks joined"));
}

TEST_F(ControlTest, ALateAggregatorIsWaitedFor) {
  start();
  const std::string address = address_;
  service_.reset();  // the port is free now, and known
  Rank rank;
  std::thread waiting([&] { join(rank, parameters(address, 0, 1)); });
  std::this_thread::sleep_for(milliseconds(300));  // lets some attempts fail; right without it, too
  ControlServiceOptions options;
  options.listen = address;
  start(options);
  waiting.join();
  EXPECT_TRUE(rank.status.ok()) << rank.status.to_string();
}

TEST_F(ControlTest, AnAggregatorThatIsNotThereIsSaidSo) {
  start();
  service_.reset();
  const Status status = refusal([](JoinParameters& how) { how.timeout = milliseconds(400); });
  EXPECT_EQ(status.code(), ErrorCode::kUnreachable);
  EXPECT_THAT(status.message(),
              HasSubstr("nothing answers at " + address_ + ": is `netsum aggregator` running"));
  EXPECT_THAT(status.message(), HasSubstr("NETSUM_AGGREGATOR"));
  EXPECT_THAT(status.message(), HasSubstr("or rank 0")) << "which a job without an aggregator joins at";
  const auto asked = query_status(address_, "", {}, milliseconds(400));
  EXPECT_EQ(asked.status().code(), ErrorCode::kUnreachable);
}

// A listener that accepts into its backlog and never says a word.
TEST_F(ControlTest, AListenerThatNeverAnswersIsATimeoutNotAHang) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(any);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&any), length), 0);
  ASSERT_EQ(::listen(fd, 4), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&any), &length), 0);
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
  const Status status = refusal([&](JoinParameters& how) {
    how.address = address;
    how.timeout = milliseconds(500);
  });
  EXPECT_EQ(status.code(), ErrorCode::kUnreachable) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr(address));
  EXPECT_THAT(query_status(address, "", {}, milliseconds(300)).status().code(),
              AnyOf(ErrorCode::kTimeout, ErrorCode::kUnreachable));
  ::close(fd);
}

TEST_F(ControlTest, AReportedFailureReachesAllOthersOnce) {
  start();
  auto ranks = joined(3);
  ranks[1].client->report_failure({ErrorCode::kMismatch, "tensors differ", 2});
  for (const size_t i : {0u, 2u}) {
    const Status failure = ranks[i].failures.wait();
    EXPECT_EQ(failure.code(), ErrorCode::kMismatch);
    EXPECT_EQ(failure.rank(), 2);
    EXPECT_THAT(failure.message(), HasSubstr("rank 1 (127.0.0.1) reported: tensors differ"));
  }
  for (Rank& rank : ranks) rank.client.reset();
  EXPECT_EQ(ranks[0].failures.count(), 1u);
  EXPECT_EQ(ranks[1].failures.count(), 0u) << "who reports knows already";
  EXPECT_TRUE(eventually([&] { return dataplane_.removed().size() == 1; }));

  // The name is free for the next run at once.
  auto again = joined(3);
  EXPECT_EQ(dataplane_.installed().size(), 2u);
}

// Passes calls on to a service, but lets the first report of a failure wait until its caller gives up.
class SlowToHearOfFailures final : public PassingService {
 public:
  using PassingService::PassingService;
  ~SlowToHearOfFailures() override { end(); }

  grpc::Status Fail(grpc::ServerContext* call, const control::FailRequest* request,
                    control::Empty* reply) override {
    if (!was_slow_.exchange(true)) {
      while (!call->IsCancelled()) std::this_thread::sleep_for(milliseconds(1));
      return grpc::Status::CANCELLED;
    }
    return PassingService::Fail(call, request, reply);
  }

 private:
  std::atomic<bool> was_slow_ = false;
};

// On a loaded machine. A member that only left would be waited for, or be taken for one that has ended in order.
TEST_F(ControlTest, AReportThatWasNotAnsweredIsMadeAgainInsteadOfLeaving) {
  start();
  SlowToHearOfFailures slow(address_);
  std::vector<Rank> ranks(2);
  auto how = group(address_, 2);
  std::atomic<bool> left = false;
  how[0].on_left = [&](int) { left = true; };
  how[1].address = slow.address();
  join_all(ranks, how);
  for (const Rank& rank : ranks) ASSERT_TRUE(rank.status.ok()) << rank.status.to_string();
  ranks[1].client->report_failure({ErrorCode::kAggregatorLost, "this rank cannot move", 1});
  EXPECT_EQ(ranks[0].failures.count(), 0u);
  ranks[1].client.reset();
  const Status failure = ranks[0].failures.wait();
  EXPECT_EQ(failure.code(), ErrorCode::kAggregatorLost) << failure.to_string();
  EXPECT_EQ(failure.rank(), 1);
  EXPECT_FALSE(left);
  ranks[0].client.reset();
}

TEST_F(ControlTest, AnAggregatorThatStopsIsSaidSo) {
  start();
  auto ranks = joined(2);
  service_.reset();
  for (Rank& rank : ranks) {
    const Status failure = rank.failures.wait();
    EXPECT_EQ(failure.code(), ErrorCode::kAggregatorLost);
    EXPECT_THAT(failure.message(), HasSubstr(address_));
    rank.client.reset();
    EXPECT_EQ(rank.failures.count(), 1u);
  }
}

TEST_F(ControlTest, DrainWaitsForTheRunningJobsAndTakesNoNewOnes) {
  start();
  auto ranks = joined(2);
  EXPECT_FALSE(service_->drain(milliseconds(50)));
  EXPECT_TRUE(service_->status().draining);
  const Status status = refusal([](JoinParameters& how) { how.job.set_name("another"); });
  EXPECT_EQ(status.code(), ErrorCode::kUnreachable);
  EXPECT_THAT(status.message(), HasSubstr("shutting down"));
  auto drained = std::async(std::launch::async, [&] { return service_->drain(kPatience); });
  for (Rank& rank : ranks) rank.client.reset();
  EXPECT_TRUE(drained.get());
  for (Rank& rank : ranks) EXPECT_EQ(rank.failures.count(), 0u);
}

TEST_F(ControlTest, StatusTellsOfJobsAndCounters) {
  ControlServiceOptions options;
  options.token = "house";
  start(options);
  std::vector<Rank> ranks(2);
  auto how = group(address_, 2);
  for (JoinParameters& one : how) {
    one.job.set_aggregator_token("house");
    one.job.set_verify(static_cast<uint32_t>(Verify::kBoth));
  }
  join_all(ranks, how);
  const auto remote = query_status(address_, "house", {}, kPatience);
  ASSERT_TRUE(remote.ok()) << remote.status().to_string();
  EXPECT_EQ(remote->protocol_version, unsigned{NETSUM_VERSION});
  EXPECT_EQ(remote->dataplane, "fake");
  EXPECT_EQ(remote->payload_bytes, 1440u);
  EXPECT_GT(remote->round_trip_us, 0);
  EXPECT_THAT(remote->status.data_addresses, ElementsAre("10.0.0.9:7000", "10.0.0.9:7001"));
  ASSERT_THAT(remote->status.jobs, SizeIs(1));
  EXPECT_EQ(remote->status.jobs[0].name, "train");
  EXPECT_THAT(remote->status.jobs[0].joined, ElementsAre(0, 1));
  EXPECT_EQ(remote->status.jobs[0].verify, "both");
  // That of the dataplane, and failed jobs by error code.
  ASSERT_FALSE(remote->status.counters.empty());
  EXPECT_EQ(remote->status.counters[0].value, 42u);
  for (size_t i = 1; i < remote->status.counters.size(); ++i) {
    EXPECT_THAT(remote->status.counters[i].name, HasSubstr("jobs_failed_"));
    EXPECT_EQ(remote->status.counters[i].value, 0u);
  }
  EXPECT_GT(remote->status.unix_time_ms, 0u);
  // The same clock, however long calls take.
  EXPECT_LE(remote->least_ahead_us, 0);
  EXPECT_GE(remote->most_ahead_us, 0);
  EXPECT_EQ(query_status(address_, "mouse", {}, kPatience).status().code(), ErrorCode::kPermissionDenied);
}

TEST_F(ControlTest, ASecondStartOnThePortSaysSo) {
  start();
  ControlServiceOptions options;
  options.listen = address_;
  const auto second = ControlService::start(options, &dataplane_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), ErrorCode::kAddressInUse);
  EXPECT_THAT(second.status().message(), HasSubstr(address_));
}

TEST_F(ControlTest, RefusesBadServiceOptions) {
  const auto refused = [&](const std::function<void(ControlServiceOptions&)>& change) {
    ControlServiceOptions options;
    change(options);
    const auto service = ControlService::start(options, &dataplane_);
    EXPECT_FALSE(service.ok());
    EXPECT_EQ(service.status().code(), ErrorCode::kInvalidArgument) << service.status().to_string();
    return service.status().message();
  };
  EXPECT_THAT(refused([](auto& o) { o.listen = "nonsense"; }), HasSubstr("nonsense"));
  EXPECT_THAT(refused([](auto& o) { o.listen = "192.0.2.1:0"; }), HasSubstr("no such address"));
  EXPECT_THAT(refused([](auto& o) { o.max_jobs = 0; }), HasSubstr("max_jobs"));
  EXPECT_THAT(refused([](auto& o) { o.join_timeout = milliseconds(0); }), HasSubstr("join_timeout"));
}

TEST_F(ControlTest, EmbeddedShardsBecomeTheStripes) {
  start({}, &shards_);
  auto how = group(address_, 3);
  for (size_t rank = 0; rank < how.size(); ++rank) {
    how[rank].shard_endpoint = (rank == 1 ? "0.0.0.0:" : "127.0.0.5:") + std::to_string(6000 + rank);
    how[rank].shard_payload_bytes = rank == 2 ? 1024 : 1440;
    how[rank].shard_slots = 144;
  }
  std::vector<Rank> ranks(3);
  join_all(ranks, how);
  for (const Rank& rank : ranks) {
    ASSERT_TRUE(rank.status.ok()) << rank.status.to_string();
    const Membership& membership = rank.client->membership();
    EXPECT_EQ(membership.dataplane, "embedded");
    EXPECT_EQ(membership.payload_bytes, 1024u);
    EXPECT_EQ(membership.data_slots, 128u);
    ASSERT_THAT(membership.stripes, SizeIs(3));
    EXPECT_EQ(membership.stripes[0].endpoint, "127.0.0.5:6000");
    EXPECT_EQ(membership.stripes[1].endpoint, "127.0.0.1:6001");
    EXPECT_EQ(membership.stripes[2].owner_rank, 2);
    EXPECT_TRUE(membership.stripes[2].embedded);
  }
}

TEST_F(ControlTest, AClientMayBeDestroyedWhileItsJobFails) {
  start();
  for (int round = 0; round < 10; ++round) {
    auto ranks = joined(2);
    std::thread reporting([&] { ranks[0].client->report_failure({ErrorCode::kAborted, "stop"}); });
    ranks[1].client.reset();
    const size_t told = ranks[1].failures.count();
    reporting.join();
    EXPECT_EQ(ranks[1].failures.count(), told) << "no call comes after the destructor";
  }
}

}  // namespace
}  // namespace netsum::control_test
