// Faults in the middle of a run: partitions, pauses, crashes, restarts, other members.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "emulate/campaign.h"

namespace netsum::emulate::events_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Kind = FaultEvent::Kind;

// Three ranks and one operation that takes some 25 ms on the quiet network.
Scenario steady_scenario() {
  Scenario scenario = quiet_scenario(3, DataType::kFloat32, 16 * 2000);
  scenario.jobs[0].ending = Ending::kSuccess;
  return scenario;
}

FaultEvent rank_fault(Kind kind, int rank, int64_t duration_us) {
  FaultEvent event;
  event.kind = kind;
  event.at_event = 500;
  event.rank = rank;
  event.duration_us = duration_us;
  return event;
}

FaultEvent aggregator_fault(Kind kind, int64_t duration_us) {
  return rank_fault(kind, kNoRank, duration_us);
}

// The same job again, a generation later.
JobPlan successor_of(const JobPlan& job, std::vector<int> hosts) {
  JobPlan next = job;
  ++next.epoch;
  next.start_at_us = kWhenFree;
  next.ranks = static_cast<int>(hosts.size());
  next.hosts = std::move(hosts);
  for (OperationPlan& operation : next.operations) operation.submit_at_us.assign(next.hosts.size(), 0);
  return next;
}

TEST(Events, APartitionInAnyDirectionOnlyDelays) {
  const int64_t undisturbed_us = Simulation(steady_scenario()).run().ended_at_us;
  for (const bool of_aggregator : {false, true}) {
    for (const auto& [outbound, inbound] : {std::pair(true, true), {true, false}, {false, true}}) {
      Scenario scenario = steady_scenario();
      FaultEvent event = of_aggregator ? aggregator_fault(Kind::kPartition, 400'000)
                                       : rank_fault(Kind::kPartition, 1, 400'000);
      event.outbound = outbound;
      event.inbound = inbound;
      scenario.events = {event};
      const Report report = Simulation(scenario).run();
      EXPECT_EQ(report.first_problem(), "");
      EXPECT_GT(report.network.cut_off, 0u);
      EXPECT_GT(report.ended_at_us, 400'000);
      EXPECT_LT(report.ended_at_us, undisturbed_us + 400'000 + 600'000);  // within a probe's pause or two
    }
  }
}

TEST(Events, APauseOnlyDelaysAndCostsNoWrongSum) {
  for (const bool of_aggregator : {false, true}) {
    Scenario scenario = steady_scenario();
    scenario.events = {of_aggregator ? aggregator_fault(Kind::kPause, 700'000)
                                     : rank_fault(Kind::kPause, 2, 700'000)};
    const Report report = Simulation(scenario).run();
    EXPECT_EQ(report.first_problem(), "");
    EXPECT_EQ(report.events.pauses, 1u);
    EXPECT_GT(report.ended_at_us, 700'000);
    EXPECT_LT(report.ended_at_us, 1'300'000);
  }
}

TEST(Events, WhoIsStoppedAtItsDeadlineSaysSoWhenItGoesOn) {
  Scenario scenario = steady_scenario();
  scenario.jobs[0].ending = Ending::kSuccessOrLoss;
  scenario.jobs[0].operations[0].timeout_us = 300'000;
  scenario.events = {rank_fault(Kind::kPause, 2, 2'000'000)};
  const Report report = Simulation(scenario).run();
  EXPECT_THAT(report.violations, IsEmpty());
  for (const size_t rank : {0u, 1u}) {
    const OperationReport& operation = report.jobs[0][rank].operations[0];
    EXPECT_EQ(operation.status.code(), ErrorCode::kTimeout);
    EXPECT_EQ(operation.status.rank(), 2);
    EXPECT_EQ(operation.ended_at_us, 300'000);
  }
  EXPECT_EQ(report.jobs[0][2].operations[0].status.code(), ErrorCode::kTimeout);
  EXPECT_GT(report.jobs[0][2].operations[0].ended_at_us, 2'000'000);
}

TEST(Events, ASlowLinkOnlyDelays) {
  Scenario scenario = steady_scenario();
  FaultEvent event = aggregator_fault(Kind::kSlowLink, 100'000);
  event.bytes_per_us = 1;
  scenario.events = {event};
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
  EXPECT_GT(report.ended_at_us, 100'000);
}

TEST(Events, ACrashOfWhichTheOthersAreToldEndsTheirOperationsAtOnce) {
  Scenario scenario = steady_scenario();
  scenario.jobs[0].ending = Ending::kSuccessOrLoss;
  FaultEvent crash = rank_fault(Kind::kCrash, 1, 0);
  crash.reported_after_us = 100;
  scenario.events = {crash};
  const Report report = Simulation(scenario).run();
  EXPECT_THAT(report.violations, IsEmpty());
  for (const size_t rank : {0u, 2u}) {
    const OperationReport& operation = report.jobs[0][rank].operations[0];
    EXPECT_EQ(operation.status.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(operation.status.rank(), 1);
    EXPECT_LT(operation.ended_at_us, 50'000);
  }
  EXPECT_FALSE(report.jobs[0][1].operations[0].ended);
}

TEST(Events, AfterACrashTheSurvivorsOrAllGoOnAsAnotherJob) {
  for (const std::vector<int>& hosts : {std::vector{0, 2}, {0, 1, 2}, {2, 5, 0, 1}}) {
    Scenario scenario = steady_scenario();
    scenario.jobs[0].ending = Ending::kSuccessOrLoss;
    FaultEvent crash = rank_fault(Kind::kCrash, 1, 0);
    crash.reported_after_us = 100;
    scenario.events = {crash};
    scenario.jobs.push_back(successor_of(scenario.jobs[0], hosts));
    scenario.jobs[1].ending = Ending::kSuccess;
    const Report report = Simulation(scenario).run();
    EXPECT_THAT(report.violations, IsEmpty());
    EXPECT_EQ(report.events.jobs_on_used_hosts, 1u);
    ASSERT_EQ(report.jobs[1].size(), hosts.size());
    for (const RankReport& rank : report.jobs[1]) EXPECT_TRUE(rank.operations[0].status.ok());
  }
}

TEST(Events, AnAggregatorThatComesBackIsEmptyAndServesTheNextJob) {
  for (const int64_t reported_after_us : {kNever, int64_t{0}}) {
    Scenario scenario = steady_scenario();
    scenario.jobs[0].ending = Ending::kSuccessOrLoss;
    scenario.jobs[0].operations[0].timeout_us = 3'000'000;
    FaultEvent crash = aggregator_fault(Kind::kCrash, 200'000);
    crash.reported_after_us = reported_after_us;
    scenario.events = {crash};
    scenario.jobs.push_back(successor_of(scenario.jobs[0], {0, 1, 2}));
    scenario.jobs[1].ending = Ending::kSuccess;
    const Report report = Simulation(scenario).run();
    EXPECT_THAT(report.violations, IsEmpty());
    EXPECT_EQ(report.events.aggregator_restarts, 1u);
    for (size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(report.jobs[0][rank].operations[0].status.code(),
                reported_after_us == kNever ? ErrorCode::kTimeout : ErrorCode::kAggregatorLost);
      EXPECT_TRUE(report.jobs[1][rank].operations[0].status.ok());
    }
  }
}

TEST(Events, WithoutAnyAggregatorTheNextJobDoesNotStart) {
  Scenario scenario = steady_scenario();
  scenario.jobs[0].ending = Ending::kSuccessOrLoss;
  FaultEvent crash = aggregator_fault(Kind::kCrash, kNever);
  crash.reported_after_us = 0;
  scenario.events = {crash};
  scenario.jobs.push_back(successor_of(scenario.jobs[0], {0, 1, 2}));
  const Report report = Simulation(scenario).run();
  EXPECT_THAT(report.violations, IsEmpty());
  EXPECT_EQ(report.events.jobs_started, 1u);
  EXPECT_FALSE(report.jobs[1][0].operations[0].submitted);
}

TEST(Events, DeadlinesAreKeptByEachClockOfItsOwn) {
  Scenario scenario = steady_scenario();
  JobPlan& job = scenario.jobs[0];
  job.ending = Ending::kSuccessOrLoss;
  job.drift_ppm = {0, 100'000, -100'000};  // 10 % fast and slow
  job.operations[0].timeout_us = 1'100'000;
  scenario.events = {aggregator_fault(Kind::kCrash, kNever)};
  const Report report = Simulation(scenario).run();
  EXPECT_THAT(report.violations, IsEmpty());
  EXPECT_EQ(report.jobs[0][0].operations[0].ended_at_us, 1'100'000);
  EXPECT_NEAR(static_cast<double>(report.jobs[0][1].operations[0].ended_at_us), 1'000'000, 2);
  EXPECT_NEAR(static_cast<double>(report.jobs[0][2].operations[0].ended_at_us), 1'222'222, 2);
}

TEST(Events, ClocksThatDriftApartChangeNothingElse) {
  Scenario scenario = steady_scenario();
  scenario.jobs[0].drift_ppm = {100'000, 0, -100'000};
  scenario.worker_up.loss = scenario.worker_down.loss = 0.02;
  EXPECT_EQ(Simulation(scenario).run().first_problem(), "");
}

TEST(Events, AFailureThatIsNotAllowedIsAViolation) {
  Scenario scenario = steady_scenario();  // must succeed
  scenario.jobs[0].operations[0].timeout_us = 1'000'000;
  scenario.events = {rank_fault(Kind::kCrash, 1, 0)};
  const Report report = Simulation(scenario).run();
  ASSERT_EQ(report.violations.size(), 2u);
  EXPECT_THAT(report.violations[0], HasSubstr("job 0 rank 0 operation 0 failed: timeout"));
}

TEST(LocalClock, GoesBackAndForth) {
  for (const int32_t drift_ppm : {0, 1, -1, 100, 100'000, -100'000}) {
    for (const int64_t offset_us : {int64_t{0}, int64_t{1} << 39}) {
      const LocalClock clock(offset_us, drift_ppm);
      for (const int64_t moment : {0, 1, 999'999, 1'000'000, 123'456'789}) {
        const int64_t first = clock.true_us(clock.local_us(moment));
        EXPECT_EQ(clock.local_us(first), clock.local_us(moment));
        EXPECT_LE(first, moment);
        EXPECT_LT(clock.local_us(first - 1), clock.local_us(moment));
      }
    }
  }
}

TEST(Limits, TakeAwayWhatTheyNameAndNothingElse) {
  bool had_events = false, had_jobs = false;
  for (uint64_t seed = 1; seed < 200; ++seed) {
    const Scenario whole = random_scenario(seed);
    had_events |= !whole.events.empty();
    had_jobs |= whole.jobs.size() > 1;
    ScenarioLimits limits;
    limits.faults = kLoss;
    limits.ranks = 2;
    limits.operations = 1;
    const Scenario part = random_scenario(seed, limits);
    EXPECT_EQ(part.worker_up.loss, whole.worker_up.loss);
    EXPECT_EQ(part.worker_up.duplicate + part.worker_up.late + part.worker_up.corrupt, 0);
    EXPECT_EQ(part.payload_bytes, whole.payload_bytes);
    EXPECT_THAT(part.events, IsEmpty());
    ASSERT_EQ(part.jobs.size(), 1u);
    EXPECT_EQ(part.jobs[0].key, whole.jobs[0].key);
    EXPECT_LE(part.jobs[0].ranks, 2);
    EXPECT_EQ(part.jobs[0].hosts.size(), static_cast<size_t>(part.jobs[0].ranks));
    EXPECT_LE(part.jobs[0].operations.size(), 1u);
    EXPECT_EQ(part.jobs[0].ending, Ending::kSuccess);
  }
  EXPECT_TRUE(had_events && had_jobs);
}

TEST(Limits, AreWrittenAsTheFlagsThatGiveThem) {
  ScenarioLimits limits;
  EXPECT_EQ(flags_of(7, limits), "--seed 7");
  limits.faults = kLoss | kPause;
  limits.ranks = 2;
  limits.elements = 0;
  EXPECT_EQ(flags_of(7, limits), "--seed 7 --faults loss,pause --max-ranks 2 --max-elements 0");
}

TEST(Limits, FaultsHaveNames) {
  EXPECT_EQ(*parse_faults("all"), kAllFaults);
  EXPECT_EQ(*parse_faults("none"), 0u);
  EXPECT_EQ(*parse_faults(fault_names(kAllFaults)), kAllFaults);
  EXPECT_EQ(*parse_faults("crash,loss"), kLoss | kCrash);
  for (const char* text : {"los", "loss,", "loss,,late", "loss, late"}) {
    const Result<Faults> bad = parse_faults(text);
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_THAT(bad.status().message(), HasSubstr("partition,pause"));
  }
}

}  // namespace
}  // namespace netsum::emulate::events_test
