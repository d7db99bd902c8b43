// An aggregator below another one, over gRPC on loopback: what of a member's request reaches the parent.
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "aggregator/control/control_service.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "src/control/control.grpc.pb.h"
#include "src/control/rpc_status.h"
#include "src/job/job_spec.h"
#include "wire/ids.h"

namespace netsum {
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
    racks_dataplane_ = std::make_unique<FakeDataplane>(DataplaneLimits{1, 8, 1024, of_rack});
    auto parent = ControlService::start({}, parents_dataplane_.get());
    ASSERT_TRUE(parent.ok()) << parent.status().to_string();
    parent_ = std::move(parent).value();
    ControlServiceOptions options;
    options.parent = parent_->address();
    auto rack = ControlService::start(options, racks_dataplane_.get());
    ASSERT_TRUE(rack.ok()) << rack.status().to_string();
    rack_ = std::move(rack).value();
    stub_ = control::Aggregator::NewStub(
        grpc::CreateChannel(rack_->address(), grpc::InsecureChannelCredentials()));
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
  std::unique_ptr<Stream> join(const control::JoinRequest& request) {
    auto stream = std::make_unique<Stream>();
    stream->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream->reader = stub_->Join(&stream->context, request);
    return stream;
  }

  std::unique_ptr<FakeDataplane> parents_dataplane_, racks_dataplane_;
  std::unique_ptr<ControlService> parent_, rack_;
  std::unique_ptr<control::Aggregator::Stub> stub_;
};

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

}  // namespace
}  // namespace netsum
