// An aggregator below another one, over gRPC on loopback: what of a member's request reaches the parent.
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "aggregator/control/control_service.h"
#include "aggregator/control/parent_relay.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "src/control/control.grpc.pb.h"
#include "src/control/rpc_status.h"
#include "src/job/job_spec.h"
#include "wire/ids.h"

namespace netsum::parent_relay_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Capabilities only(std::initializer_list<uint32_t> formats) {
  Capabilities can = standard_capabilities(1440);
  can.clear_formats();
  for (const uint32_t format : formats) can.add_formats(format);
  return can;
}

class ParentRelayTest : public ::testing::Test {
 protected:
  void start(const Capabilities& of_parent = standard_capabilities(1440),
             const Capabilities& of_rack = standard_capabilities(1440)) {
    parents_dataplane_ = std::make_unique<FakeDataplane>(DataplaneLimits{1, 8, 1024, of_parent});
    auto parent = ControlService::start({}, parents_dataplane_.get());
    ASSERT_TRUE(parent.ok()) << parent.status().to_string();
    parent_ = std::move(parent).value();
    start_rack(parent_->address(), of_rack);
  }
  void start_rack(const std::string& parent, const Capabilities& of_rack) {
    racks_dataplane_ = std::make_unique<FakeDataplane>(DataplaneLimits{1, 8, 1024, of_rack});
    ControlServiceOptions options;
    options.parent = parent;
    auto rack = ControlService::start(options, racks_dataplane_.get());
    ASSERT_TRUE(rack.ok()) << rack.status().to_string();
    rack_ = std::move(rack).value();
    stub_ = stub_of(*rack_);
  }

  static control::JoinRequest request(uint32_t rank) {
    control::JoinRequest request;
    *request.mutable_job() = new_job_spec();
    request.mutable_job()->set_name("train");
    request.mutable_job()->set_world_size(2);
    request.set_rank(rank);
    request.set_deadline_ms(20'000);
    return request;
  }

  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<control::Event>> reader;

    bool finished = false;

    ~Stream() {
      context.TryCancel();
      if (!finished) (void)reader->Finish();
    }
    // The next event of that kind; the end of the stream is none.
    control::Event next(control::Event::KindCase kind) {
      control::Event event;
      while (reader->Read(&event))
        if (event.kind_case() == kind) return event;
      return {};
    }
    Status refusal() {
      control::Event event;
      while (reader->Read(&event)) {
        if (event.has_failed()) return from_failed(event.failed());
      }
      finished = true;
      return from_rpc_status(reader->Finish()).value_or(Status());
    }
  };
  std::unique_ptr<Stream> join(const control::JoinRequest& request) { return join(*stub_, request); }

  static std::unique_ptr<control::Aggregator::Stub> stub_of(const ControlService& service) {
    return control::Aggregator::NewStub(
        grpc::CreateChannel(service.address(), grpc::InsecureChannelCredentials()));
  }
  static std::unique_ptr<Stream> join(control::Aggregator::Stub& at, const control::JoinRequest& request) {
    auto stream = std::make_unique<Stream>();
    stream->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream->reader = at.Join(&stream->context, request);
    return stream;
  }

  std::unique_ptr<FakeDataplane> parents_dataplane_, racks_dataplane_;
  std::unique_ptr<ControlService> parent_, rack_;
  std::unique_ptr<control::Aggregator::Stub> stub_;
};

TEST_F(ParentRelayTest, AJobThatMovesHereBeginsWhereAllRanksAre) {
  start();
  control::JoinRequest ranks[] = {request(0), request(1)};
  for (control::JoinRequest& one : ranks) one.mutable_job()->set_succeeds(77);
  ranks[0].set_completed(5);
  ranks[1].set_completed(3);
  const auto first = join(ranks[0]), second = join(ranks[1]);
  for (const auto& stream : {first.get(), second.get()})
    EXPECT_EQ(stream->next(control::Event::kReady).ready().completed(), 3u);
  // Those that regroup would get other numbers.
  ranks[0].mutable_job()->set_min_members(1);
  EXPECT_EQ(join(ranks[0])->refusal().code(), ErrorCode::kUnsupported);
}

// As a later release would send it.
control::JoinRequest with_later_field(control::JoinRequest request, char value) {
  JobSpec* job = request.mutable_job();
  EXPECT_TRUE(job->ParseFromString(job->SerializeAsString() + "\x98\x06" + value));  // field 99
  return request;
}

