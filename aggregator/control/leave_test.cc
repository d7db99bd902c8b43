// Members that leave a running job, and stay on their streams until no other needs their shards.
#include <grpcpp/grpcpp.h>

#include <future>
#include <memory>

#include "aggregator/control/control_service.h"
#include "aggregator/control/job_table_fixture.h"
#include "aggregator/control/passing_service_testing.h"
#include "src/control/client.h"

namespace netsum::leave_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPatience{20'000};  // only a hang takes so long

class LeaveTableTest : public JobTableTest {
 protected:
  static constexpr uint32_t kRanks = 3;

  void begin() {
    ids_ = join_all(jobs_, kRanks);
    jobs_.take_events();
  }
  std::vector<JobEvent> leave(uint32_t rank, bool stay = true) {
    MemberClaim claim = claim_of(member_request(rank, kRanks), ids_[rank]);
    claim.until_all_left = stay;
    EXPECT_TRUE(jobs_.leave(claim).ok());
    return jobs_.take_events();
  }
  static std::vector<MemberId> ended(const std::vector<JobEvent>& events) {
    std::vector<MemberId> ids;
    for (const JobEvent& event : of_kind(events, Kind::kEnd)) ids.push_back(event.to);
    return ids;
  }

  JobTable jobs_ = table();
  std::vector<MemberId> ids_;
};

TEST_F(LeaveTableTest, StreamsEndWhenTheLastHasLeft) {
  begin();
  const auto events = leave(1);
  EXPECT_THAT(ended(events), IsEmpty());
  const auto told = of_kind(events, Kind::kJoined);
  ASSERT_THAT(told, SizeIs(2)) << "the others are told at once";
  EXPECT_THAT(told[0].missing, ElementsAre(1));
  EXPECT_EQ(ended(leave(0, /*stay=*/false)), std::vector{ids_[0]}) << "as it has asked";
  EXPECT_THAT(dataplane_.removed(), IsEmpty());
  EXPECT_THAT(ended(leave(2)), ::testing::UnorderedElementsAre(ids_[1], ids_[2]));
  EXPECT_THAT(dataplane_.removed(), SizeIs(1));
  EXPECT_TRUE(jobs_.empty());
}

TEST_F(LeaveTableTest, StreamsEndWithAFailureOfTheJob) {
  begin();
  leave(1);
  ASSERT_TRUE(jobs_.report(claim_of(member_request(2, kRanks), ids_[2]), {ErrorCode::kAborted, "why"}).ok());
  const auto events = jobs_.take_events();
  EXPECT_THAT(ended(events), ::testing::UnorderedElementsAre(ids_[1], ids_[2]));
  ASSERT_THAT(of_kind(events, Kind::kFailed), SizeIs(1)) << "it is no matter of those that have left";
  EXPECT_EQ(of_kind(events, Kind::kFailed)[0].to, ids_[0]);
}

TEST_F(LeaveTableTest, AStreamThatBreaksAfterItsMemberHasLeftIsNoFailure) {
  begin();
  leave(1);
  jobs_.stream_ended(ids_[1]);
  EXPECT_THAT(jobs_.take_events(), IsEmpty());
  leave(0);
  leave(2);
  EXPECT_TRUE(jobs_.empty());
}

TEST_F(LeaveTableTest, WhoCanLeaveAgainAndAgainDoesNotStay) {
  ids_ = {join(jobs_, member_request(0, kRanks)), 0};
  jobs_.take_events();
  EXPECT_EQ(ended(leave(0)), std::vector{ids_[0]}) << "the job has not begun";
}

std::vector<std::unique_ptr<ControlClient>> two_at(const std::string& address) {
  std::vector<std::future<std::unique_ptr<ControlClient>>> joining;
  for (int rank = 0; rank < 2; ++rank)
    joining.push_back(std::async(std::launch::async, [&, rank]() -> std::unique_ptr<ControlClient> {
      JoinParameters how;
      how.address = address;
      how.job.set_name("train");
      how.rank = rank;
      how.job.set_world_size(2);
      how.timeout = kPatience;
      auto client = ControlClient::join(how, [](const Status&) {});
      EXPECT_TRUE(client.ok()) << client.status().to_string();
      return client.ok() ? std::move(client).value() : nullptr;
    }));
  std::vector<std::unique_ptr<ControlClient>> clients;
  for (auto& one : joining) clients.push_back(one.get());
  return clients;
}

class LeaveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto service = ControlService::start({}, &dataplane_);
    ASSERT_TRUE(service.ok()) << service.status().to_string();
    service_ = std::move(service).value();
    clients_ = two_at(service_->address());
    for (const auto& client : clients_) ASSERT_NE(client, nullptr);
  }

  FakeDataplane dataplane_;
  std::unique_ptr<ControlService> service_;
  std::vector<std::unique_ptr<ControlClient>> clients_;
};

TEST_F(LeaveTest, WhoStaysLearnsThatTheOthersHaveLeft) {
  clients_[0]->leave_and_stay();
  EXPECT_FALSE(clients_[0]->others_need_nothing(milliseconds(50)));
  clients_[1]->leave_and_stay();
  for (const auto& client : clients_) EXPECT_TRUE(client->others_need_nothing(kPatience));
  EXPECT_TRUE(service_->drain(kPatience));
}

TEST_F(LeaveTest, WhoStaysLearnsOfAFailure) {
  clients_[0]->leave_and_stay();
  EXPECT_FALSE(clients_[0]->others_need_nothing(milliseconds(0)));
  clients_[1]->report_failure({ErrorCode::kAborted, "for the test"});
  EXPECT_TRUE(clients_[0]->others_need_nothing(kPatience));
}

TEST_F(LeaveTest, WhoHasNotLeftLearnsThatTheOthersHave) {
  EXPECT_FALSE(clients_[0]->others_need_nothing(milliseconds(0)));
  clients_[1].reset();
  EXPECT_TRUE(clients_[0]->others_need_nothing(kPatience));
}

// Of an earlier release: it ends the stream of a member that leaves at once.
class OldService final : public PassingService {
 public:
  using PassingService::PassingService;
  ~OldService() override { end(); }

 private:
  grpc::Status Leave(grpc::ServerContext* call, const control::MemberRequest* request,
                     control::LeaveReply*) override {
    control::MemberRequest known = *request;
    known.clear_until_all_left();
    control::LeaveReply unknown;
    return PassingService::Leave(call, &known, &unknown);
  }
};

TEST_F(LeaveTest, AnOldServiceDoesNotTellWhetherOthersHaveLeft) {
  clients_.clear();
  const OldService old(service_->address());
  clients_ = two_at(old.address());
  for (const auto& client : clients_) ASSERT_NE(client, nullptr);
  clients_[0]->leave_and_stay();
  EXPECT_FALSE(clients_[0]->others_need_nothing(milliseconds(50)));
  clients_.clear();
}

}  // namespace
}  // namespace netsum::leave_test
