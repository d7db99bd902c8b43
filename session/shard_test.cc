// Embedded shards over the life of many sessions: what one session took is there for the next one.
#include <atomic>
#include <barrier>
#include <string>

#include "session/job_testing.h"
#include "src/control/client.h"

namespace netsum::shard_test {
namespace {

using std::chrono::seconds;

// For machines with much other work: only a hang takes so long.
constexpr seconds kPatience{60};

CommunicatorOptions embedded_options() {
  CommunicatorOptions options;
  options.job = "shards";
  options.token = "secret";
  options.root = "127.0.0.1:0";
  options.connect_timeout = seconds(20);
  options.timeout = kPatience;
  return options;
}

float sum(Communicator& communicator, float value) {
  std::vector<float> data(5000, value);
  const Status status = communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait();
  EXPECT_TRUE(status.ok()) << status.to_string();
  return data.back();
}

// Rank 0 ends the session, and all open the next one, `sessions` times.
void run_sessions(int world_size, int sessions, const CommunicatorOptions& common,
                  const std::function<void(CommunicatorOptions& options)>& edit = nullptr) {
  std::barrier summed(world_size), ended(world_size);
  std::atomic<bool> failed = false;
  run_ranks(
      world_size, common,
      [&](int rank, std::unique_ptr<Communicator>& communicator) {
        const float expected = static_cast<float>(world_size * (world_size + 1)) / 2;
        for (int session = 0; session < sessions; ++session) {
          if (sum(*communicator, static_cast<float>(rank + 1)) != expected) failed = true;
          summed.arrive_and_wait();
          if (failed) return;  // all see the same
          if (rank == 0) communicator->abort("next session");
          EXPECT_FALSE(communicator->barrier(kPatience).ok());
          ended.arrive_and_wait();
          const auto regrouped = communicator->regroup({.who = RegroupOptions::Who::kAll});
          EXPECT_TRUE(regrouped.ok()) << "session " << session << ": " << regrouped.status().to_string();
          if (!regrouped.ok()) failed = true;
        }
      },
      edit);
}

TEST(ShardTest, SessionsInSequenceHaveNoLimit) {
  CommunicatorOptions options = embedded_options();
  options.shared_memory = false;
  run_sessions(2, 150, options);
}

// Each session is a job of all ranks and one of each pair of ranks with the same place on their hosts.
TEST(ShardTest, EightRanksPerHostRegroupAsOftenAsTheyLike) {
  run_sessions(16, 6, embedded_options(),
               [](CommunicatorOptions& options) { options.host = options.rank < 8 ? "low" : "high"; });
}

TEST(ShardTest, StrangersCannotUseRankZerosControlService) {
  CommunicatorOptions options = embedded_options();
  options.shared_memory = false;
  std::promise<std::string> root_promise;
  run_ranks(
      2, options,
      [&](int rank, std::unique_ptr<Communicator>& communicator) {
        EXPECT_EQ(sum(*communicator, 1), 2);
        if (rank == 1) return;
        JoinParameters stranger;
        stranger.address = root_promise.get_future().get();
        stranger.job.set_name(options.job);
        stranger.shard_endpoint = "127.0.0.1:9";
        stranger.shard_payload_bytes = 1440;
        stranger.shard_slots = 4096;
        for (const char* guess : {"", "guess", "secrets"}) {
          stranger.job.set_token(guess);
          stranger.job.set_aggregator_token(guess);
          const auto joined = ControlClient::join(stranger, [](const Status&) {});
          EXPECT_EQ(joined.status().code(), ErrorCode::kPermissionDenied) << joined.status().to_string();
          const auto status = query_status(stranger.address, guess, {}, kPatience);
          EXPECT_EQ(status.status().code(), ErrorCode::kPermissionDenied) << status.status().to_string();
        }
        EXPECT_TRUE(query_status(stranger.address, options.token, {}, kPatience).ok());
      },
      [&](CommunicatorOptions& own) {
        if (own.rank == 1) root_promise.set_value(own.root);
      });
}

TEST(ShardTest, RegroupsThatFailLeaveTheSlotsToTheNext) {
  CommunicatorOptions options = embedded_options();
  options.shared_memory = false;
  options.slots = 1024;  // a shard has 4096
  constexpr int kFailures = 6;
  std::promise<std::string> root_promise;
  const auto known_root = root_promise.get_future().share();
  std::barrier together(2);
  run_ranks(
      2, options,
      [&](int rank, std::unique_ptr<Communicator>& communicator) {
        EXPECT_EQ(sum(*communicator, 1), 2);
        together.arrive_and_wait();
        if (rank == 1) communicator->abort("for the test");
        EXPECT_FALSE(communicator->barrier(kPatience).ok());
        together.arrive_and_wait();
        for (int failure = 0; failure < kFailures; ++failure) {
          if (rank == 0) {
            const auto regrouped =
                communicator->regroup({.who = RegroupOptions::Who::kAll, .timeout = kPatience});
            EXPECT_FALSE(regrouped.ok());
            EXPECT_NE(regrouped.status().code(), ErrorCode::kResourceExhausted)
                << regrouped.status().to_string();
          } else {
            // Joins, so that rank 0 gives the job slots of its shard, and fails.
            JoinParameters member;
            member.address = known_root.get();
            member.job.set_name(options.job);
            member.job.set_token(options.token);
            member.job.set_aggregator_token(options.token);
            member.rank = 1;
            member.job.set_world_size(2);
            member.job.set_slots(1024);
            member.job.set_shares(static_cast<uint32_t>(options.shares));
            JobOption& option = *member.job.add_options();
            option.set_name("predict_scales");
            option.set_value("1");
            member.shard_endpoint = "127.0.0.1:9";
            member.shard_payload_bytes = 1440;
            member.shard_slots = 4096;
            const auto joined = ControlClient::join(member, [](const Status&) {});
            EXPECT_TRUE(joined.ok()) << joined.status().to_string();
            if (joined.ok()) (*joined)->report_failure({ErrorCode::kAborted, "for the test"});
          }
          together.arrive_and_wait();
        }
        const auto regrouped =
            communicator->regroup({.who = RegroupOptions::Who::kAll, .timeout = kPatience});
        ASSERT_TRUE(regrouped.ok()) << regrouped.status().to_string();
        EXPECT_EQ(sum(*communicator, 2), 4);
      },
      [&](CommunicatorOptions& own) {
        if (own.rank == 0) return;
        root_promise.set_value(own.root);
      });
}

}  // namespace
}  // namespace netsum::shard_test