TEST_F(ParentRelayTest, AFieldThatTheRelayDoesNotKnowReachesTheParent) {
  start();
  const auto first = join(with_later_field(request(0), 7));
  ASSERT_TRUE(first->next(control::Event::kJoined).has_joined());
  const auto second = join(with_later_field(request(1), 8));
  // The relay compares nothing: only the parent can say so.
  EXPECT_THAT(second->refusal().message(),
              HasSubstr("was created with field 99 (of a later release) 7, and this rank asks for 8"));
  const auto third = join(with_later_field(request(1), 7));
  EXPECT_TRUE(third->next(control::Event::kReady).has_ready());
}

TEST_F(ParentRelayTest, WhatTheParentSaysOfAHangReachesTheRanks) {
  start();
  const auto first = join(request(0)), second = join(request(1));
  std::array<control::MemberRequest, 2> beats;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Stream& stream = rank == 0 ? *first : *second;
    beats[rank].set_member(stream.next(control::Event::kJoined).joined().member());
    ASSERT_TRUE(stream.next(control::Event::kReady).has_ready());
    beats[rank].set_job("train");
    beats[rank].set_rank(rank);
    beats[rank].mutable_beat()->set_submitted(2 - rank);
  }
  beats[1].mutable_beat()->set_hint("train.py:41 in forward");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::array<control::AliveReply, 2> replies;
  while (replies[0].hang().empty() || !replies[1].hint()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    for (size_t rank = 0; rank < 2; ++rank) {
      grpc::ClientContext context;
      ASSERT_TRUE(stub_->Alive(&context, beats[rank], &replies[rank]).ok());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(replies[0].hang(),
            "rank 1 has not submitted operation 2; its main thread is at train.py:41 in forward");
  EXPECT_FALSE(replies[0].hint());
}

TEST_F(ParentRelayTest, TheJobsSpecificationReachesBothDataplanesWithoutTokens) {
  start();
  control::JoinRequest zero = request(0), one = request(1);
  for (control::JoinRequest* each : {&zero, &one}) {
    each->mutable_job()->set_token("secret");
    *each = with_later_field(*each, 7);
  }
  const auto first = join(zero), second = join(one);
  ASSERT_TRUE(first->next(control::Event::kReady).has_ready());
  ASSERT_TRUE(second->next(control::Event::kReady).has_ready());
  for (const FakeDataplane* dataplane : {parents_dataplane_.get(), racks_dataplane_.get()}) {
    ASSERT_EQ(dataplane->installed().size(), 1u);
    const JobSpec spec = dataplane->installed().front().spec;
    EXPECT_TRUE(check_same(without_tokens(zero.job()), spec).ok());
    EXPECT_EQ(spec.name(), "train");
    EXPECT_EQ(spec.token(), "");
  }
}

// What protects packets and sums is the same at all levels; the secrets of packets are not.
TEST_F(ParentRelayTest, AJobThatVerifiesSumsHasOneSecretForThem) {
  Capabilities can = standard_capabilities(1440);
  add_cookies(&can);
  start(can, can);
  const auto at_parent = stub_of(*parent_);
  std::vector<std::unique_ptr<Stream>> streams;
  for (const uint32_t rank : {0u, 1u}) {
    control::JoinRequest asked = request(rank);
    asked.mutable_job()->set_verify(static_cast<uint32_t>(Verify::kSum));
    need_cookies(asked.mutable_job()->mutable_needs());
    streams.push_back(join(rank == 0 ? *stub_ : *at_parent, asked));
  }
  const control::Event below = streams[0]->next(control::Event::kReady);
  const control::Event above = streams[1]->next(control::Event::kReady);
  ASSERT_TRUE(below.has_ready() && above.has_ready());
  EXPECT_NE(above.ready().sum_secret_0(), 0u);
  EXPECT_EQ(below.ready().sum_secret_0(), above.ready().sum_secret_0());
  EXPECT_EQ(below.ready().sum_secret_1(), above.ready().sum_secret_1());
  EXPECT_NE(below.ready().key_0(), above.ready().key_0());
  EXPECT_NE(above.ready().key_0(), above.ready().sum_secret_0());
  for (const auto* dataplane : {racks_dataplane_.get(), parents_dataplane_.get()}) {
    ASSERT_EQ(dataplane->installed().size(), 1u);
    EXPECT_EQ(dataplane->installed()[0].tag, static_cast<uint32_t>(NETSUM_TAG_COOKIE));
  }
}

TEST_F(ParentRelayTest, ARackOnIpv6RefusesAMemberThatCameByIpv4) {
  start();
  racks_dataplane_->set_endpoints({*Address::parse("[::]:7000")});
  EXPECT_THAT(join(request(0))->refusal().message(), HasSubstr("takes data over IPv6 only"));
}

TEST_F(ParentRelayTest, WhatTheRacksDataplaneLacksIsNamedByTheRack) {
  start(standard_capabilities(1440),
        only({NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I64, NETSUM_FORMAT_MAX_U8}));
  EXPECT_THAT(
      join(request(0))->refusal().message(),
      HasSubstr("job 'train' needs SUM of 16-bit lanes, which the dataplane 'fake' of this aggregator"));
}

TEST_F(ParentRelayTest, WhatTheParentsDataplaneLacksIsNamedThroughTheRack) {
  start(only({NETSUM_FORMAT_SUM_I16, NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I64}),
        standard_capabilities(1440));
  EXPECT_THAT(join(request(0))->refusal().message(),
              HasSubstr("needs MAX of unsigned 8-bit lanes, which the dataplane 'fake' of this aggregator"));
}

TEST_F(ParentRelayTest, AJobIsGrantedWhatParentAndRackCanBothDo) {
  start(only({NETSUM_FORMAT_SUM_I16, NETSUM_FORMAT_SUM_I32}),
        only({NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I64}));
  control::JoinRequest zero = request(0), one = request(1);
  for (control::JoinRequest* each : {&zero, &one})
    *each->mutable_job()->mutable_needs() = only({NETSUM_FORMAT_SUM_I32});
  const auto first = join(zero), second = join(one);
  const control::Event ready = first->next(control::Event::kReady);
  ASSERT_TRUE(ready.has_ready());
  EXPECT_THAT(ready.ready().capabilities().formats(), ElementsAre(NETSUM_FORMAT_SUM_I32));
}

LinkRate link(double mbit) {
  LinkRate link;
  link.set_in_bps(mbit * 1e6);
  link.set_out_bps(mbit * 1e6);
  return link;
}

// Two topmost aggregators with two aggregators below each; every rank names one below each.
class PlannedHierarchyTest : public ParentRelayTest {
 protected:
  struct Node {
    std::unique_ptr<FakeDataplane> dataplane;
    std::unique_ptr<ControlService> service;
    std::unique_ptr<control::Aggregator::Stub> stub;
  };

  static Node node(double mbit, const std::string& parent = "") {
    Node node;
    node.dataplane =
        std::make_unique<FakeDataplane>(DataplaneLimits{1, 8, 1024, standard_capabilities(1440)});
    ControlServiceOptions options;
    options.parent = parent;
    options.place.set_address("0.0.0.0:5151");
    *options.place.add_ports()->mutable_link() = link(mbit);
    auto service = ControlService::start(options, node.dataplane.get());
    EXPECT_TRUE(service.ok()) << service.status().to_string();
    node.service = std::move(service).value();
    node.stub = stub_of(*node.service);
    return node;
  }

  static PlaceInfo place_at(const Node& node) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    PlaceInfo place;
    const grpc::Status status = node.stub->GetPlace(&context, {}, &place);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return place;
  }

  const Node slow_top_ = node(1000), fast_top_ = node(1000);
  const Node slow_[2] = {node(90, slow_top_.service->address()), node(30, slow_top_.service->address())};
  const Node fast_[2] = {node(60, fast_top_.service->address()), node(300, fast_top_.service->address())};
};

