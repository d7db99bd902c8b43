// What survivors do after a failure, end to end. A rank that dies is one that aborts and is never seen again:
// that real processes die is the matter of other tests.
#include <gmock/gmock.h>
#include <unistd.h>

#include <barrier>

#include "session/job_testing.h"

namespace netsum::regroup_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CommunicatorOptions options_for(const Aggregator* aggregator) {
  CommunicatorOptions options;
  options.job = "regroup";
  options.token = "secret";
  if (aggregator != nullptr)
    options.aggregators = {aggregator->control_address()};
  else
    options.root = "127.0.0.1:0";
  return options;
}

float average(Communicator& communicator, float value) {
  std::vector<float> data(5000, value);
  AllReduceOptions how;
  how.op = ReduceOp::kAvg;
  const Status status =
      communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, how).wait();
  EXPECT_TRUE(status.ok()) << status.to_string();
  return data.back();
}

enum class Place { kAggregator, kAggregators, kEmbedded, kSharedMemory, kTwoHosts, kPlanned };

class AnyPlace : public testing::TestWithParam<Place> {
 protected:
  AnyPlace() : first_(start()), second_(start()) {
    options_ = options_for(GetParam() == Place::kEmbedded ? nullptr : first_.get());
    if (GetParam() == Place::kAggregators || GetParam() == Place::kPlanned)
      options_.aggregators.push_back(second_->control_address());
    options_.shared_memory = GetParam() == Place::kSharedMemory || GetParam() == Place::kTwoHosts;
  }
  static std::unique_ptr<Aggregator> start() {
    return start_aggregator_at("127.0.0.1:0", 1500, GetParam() != Place::kPlanned);
  }
  void edit(CommunicatorOptions& options) const {
    if (GetParam() == Place::kTwoHosts) options.host = options.rank < 2 ? "low" : "high";
  }
  std::unique_ptr<Aggregator> first_, second_;
  CommunicatorOptions options_;
};

INSTANTIATE_TEST_SUITE_P(Places, AnyPlace,
                         testing::Values(Place::kAggregator, Place::kAggregators, Place::kEmbedded,
                                         Place::kSharedMemory, Place::kTwoHosts, Place::kPlanned));

TEST_P(AnyPlace, SurvivorsGoOnWithDenseRanksTwice) {
  // Who dies does so when all have got the sum: it could fail the others' before.
  std::barrier summed(4), ended(4), summed_again(3);
  run_ranks(
      4, options_,
      [&](int rank, std::unique_ptr<Communicator>& communicator) {
        EXPECT_EQ(average(*communicator, static_cast<float>(rank)), 1.5f);
        summed.arrive_and_wait();
        if (rank == 1) communicator->abort("dies");
        EXPECT_FALSE(communicator->barrier(seconds(20)).ok());
        ended.arrive_and_wait();
        if (rank == 1) return;

        auto regrouped = communicator->regroup({.gather = milliseconds(300)});
        ASSERT_TRUE(regrouped.ok()) << rank << ": " << regrouped.status().to_string();
        EXPECT_THAT(regrouped->former_ranks, ElementsAre(0, 2, 3));
        EXPECT_EQ(regrouped->world_size, 3);
        EXPECT_EQ(regrouped->rank, rank == 0 ? 0 : rank - 1);
        EXPECT_EQ(communicator->rank(), regrouped->rank);
        EXPECT_EQ(communicator->world_size(), 3);
        EXPECT_TRUE(communicator->status().ok());
        EXPECT_EQ(average(*communicator, static_cast<float>(rank + 1)), 8.0f / 3);
        summed_again.arrive_and_wait();

        // The last one dies, too.
        if (rank == 3) {
          communicator->abort("dies");
          return;
        }
        EXPECT_FALSE(communicator->barrier(seconds(20)).ok());
        regrouped = communicator->regroup({.min_members = 2, .gather = milliseconds(300)});
        ASSERT_TRUE(regrouped.ok()) << rank << ": " << regrouped.status().to_string();
        EXPECT_THAT(regrouped->former_ranks, ElementsAre(0, 1));
        EXPECT_EQ(average(*communicator, static_cast<float>(rank)), 1.0f);
      },
      [this](CommunicatorOptions& options) { edit(options); });
}

