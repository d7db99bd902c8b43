// A member that does not read its stream, over a real connection, while others join and leave.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <future>
#include <thread>

#include "aggregator/control/control_service.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "src/base/clock.h"
#include "src/control/control.grpc.pb.h"
#include "wire/ids.h"

namespace netsum::unread_stream_test {
namespace {

using std::chrono::milliseconds;
using Stream = std::unique_ptr<grpc::ClientReader<control::Event>>;

constexpr milliseconds kPatience{30'000};
constexpr uint32_t kWorldSize = 64;

// A member by gRPC alone, without anything that reads on its own.
class Member {
 public:
  Member(const std::shared_ptr<grpc::Channel>& connection, uint32_t rank)
      : rank_(rank), stub_(control::Aggregator::NewStub(connection)) {
    context_.set_deadline(std::chrono::system_clock::now() + 2 * kPatience);
    control::JoinRequest request;
    *request.mutable_job() = new_job_spec();
    request.mutable_job()->set_name("train");
    request.mutable_job()->set_world_size(kWorldSize);
    request.set_rank(rank);
    request.set_deadline_ms(static_cast<uint32_t>(kPatience.count()));
    stream_ = stub_->Join(&context_, request);
    stream_->WaitForInitialMetadata();
  }
  ~Member() { context_.TryCancel(); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  std::optional<control::Event> read() {
    control::Event event;
    if (!stream_->Read(&event)) return std::nullopt;
    return event;
  }
  grpc::Status leave(uint64_t member) {
    grpc::ClientContext context;
    control::MemberRequest request;
    request.set_job("train");
    request.set_rank(rank_);
    request.set_member(member);
    control::LeaveReply left;
    return stub_->Leave(&context, request, &left);
  }

 private:
  const uint32_t rank_;
  const std::unique_ptr<control::Aggregator::Stub> stub_;
  grpc::ClientContext context_;
  Stream stream_;
};

class UnreadStreamTest : public ::testing::Test {
 protected:
  void start(milliseconds read_timeout) {
    ControlServiceOptions options;
    options.read_timeout = read_timeout;
    auto service = ControlService::start(options, &dataplane_);
    ASSERT_TRUE(service.ok()) << service.status().to_string();
    service_ = std::move(service).value();
    others_ = connect();
  }
  // A connection of its own.
  std::shared_ptr<grpc::Channel> connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64);  // what arrives although nobody reads
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return grpc::CreateCustomChannel(service_->address(), grpc::InsecureChannelCredentials(), arguments);
  }
  // Every join and every leave is an event for all other members of the job.
  void join_and_leave(int times) {
    for (int i = 0; i < times; ++i) {
      Member passing(others_, 1);
      const auto joined = passing.read();
      ASSERT_TRUE(joined && joined->has_joined());
      const grpc::Status left = passing.leave(joined->joined().member());
      ASSERT_TRUE(left.ok()) << left.error_message();
    }
  }
  size_t members() const {
    const auto jobs = service_->status().jobs;
    return jobs.empty() ? 0 : jobs.front().joined.size();
  }

  FakeDataplane dataplane_;
  std::unique_ptr<ControlService> service_;
  std::shared_ptr<grpc::Channel> others_;
};

TEST_F(UnreadStreamTest, CostsAConstantAmountOfMemory) {
  start(kPatience);
  const Member deaf(connect(), 0);
  join_and_leave(100);
  const size_t before = mallinfo2().uordblks;
  join_and_leave(1000);
  const size_t after = mallinfo2().uordblks;
  EXPECT_LT(after, before + (128 << 10)) << "memory grew by " << after - before << " bytes";
  EXPECT_EQ(members(), 1u);
}

TEST_F(UnreadStreamTest, DropsTheMemberAndTellsTheOthers) {
  start(milliseconds(300));
  Member reading(others_, 2);
  std::future<control::Event> last = std::async(std::launch::async, [&] {
    control::Event event;
    while (const auto next = reading.read()) event = *next;
    return event;
  });
  Member deaf(connect(), 0);
  join_and_leave(20);
  ASSERT_EQ(last.wait_for(kPatience), std::future_status::ready) << "the member is still in its job";
  const control::Event failed = last.get();
  ASSERT_TRUE(failed.has_failed()) << "the stream ended without a reason";
  EXPECT_EQ(failed.failed().code(), static_cast<int>(ErrorCode::kPeerLost));
  EXPECT_EQ(failed.failed().rank(), 0);
  EXPECT_THAT(failed.failed().message(), ::testing::HasSubstr("hangs"));
  const int64_t deadline_us = monotonic_us() + std::chrono::microseconds(kPatience).count();
  while (members() > 0 && monotonic_us() < deadline_us) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(members(), 0u);
  while (deaf.read()) {
  }
}

}  // namespace
}  // namespace netsum::unread_stream_test