TEST_F(PlannedHierarchyTest, AnAggregatorBelowSaysWhereItIs) {
  const PlaceInfo path = place_at(fast_[1]);
  EXPECT_EQ(path.address(), fast_top_.service->address()) << "as the one below calls it";
  EXPECT_EQ(path.id(), place_at(fast_top_).id());
  ASSERT_EQ(path.below_size(), 1);
  EXPECT_EQ(path.below(0).ports(0).link().in_bps(), 300e6);
  EXPECT_EQ(path.below(0).stripes(), 1u);
  EXPECT_NE(path.below(0).id(), path.id());
}

TEST_F(PlannedHierarchyTest, ThePlanOfTheTopmostAggregatorReachesAllRanksAlike) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    control::JoinRequest join_slow = request(rank);
    join_slow.mutable_job()->set_world_size(4);
    join_slow.mutable_job()->set_shares(static_cast<uint32_t>(Shares::kAuto));
    join_slow.set_shard_endpoint("127.0.0.1:9");
    *join_slow.mutable_sharing()->mutable_link() = link(1000);
    join_slow.mutable_sharing()->mutable_first_place()->set_address("rack" + std::to_string(rank / 2) +
                                                                    ":5151");
    *join_slow.mutable_sharing()->add_other_places() = place_at(fast_[rank / 2]);
    streams.push_back(join(*slow_[rank / 2].stub, join_slow));
  }
  std::string plan;
  for (const auto& stream : streams) {
    const control::Event event = stream->next(control::Event::kReady);
    ASSERT_TRUE(event.has_ready());
    EXPECT_THAT(event.ready().plan().weights(), ElementsAre(1, 2)) << "30 / 3 and 60 / 3";
    EXPECT_EQ(event.ready().stripes_size(), 1);
    if (plan.empty()) plan = event.ready().plan().SerializeAsString();
    EXPECT_EQ(event.ready().plan().SerializeAsString(), plan);
    EXPECT_THAT(event.ready().plan().text(), HasSubstr("bottleneck: aggregator "));
    EXPECT_THAT(event.ready().plan().text(),
                HasSubstr(slow_top_.service->address() + " (and 2 below it) 33.3 %"));
  }
  for (const Node* node : {&slow_top_, &slow_[0], &slow_[1]})
    EXPECT_THAT(node->service->status().jobs.at(0).plan, HasSubstr("planned shares"));
  grpc::ClientContext context;
  control::TopologyReply reply;
  EXPECT_THAT(slow_[0].stub->GetTopology(&context, {}, &reply).error_message(),
              HasSubstr("ask the one at " + slow_top_.service->address()));
}

