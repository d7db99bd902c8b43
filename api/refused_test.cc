// What is refused leaves a job as it was, also one that moves when its aggregator is lost.
#include <gmock/gmock.h>

#include <array>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/control/control_service.h"
#include "aggregator/user/dataplane.h"
#include "netsum/sparse.h"
#include "session/job_testing.h"
#include "wire/parse.h"

namespace netsum::refused_test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

CommunicatorOptions options_for(std::vector<std::string> places) {
  CommunicatorOptions options;
  options.job = "refused";
  options.aggregators = {places.front()};
  options.on_failure = FailurePolicy::kFailover;
  options.fallback_aggregators.assign(places.begin() + 1, places.end());
  return options;
}

Status reduce(Communicator& communicator, ReduceOp op) {
  int32_t element = communicator.rank();
  return communicator
      .all_reduce(TensorView{&element, &element, 1},
                  {.type = DataType::kInt32, .op = op, .timeout = seconds(60)})
      .wait();
}

void expect_sparse_sum(Communicator& communicator) {
  std::vector<float> data(10'000);
  data[3 * static_cast<size_t>(communicator.rank())] = 1;
  const Status status = sparse_all_reduce(communicator, TensorView{data.data(), data.data(), data.size()},
                                          {.mode = SparseMode::kOn, .timeout = seconds(60)})
                            .wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], i == 0 || i == 3 ? 1 : 0) << i;
}

// Operations around what is refused, and then around the loss of the aggregator: were they not numbered alike in the sessions
// and above them, some would be lost.
void expect_refused(const CommunicatorOptions& options, const std::vector<ReduceOp>& refused,
                    const std::string& why, const std::function<void()>& lose) {
  std::barrier ready(kRanks);
  run_ranks(kRanks, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    for (const uint64_t failovers : {0, 1}) {
      for (const ReduceOp op : refused) {
        const Status status = reduce(*communicator, op);
        EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << status.to_string();
        EXPECT_THAT(status.message(), HasSubstr(why));
        ASSERT_TRUE(communicator->status().ok()) << communicator->status().to_string();
        sum_and_check(*communicator, 5'000);
      }
      expect_sparse_sum(*communicator);
      sum_and_check(*communicator, 100);
      EXPECT_EQ(communicator->stats().failovers, failovers);
      ready.arrive_and_wait();
      if (failovers == 0 && rank == 0) lose();
    }
  });
}

class RefusedTest : public ::testing::TestWithParam<Verify> {};

TEST_P(RefusedTest, WhatIsNoSumWhereSumsAreVerified) {
  auto first = start_aggregator_at("127.0.0.1:0"), second = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = options_for({first->control_address(), second->control_address()});
  options.verify = GetParam();
  expect_refused(options, {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBitOr}, "is no sum",
                 [&] { first.reset(); });
}

INSTANTIATE_TEST_SUITE_P(Modes, RefusedTest, ::testing::Values(Verify::kBoth, Verify::kSum),
                         [](const auto& mode) { return mode.param == Verify::kBoth ? "Both" : "Sum"; });

// The user-space dataplane without the formats that `lacks` names.
class LesserDataplane final : public Dataplane {
 public:
  explicit LesserDataplane(int (*lacks)(uint8_t format)) : inner_(start()), lacks_(lacks) {}

  std::string_view kind() const override { return "lesser"; }
  DataplaneLimits limits() const override {
    DataplaneLimits limits = inner_->limits();
    const auto formats = limits.capabilities.formats();
    limits.capabilities.clear_formats();
    for (const uint32_t format : formats)
      if (lacks_(static_cast<uint8_t>(format)) == 0) limits.capabilities.add_formats(format);
    return limits;
  }
  std::vector<Address> endpoints() const override { return inner_->endpoints(); }
  uint32_t free_slots() const override { return inner_->free_slots(); }
  Status install(const DataplaneJob& job) override { return inner_->install(job); }
  void remove(uint16_t job, uint16_t epoch) override { inner_->remove(job, epoch); }
  std::vector<AggregatorCounter> counters() const override { return inner_->counters(); }
  JobProgress progress(uint16_t job, uint16_t epoch) const override { return inner_->progress(job, epoch); }

 private:
  static std::unique_ptr<Dataplane> start() {
    UserDataplaneOptions options;
    options.ports = {{Address::parse("127.0.0.1:0").value()}};
    auto dataplane = start_user_dataplane(options);
    EXPECT_TRUE(dataplane.ok()) << dataplane.status().to_string();
    return std::move(dataplane).value();
  }

  const std::unique_ptr<Dataplane> inner_;
  int (*const lacks_)(uint8_t format);
};

