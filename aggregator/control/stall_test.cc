// Whatever does not answer, or takes long: plans, the dataplane (which may be a switch), and whoever writes the log. The
// heartbeats of a job that has nothing to do with it are answered, and it does not fail.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "aggregator/control/control_service.h"
#include "aggregator/control/event_log.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "aggregator/dataplane/stalling_dataplane.h"
#include "src/control/client.h"
#include "src/control/control.grpc.pb.h"

namespace netsum::stall_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatience{60};

JoinParameters parameters(const std::string& address, const std::string& job, int rank, int world_size) {
  JoinParameters join;
  join.address = address;
  join.job.set_name(job);
  join.job.set_world_size(static_cast<uint32_t>(world_size));
  join.job.set_slots(64);
  join.rank = rank;
  join.timeout = kPatience;
  return join;
}

// One rank, which sends its heartbeats and is told of failures.
struct Rank {
  explicit Rank(const JoinParameters& how) {
    auto joined = ControlClient::join(how, [this](const Status& why) {
      const std::lock_guard lock(mutex);
      failure = why;
    });
    status = joined.status();
    if (joined.ok()) client = std::move(joined).value();
  }
  Status told() {
    const std::lock_guard lock(mutex);
    return failure;
  }
  std::mutex mutex;
  Status status, failure;
  std::unique_ptr<ControlClient> client;
};

class StallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ControlServiceOptions options;
    options.max_jobs = 8;
    options.on_event = [this](const AggregatorEvent&) { log_.pass(); };
    auto service = ControlService::start(options, &dataplane_);
    ASSERT_TRUE(service.ok()) << service.status().to_string();
    service_ = std::move(service).value();
    JoinParameters how = parameters(service_->address(), "unconcerned", 0, 1);
    how.liveness = seconds(2);
    unconcerned_ = std::make_unique<Rank>(how);
    ASSERT_TRUE(unconcerned_->status.ok()) << unconcerned_->status.to_string();
    channel_ = grpc::CreateChannel(service_->address(), grpc::InsecureChannelCredentials());
  }
  void TearDown() override {
    for (Gate* gate : {&dataplane_.installs, &dataplane_.removals, &dataplane_.looks, &log_}) gate->open();
    for (std::thread& thread : others_) thread.join();
    unconcerned_.reset();
    service_.reset();
  }

  // While all is as it is now. An answer is one whatever it says: this client has no membership.
  void expect_heartbeats() {
    for (int i = 0; i < 20; ++i) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kPatience / 2);
      control::MemberRequest claim;
      claim.set_job("unconcerned");
      control::AliveReply reply;
      const grpc::Status status = control::Aggregator::NewStub(channel_)->Alive(&context, claim, &reply);
      ASSERT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    }
    EXPECT_TRUE(unconcerned_->told().ok()) << unconcerned_->told().to_string();
  }

  void join_another(const std::string& name) {
    others_.emplace_back([how = parameters(service_->address(), name, 0, 1)] { Rank rank(how); });
  }
  std::future<Result<RemoteStatus>> ask_for_status() {
    return std::async(std::launch::async,
                      [address = service_->address()] { return query_status(address, "", {}, kPatience); });
  }

  Gate log_;
  FakeDataplane fake_;
  StallingDataplane dataplane_{&fake_};
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<Rank> unconcerned_;
  std::shared_ptr<grpc::Channel> channel_;
  std::vector<std::thread> others_;
};

TEST_F(StallTest, ADataplaneThatDoesNotInstall) {
  dataplane_.installs.close();
  join_another("other");
  ASSERT_TRUE(dataplane_.installs.has_stopped_somebody());
  expect_heartbeats();
}

TEST_F(StallTest, ADataplaneThatDoesNotRemove) {
  dataplane_.removals.close();
  join_another("other");
  ASSERT_TRUE(dataplane_.removals.has_stopped_somebody());
  expect_heartbeats();
}