TEST_F(PlannedHierarchyTest, EachLevelChecksItsOwnToken) {
  FakeDataplane dataplanes[2];
  ControlServiceOptions options;
  options.token = "spine's";
  const auto top = ControlService::start(options, &dataplanes[0]);
  ASSERT_TRUE(top.ok()) << top.status().to_string();
  options.parent = (*top)->address();
  options.token = "rack's";
  for (const std::string given : {"spine's", "wrong"}) {
    options.parent_token = given;
    const auto rack = ControlService::start(options, &dataplanes[1]);
    ASSERT_TRUE(rack.ok()) << rack.status().to_string();
    const auto ask = [&](const std::string& token) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
      control::StatusRequest request;
      request.set_aggregator_token(token);
      PlaceInfo place;
      return from_rpc_status(stub_of(**rack)->GetPlace(&context, request, &place)).value_or(Status());
    };
    EXPECT_EQ(ask("spine's").code(), ErrorCode::kPermissionDenied);
    const Status answer = ask("rack's");
    EXPECT_EQ(answer.ok(), given == "spine's") << answer.to_string();
    if (!answer.ok()) {
      EXPECT_THAT(answer.message(), HasSubstr("the parent of this one, says: wrong aggregator token"));
    }
  }
}

TEST_F(PlannedHierarchyTest, AParentThatDoesNotAnswerIsNamedToThoseWhoAsk) {
  const Node orphan = node(100, "127.0.0.1:1");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  PlaceInfo place;
  const grpc::Status status = orphan.stub->GetPlace(&context, {}, &place);
  EXPECT_FALSE(status.ok());
  const auto refusal = from_rpc_status(status);
  ASSERT_TRUE(refusal) << status.error_message();
  EXPECT_EQ(refusal->code(), ErrorCode::kUnreachable);
  EXPECT_THAT(refusal->message(), HasSubstr("127.0.0.1:1, the parent of this one, does not answer"));
}

// A parent so busy that it could see the end of a member's call before the Leave that came first.
class SlowParent final : public control::Aggregator::Service {
 public:
  grpc::Status Join(grpc::ServerContext* context, const control::JoinRequest*,
                    grpc::ServerWriter<control::Event>* writer) override {
    control::Event joined;
    joined.mutable_joined()->set_member(7);
    writer->Write(joined);
    wait_until([&] { return context->IsCancelled() || left_ || failed_; });
    if (!left_ && !failed_) lost_ = true;
    return grpc::Status::OK;
  }
  grpc::Status Fail(grpc::ServerContext*, const control::FailRequest* request, control::Empty*) override {
    {
      const std::lock_guard lock(mutex_);
      failure_ = from_failed(request->failure());
    }
    failing_ = true;
    // Time for the Leave, and for the end, to overtake.
    wait_until([&] { return lost_ || leaving_; }, std::chrono::milliseconds(500));
    failed_ = true;
    return grpc::Status::OK;
  }
  grpc::Status Leave(grpc::ServerContext*, const control::MemberRequest*, control::LeaveReply*) override {
    leaving_ = true;
    wait_until([&] { return lost_.load(); }, std::chrono::milliseconds(500));  // time for the end to overtake
    left_ = true;
    return grpc::Status::OK;
  }