struct LesserAggregator {
  explicit LesserAggregator(int (*lacks)(uint8_t format)) : dataplane(lacks) {}
  LesserDataplane dataplane;
  std::unique_ptr<ControlService> service = std::move(ControlService::start({}, &dataplane)).value();
};

TEST(RefusedTest, WhatAnAggregatorCannotCombine) {
  auto first = std::make_unique<LesserAggregator>(netsum_is_words);
  const LesserAggregator second(netsum_is_words);
  expect_refused(options_for({first->service->address(), second.service->address()}),
                 {ReduceOp::kMax, ReduceOp::kBitXor}, "cannot combine lanes", [&] { first.reset(); });
}

// Alike with either policy: also where the ranks of a host share memory, and sum over the network with others.
TEST(RefusedTest, WhatAnAggregatorCannotCombineOnSeveralHosts) {
  const LesserAggregator aggregator(netsum_is_words);
  CommunicatorOptions options = options_for({aggregator.service->address()});
  options.on_failure = FailurePolicy::kFail;
  run_ranks(
      4, options,
      [](int, std::unique_ptr<Communicator>& communicator) {
        EXPECT_EQ(reduce(*communicator, ReduceOp::kMax).code(), ErrorCode::kUnsupported);
        ASSERT_TRUE(communicator->status().ok()) << communicator->status().to_string();
        sum_and_check(*communicator, 5'000);
      },
      [](CommunicatorOptions& of_rank) { of_rank.host = of_rank.rank < 2 ? "a" : "b"; });
}

// Operations of the job may need what the place lacks, so it goes on to the next one.
TEST(RefusedTest, AJobDoesNotMoveToAnAggregatorThatCanDoLess) {
  auto first = start_aggregator_at("127.0.0.1:0");
  const LesserAggregator older(netsum_is_words);
  const auto last = start_aggregator_at("127.0.0.1:0");
  std::barrier ready(kRanks);
  run_ranks(kRanks,
            options_for({first->control_address(), older.service->address(), last->control_address()}),
            [&](int rank, std::unique_ptr<Communicator>& communicator) {
              EXPECT_TRUE(reduce(*communicator, ReduceOp::kMax).ok());
              ready.arrive_and_wait();
              if (rank == 0) first.reset();
              const Status status = reduce(*communicator, ReduceOp::kMax);
              EXPECT_TRUE(status.ok()) << status.to_string();
              EXPECT_EQ(communicator->stats().failovers, 1u);
              ready.arrive_and_wait();
            });
}

// Whether sums had ended on rank 0 alone when their aggregator was lost, and were refused on rank 1, which loses half of what it
// receives.
bool sums_are_refused_elsewhere(uint64_t seed) {
  auto first = start_aggregator_at("127.0.0.1:0");
  const LesserAggregator second(netsum_is_values);
  CommunicatorOptions options = options_for({first->control_address(), second.service->address()});
  options.failover_timeout = seconds(3);
  std::barrier summed(kRanks);
  bool refused = false;
  run_ranks(
      kRanks, options,
      [&](int rank, std::unique_ptr<Communicator>& communicator) {
        std::vector<std::array<float, 2>> data(16, {1e-4f, 1e4f});
        std::vector<Work> works;
        for (auto& pair : data)
          works.push_back(communicator->all_reduce(TensorView{pair.data(), pair.data(), pair.size()},
                                                   {.timeout = seconds(60)}));
        if (rank == 0) {
          for (const Work& work : works) EXPECT_TRUE(work.wait().ok()) << work.wait().to_string();
          first.reset();
        }
        for (size_t i = 0; i < works.size(); ++i) {
          const Status status = works[i].wait();
          if (status.ok()) {
            EXPECT_THAT(data[i], testing::ElementsAre(2e-4f, 2e4f));
          } else {
            EXPECT_EQ(rank, 1);
            EXPECT_EQ(status.code(), ErrorCode::kAggregatorLost) << status.to_string();
            refused |= status.message().find("results would differ in bits") != std::string::npos;
          }
        }
        summed.arrive_and_wait();
      },
      [&](CommunicatorOptions& of_rank) {
        if (of_rank.rank == 1) of_rank.inject = {.loss = 0.5, .seed = seed};
      });
  return refused;
}

// Another place would add the floats in fixed point, and rank 1 would get other bits than rank 0 has.
TEST(RefusedTest, ASumThatOneRankHasIsNotMadeInAnotherWayForTheOther) {
  for (uint64_t seed = 1; seed <= 30; ++seed)
    if (sums_are_refused_elsewhere(seed)) return;
  FAIL() << "in 30 jobs, no sum had ended on rank 0 alone";
}

}  // namespace
}  // namespace netsum::refused_test