// What a drained job had is free when the caller hears that all are over.
TEST_F(StallTest, ADrainWaitsForTheRemovalOfTheLastJob) {
  dataplane_.removals.close();
  unconcerned_.reset();
  ASSERT_TRUE(dataplane_.removals.has_stopped_somebody());
  auto drained = std::async(std::launch::async, [this] { return service_->drain(kPatience); });
  EXPECT_EQ(drained.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  dataplane_.removals.open();
  EXPECT_TRUE(drained.get());
}

TEST_F(StallTest, ADataplaneThatDoesNotTellWhatItCounts) {
  ASSERT_TRUE(ask_for_status().get().ok());
  dataplane_.looks.close();
  others_.emplace_back([this] { service_->status(); });  // what has just been read does not suffice for it
  ASSERT_TRUE(dataplane_.looks.has_stopped_somebody());
  std::vector<std::future<Result<RemoteStatus>>> asked;
  for (int i = 0; i < 40; ++i) asked.push_back(ask_for_status());
  expect_heartbeats();
  // Who asks in this process is told what was read last.
  EXPECT_EQ(service_->status().jobs.at(0).name, "unconcerned");
  dataplane_.looks.open();
  for (auto& one : asked) EXPECT_TRUE(one.get().ok());
}

TEST_F(StallTest, ALogThatIsNotWritten) {
  log_.close();
  join_another("other");
  ASSERT_TRUE(log_.has_stopped_somebody());
  JoinParameters refused = parameters(service_->address(), "refused", 0, 1);
  refused.job.set_mtu(1);
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(Rank(refused).status.ok());
  expect_heartbeats();
}

// As large as the limits allow: ranks below different aggregators, of which each has many.
TEST_F(StallTest, APlanThatTakesLong) {
  constexpr int kRanks = 64;
  std::atomic<int> under_way{0};
  for (int rank = 0; rank < kRanks; ++rank) {
    JoinParameters how = parameters(service_->address(), "planned", rank, kRanks);
    how.job.set_shares(static_cast<uint32_t>(Shares::kAuto));
    how.sharing.emplace();
    how.sharing->link.set_in_bps(1e9 + rank);
    how.sharing->link.set_out_bps(1e9);
    for (uint64_t i = 0; i < 40; ++i) {
      PlaceInfo place;
      place.set_id(i + 1);
      place.set_address("10.0.1." + std::to_string(i) + ":5151");
      place.set_cores(64);
      place.set_stripes(64);
      place.add_ports()->mutable_link()->set_in_bps(1e9 + static_cast<double>(i * 1000));
      place.mutable_ports(0)->mutable_link()->set_out_bps(1e9);
      for (int port = 1; port < 12; ++port) *place.add_ports() = place.ports(0);
      how.sharing->other_places.push_back(place);
    }
    others_.emplace_back([how, &under_way] {
      ++under_way;
      const Rank joined(how);
      EXPECT_TRUE(joined.status.ok()) << joined.status.to_string();
    });
  }
  while (under_way < kRanks) std::this_thread::yield();
  expect_heartbeats();
  for (std::thread& thread : others_) thread.join();
  others_.clear();
  expect_heartbeats();
}

TEST(EventLogTest, WhatIsTooMuchIsLeftOutAndCounted) {
  std::vector<AggregatorEvent> written;
  Gate gate;
  gate.close();
  EventLog log([&](const AggregatorEvent& event) {
    gate.pass();
    written.push_back(event);
  });
  std::thread writer([&] { log.write(); });
  log.push({.kind = AggregatorEvent::Kind::kJobBegan, .job = "first"});
  EXPECT_TRUE(gate.has_stopped_somebody());
  for (size_t i = 0; i < EventLog::kMost + 7; ++i) log.push({.kind = AggregatorEvent::Kind::kMemberJoined});
  gate.open();
  log.halt();
  writer.join();
  ASSERT_EQ(written.size(), EventLog::kMost + 2);
  EXPECT_EQ(written.front().job, "first");
  EXPECT_EQ(written.back().kind, AggregatorEvent::Kind::kEventsLeftOut);
  EXPECT_THAT(written.back().reason, ::testing::HasSubstr("7 events"));
}

}  // namespace
}  // namespace netsum::stall_test