  template <typename Condition>
  static void wait_until(Condition condition, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!condition() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  Status failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  std::atomic<bool> leaving_ = false, left_ = false, failing_ = false, failed_ = false, lost_ = false;

 private:
  std::mutex mutex_;
  Status failure_;
};

class SlowParentTest : public ParentRelayTest {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&slow_);
    server_ = builder.BuildAndStart();
    start_rack("127.0.0.1:" + std::to_string(port), standard_capabilities(1440));
    stream_ = join(request(0));
    const control::Event joined = stream_->next(control::Event::kJoined);
    ASSERT_TRUE(joined.has_joined());
    claim_.set_job("train");
    claim_.set_rank(0);
    claim_.set_member(joined.joined().member());
  }
  void leave() {
    grpc::ClientContext context;
    control::LeaveReply reply;
    ASSERT_TRUE(stub_->Leave(&context, claim_, &reply).ok());
  }
  void fail() {
    grpc::ClientContext context;
    control::Empty reply;
    control::FailRequest request;
    *request.mutable_member() = claim_;
    *request.mutable_failure() = to_failed(Status(ErrorCode::kWrongSum, "a sum is wrong"));
    ASSERT_TRUE(stub_->Fail(&context, request, &reply).ok());
  }

  SlowParent slow_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Stream> stream_;
  control::MemberRequest claim_;
};

TEST_F(SlowParentTest, AMemberThatLeavesIsNotLost) {
  leave();
  SlowParent::wait_until([&] { return slow_.leaving_.load(); });
  stream_.reset();  // as a member's process that ends
  SlowParent::wait_until([&] { return slow_.left_ || slow_.lost_; });
  EXPECT_TRUE(slow_.left_);
  EXPECT_FALSE(slow_.lost_);
}

// The end of the call alone would mean that the aggregator is lost.
TEST_F(SlowParentTest, AMemberThatIsLostIsToldOfBeforeItsCallEnds) {
  stream_.reset();
  SlowParent::wait_until([&] { return slow_.failed_ || slow_.lost_; });
  EXPECT_TRUE(slow_.failed_);
  EXPECT_FALSE(slow_.lost_);
  const Status told = slow_.failure();
  EXPECT_EQ(told.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(told.rank(), 0);
  EXPECT_THAT(told.message(),
              testing::MatchesRegex("rank 0 \\(127.0.0.1:[0-9]+\\) disconnected without leaving.*"));
}

TEST_F(SlowParentTest, AMemberThatFailsAndLeavesHasFailed) {
  fail();
  SlowParent::wait_until([&] { return slow_.failing_.load(); });
  leave();
  stream_.reset();
  SlowParent::wait_until([&] { return slow_.failed_.load(); });
  EXPECT_TRUE(slow_.failed_);
  EXPECT_FALSE(slow_.leaving_);
  EXPECT_FALSE(slow_.lost_);
}

// The last reference to the channel would join gRPC's threads, on one of them.
TEST(ParentRelayLifeTest, AfterHaltNoThreadOfGrpcHoldsTheRelay) {
  FakeDataplane parents_dataplane(DataplaneLimits{1, 8, 1024, standard_capabilities(1440)});
  FakeDataplane dataplane(DataplaneLimits{1, 8, 1024, standard_capabilities(1440)});
  const auto parent = ControlService::start({}, &parents_dataplane);
  ASSERT_TRUE(parent.ok()) << parent.status().to_string();
  const std::string address = (*parent)->address();
  auto relay = std::make_shared<ParentRelay>(
      RelayOptions{.parent = address}, &dataplane,
      [&](int /*silence_ms*/) { return grpc::CreateChannel(address, grpc::InsecureChannelCredentials()); });
  // Is destroyed with the callback that it is a part of.
  std::shared_ptr<void> slow(nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::seconds(1)); });
  std::promise<Result<PlaceInfo>> found;
  const grpc::CallbackServerContext call;
  relay->place(call, {},
               [&found, last = std::move(slow)](const Result<PlaceInfo>& path) { found.set_value(path); });
  EXPECT_TRUE(found.get_future().get().ok());
  relay->halt();
  EXPECT_EQ(relay.use_count(), 1);
}

}  // namespace
}  // namespace netsum::parent_relay_test