TEST_P(AnyPlace, ARankThatComesBackIsReadmitted) {
  std::barrier summed(3), ended(3);
  run_ranks(
      3, options_,
      [&](int rank, std::unique_ptr<Communicator>& communicator) {
        EXPECT_EQ(average(*communicator, static_cast<float>(rank)), 1.0f);
        summed.arrive_and_wait();
        if (rank == 2) communicator->abort("dies");
        EXPECT_FALSE(communicator->barrier(seconds(20)).ok());
        ended.arrive_and_wait();
        if (rank != 2) {
          const auto regrouped = communicator->regroup({.who = RegroupOptions::Who::kAll});
          ASSERT_TRUE(regrouped.ok()) << rank << ": " << regrouped.status().to_string();
          EXPECT_THAT(regrouped->former_ranks, ElementsAre(0, 1, 2));
        } else if (GetParam() != Place::kEmbedded) {
          communicator.reset();
          CommunicatorOptions again = options_;
          again.rank = 2;
          again.world_size = 3;
          edit(again);
          auto connected = Communicator::connect(again);
          ASSERT_TRUE(connected.ok()) << connected.status().to_string();
          communicator = std::move(connected).value();
        } else {
          // Where rank 0 listens, its communicator knows.
          ASSERT_TRUE(communicator->regroup({.who = RegroupOptions::Who::kAll}).ok());
        }
        EXPECT_EQ(average(*communicator, static_cast<float>(rank)), 1.0f);
      },
      [this](CommunicatorOptions& options) { edit(options); });
}

TEST(RegroupTest, WhoComesTooLateIsToldSo) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  std::barrier ended(4), gone_on(4);
  run_ranks(4, options_for(aggregator.get()), [&](int rank, std::unique_ptr<Communicator>& communicator) {
    if (rank == 0) communicator->abort("for the test");
    EXPECT_FALSE(communicator->barrier(seconds(20)).ok());
    ended.arrive_and_wait();
    if (rank == 1) {
      gone_on.arrive_and_wait();
      const auto late = communicator->regroup({});
      EXPECT_EQ(late.status().code(), ErrorCode::kPeerLost) << late.status().to_string();
      EXPECT_EQ(late.status().rank(), 1);
      EXPECT_THAT(late.status().message(), HasSubstr("too late"));
      EXPECT_EQ(communicator->status().code(), ErrorCode::kPeerLost);
    } else {
      const auto regrouped = communicator->regroup({.gather = milliseconds(300)});
      ASSERT_TRUE(regrouped.ok()) << regrouped.status().to_string();
      gone_on.arrive_and_wait();
      EXPECT_EQ(average(*communicator, 2.0f), 2.0f);
    }
    ended.arrive_and_wait();
  });
}

TEST(RegroupTest, TooFewSurvivorsGiveUpInTime) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  run_ranks(3, options_for(aggregator.get()), [&](int rank, std::unique_ptr<Communicator>& communicator) {
    if (rank > 0) {
      if (rank == 1) communicator->abort("dies");
      return;
    }
    EXPECT_FALSE(communicator->barrier(seconds(20)).ok());
    const auto alone = communicator->regroup({.gather = milliseconds(50), .timeout = milliseconds(500)});
    EXPECT_EQ(alone.status().code(), ErrorCode::kTimeout) << alone.status().to_string();
    EXPECT_EQ(communicator->barrier(seconds(20)).code(), ErrorCode::kTimeout);
    EXPECT_EQ(communicator->regroup({.min_members = 4}).status().code(), ErrorCode::kInvalidArgument);
    const auto one = communicator->regroup({.min_members = 1, .gather = milliseconds(50)});
    ASSERT_TRUE(one.ok()) << one.status().to_string();
    EXPECT_EQ(average(*communicator, 7.0f), 7.0f);
  });
}

// An address of this host, with port 0, that no other process's tests use: none of them takes a port there that this
// test gives up and uses again.
std::string own_loopback() {
  const auto pid = static_cast<uint32_t>(getpid());
  return "127." + std::to_string(1 + (pid >> 16) % 254) + "." + std::to_string(pid >> 8 & 255) + "." +
         std::to_string(pid & 255) + ":0";
}

TEST(RegroupTest, EmbeddedShardsMeetElsewhereWhenRankZeroIsGone) {
  std::promise<std::string> new_root;
  const auto known = new_root.get_future().share();
  std::barrier ended(3);
  CommunicatorOptions options = options_for(nullptr);
  options.root = own_loopback();
  run_ranks(3, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    if (rank == 0) {
      ended.arrive_and_wait();
      communicator.reset();  // and with it the control service
      ended.arrive_and_wait();
      return;
    }
    ended.arrive_and_wait();
    ended.arrive_and_wait();
    EXPECT_FALSE(communicator->barrier(seconds(20)).ok());
    const auto lost = communicator->regroup({.timeout = milliseconds(500)});
    EXPECT_EQ(lost.status().code(), ErrorCode::kUnreachable) << lost.status().to_string();
    // Free a moment ago; rank 1 listens there, rank 2 keeps trying. It must not join at what has found the port.
    if (rank == 1) {
      const std::string free = start_aggregator_at(own_loopback())->control_address();
      new_root.set_value(free);
    }
    const auto regrouped =
        communicator->regroup({.gather = milliseconds(500), .root = known.get(), .hosts_root = rank == 1});
    ASSERT_TRUE(regrouped.ok()) << regrouped.status().to_string();
    EXPECT_THAT(regrouped->former_ranks, ElementsAre(1, 2));
    EXPECT_EQ(average(*communicator, static_cast<float>(rank)), 1.5f);
  });
}

}  // namespace
}  // namespace netsum::regroup_test
