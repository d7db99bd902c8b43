// Verified sums: aggregators that lie, one kind of lie at a time, and what they cannot do. random_runs_test.cc has all of them
// at random, beside all other faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>

#include "emulate/campaign.h"
#include "emulate/result_checker.h"
#include "emulate/simulation.h"
#include "src/base/soak.h"
#include "src/verify/verified_sums.h"

namespace netsum::emulate::lies_test {
namespace {

constexpr auto kKinds = static_cast<int>(Lie::kCount);

OperationPlan operation(DataType type, Content content, size_t count, int ranks) {
  OperationPlan plan;
  plan.type = type;
  plan.content = content;
  plan.tensors = {{count, true}, {count / 3, false}};
  plan.submit_at_us.assign(static_cast<size_t>(ranks), 0);
  return plan;
}

// Sums in narrow and wide lanes of all widths, zeros, and bytes that are moved. Two jobs of different epochs at the same
// time, so that there are contributions of another one.
Scenario scenario_of(int ranks) {
  Scenario scenario = quiet_scenario(ranks, DataType::kFloat32, 16 * 40, 0);
  scenario.aggregators = 2;
  JobPlan& job = scenario.jobs[0];
  job.verifies_sums = true;
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kInt32, DataType::kInt64})
    for (const Content content : {Content::kPlain, Content::kSpecial, Content::kZeros})
      job.operations.push_back(operation(type, content, 500, ranks));
  // Chunks with scales of two packets' counts: each element is a tensor.
  OperationPlan many = operation(DataType::kBFloat16, Content::kPlain, 0, ranks);
  many.tensors.assign(60, {1, false});
  job.operations.push_back(many);
  OperationPlan moved = operation(DataType::kByte, Content::kPlain, 2000, ranks);
  moved.collective = Collective::kBroadcast;
  moved.root = ranks - 1;
  job.operations.push_back(moved);
  JobPlan other = job;
  other.job = 1;
  other.key.k0 ^= 77;
  scenario.jobs.push_back(other);
  return scenario;
}

void without_tags(Scenario* scenario) {
  for (JobPlan& job : scenario->jobs) job.tag = NETSUM_TAG_COOKIE;
}

void let_fail(Scenario* scenario) {
  for (JobPlan& job : scenario->jobs) job.ending = Ending::kSuccessOrLoss;
}

uint64_t injected(const Report& report) {
  uint64_t sum = 0;
  for (const uint64_t lies : report.lies.injected) sum += lies;
  return sum;
}

// Without and with racks, on a network that loses and duplicates packets.
void expect_all_verified(std::initializer_list<int> worlds, uint64_t least,
                         const std::function<void(int ranks, Scenario*)>& set_up,
                         const std::function<void(const Scenario&, const Report&)>& check = {}) {
  for (const int ranks : worlds) {
    for (const int racks : {0, 2}) {
      Scenario scenario = scenario_of(ranks);
      scenario.racks = racks;
      set_up(ranks, &scenario);
      scenario.worker_up.loss = scenario.worker_down.loss = 0.02;
      scenario.worker_down.duplicate = 0.05;
      const Report report = Simulation(scenario).run();
      ASSERT_EQ(report.first_problem(), "") << ranks;
      if (check) check(scenario, report);
      for (const RankReport& rank : report.jobs[0]) {
        EXPECT_GT(rank.sums_verified, least);
        EXPECT_EQ(rank.sums_refused, 0u);
      }
    }
  }
}

TEST(Lies, WithoutThemEverySumIsVerifiedAndNoneIsRefused) {
  expect_all_verified({1, 2, 5, 16, 17}, 500, [](int ranks, Scenario* scenario) {
    if (ranks % 2 == 1) without_tags(scenario);
  });
}

// A kind at a time, about one sum in ten. No wrong sum is delivered, and none that is right refused: the simulation compares
// every result with the truth. `set_up` says what lies where.
void expect_none_believed(int ranks, const std::function<void(uint64_t seed, Scenario*)>& set_up,
                          const std::function<void(const Report&)>& check = {}) {
  for (int kind = 0; kind < kKinds; ++kind) {
    SCOPED_TRACE(name_of(static_cast<Lie>(kind)));
    uint64_t lies = 0, refused = 0;
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      Scenario scenario = scenario_of(ranks);
      scenario.seed = seed;
      set_up(seed, &scenario);
      scenario.lies.kind = static_cast<Lie>(kind);
      let_fail(&scenario);
      const Report report = Simulation(scenario).run();
      ASSERT_TRUE(report.violations.empty()) << report.violations.front();
      if (check) check(report);
      lies += injected(report);
      refused += report.lies.wrong_refused;
    }
    EXPECT_GT(lies, 10u);
    EXPECT_GT(refused, 5u);
  }
}

TEST(Lies, NoneIsBelieved) {
  expect_none_believed(3, [](uint64_t seed, Scenario* scenario) {
    scenario->racks = seed % 3 == 0 ? 2 : 0;
    if (seed % 2 == 0) without_tags(scenario);
    scenario->lies.probability = 0.02;
  });
}

void use_switches(Scenario* scenario) {
  without_tags(scenario);
  scenario->switches = true;
  scenario->rack_switches = scenario->racks > 0;
  scenario->payload_bytes = 320;  // two passes
}

// The model of the P4 pipeline, below its real control plane, alone and as spine and racks.
TEST(Lies, WithoutThemSumsOfSwitchesAreVerified) {
  expect_all_verified(
      {1, 2, 5, 17}, 100, [](int /*ranks*/, Scenario* scenario) { use_switches(scenario); },
      [](const Scenario& scenario, const Report& report) {
        EXPECT_EQ(report.events.switches, scenario.racks == 0 ? 2u : 6u);
      });
}

TEST(Lies, NoSwitchIsBelieved) {
  expect_none_believed(3, [](uint64_t seed, Scenario* scenario) {
    scenario->racks = seed % 3 == 0 ? 2 : 0;
    use_switches(scenario);
    scenario->lies.probability = scenario->lies.upwards = 0.02;
  });
}

TEST(Lies, BitsThatFlipInRegistersAreNotBelieved) {
  uint64_t sent = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Scenario scenario = scenario_of(3);
    scenario.seed = seed;
    scenario.racks = seed % 3 == 0 ? 2 : 0;
    use_switches(&scenario);
    scenario.lies.flipped_in_slots = 0.01;
    let_fail(&scenario);
    const Report report = Simulation(scenario).run();
    ASSERT_TRUE(report.violations.empty()) << "seed " << seed << ": " << report.violations.front();
    sent += report.lies.false_sent;
    refused += report.lies.wrong_refused;
  }
  EXPECT_GT(sent, 20u);
  EXPECT_GT(refused, 20u);
}

// Racks that alter what they contribute to their parent: it passes the false sum on to all ranks.
TEST(Lies, NoRackIsBelieved) {
  expect_none_believed(
      5,
      [](uint64_t seed, Scenario* scenario) {
        scenario->racks = 2 + static_cast<int>(seed % 2);
        if (seed % 4 < 2) without_tags(scenario);
        scenario->lies.upwards = 0.02;
      },
      [](const Report& report) { EXPECT_EQ(report.lies.injected_upwards, injected(report)); });
}

// Bits that flip on the way, in packets that have neither tag nor checksum: contributions, results, scales, headers, probes.
TEST(Lies, WhatIsAlteredOnTheWayWithoutTagsIsNotBelieved) {
  uint64_t corrupted = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Scenario scenario = scenario_of(3);
    scenario.seed = seed;
    without_tags(&scenario);
    LinkOptions& link = seed % 2 == 0 ? scenario.worker_up : scenario.worker_down;
    link.corrupt = seed % 4 < 2 ? 0.002 : 0.02;
    for (JobPlan& job : scenario.jobs) job.ending = Ending::kAny;
    const Report report = Simulation(scenario).run();
    ASSERT_TRUE(report.violations.empty()) << "seed " << seed << ": " << report.violations.front();
    corrupted += report.network.corrupted;
    for (const auto& job : report.jobs)
      for (const RankReport& rank : job) refused += rank.sums_refused;
  }
  EXPECT_GT(corrupted, 100u);
  EXPECT_GT(refused, 50u);
}

// A fault that does not repeat itself costs a retransmission. (False scales end the job: what a rank has agreed on, it has.)
TEST(Lies, WhatIsRightThreeTimesLaterIsTaken) {
  for (const Lie kind : {Lie::kFlippedBit, Lie::kDoubled, Lie::kOverflow}) {
    Scenario scenario = quiet_scenario(3, DataType::kByte, 4000, 2);
    scenario.jobs[0].verifies_sums = true;
    for (OperationPlan& plan : scenario.jobs[0].operations) {
      plan.collective = Collective::kBroadcast;
      plan.content = Content::kPlain;
    }
    scenario.lies = {.probability = 0.5, .kind = kind, .times = 3};
    const Report report = Simulation(scenario).run();
    ASSERT_EQ(report.first_problem(), "") << name_of(kind);
    EXPECT_GT(report.lies.wrong_refused, 30u);
    EXPECT_GE(report.retransmissions(), report.lies.wrong_refused);
  }
}

// The fourth time is once too often. All ranks are told.
TEST(Lies, WhatStaysWrongEndsTheJobWithAnErrorThatSaysWhere) {
  Scenario scenario = quiet_scenario(3, DataType::kByte, 400, 1);
  scenario.jobs[0].verifies_sums = true;
  scenario.jobs[0].operations[0].collective = Collective::kBroadcast;
  scenario.lies = {.probability = 1, .kind = Lie::kOffByOne, .times = 4};
  let_fail(&scenario);
  const Report report = Simulation(scenario).run();
  ASSERT_TRUE(report.violations.empty()) << report.violations.front();
  for (const RankReport& rank : report.jobs[0]) {
    const Status& status = rank.operations[0].status;
    EXPECT_EQ(status.code(), ErrorCode::kWrongSum);
    EXPECT_THAT(status.message(), testing::HasSubstr("broadcast #0"));
    EXPECT_THAT(status.message(), testing::HasSubstr("10.0.255.0:5152 (stripe 0"));
  }
}

// In the slots of aggregators, and in what ranks have received. (A scale that flips is noticed when it is confirmed.)
TEST(Lies, BitsThatFlipInMemoryAreNotBelieved) {
  for (const bool in_slots : {true, false}) {
    LieCounters sum;
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      Scenario scenario = scenario_of(3);
      scenario.seed = seed;
      scenario.racks = seed % 3 == 0 ? 2 : 0;
      if (seed % 2 == 0) without_tags(&scenario);
      (in_slots ? scenario.lies.flipped_in_slots : scenario.lies.flipped_in_ranks) = 0.01;
      let_fail(&scenario);
      const Report report = Simulation(scenario).run();
      ASSERT_TRUE(report.violations.empty()) << "seed " << seed << ": " << report.violations.front();
      sum.false_sent += report.lies.false_sent;
      sum.flipped_in_ranks += report.lies.flipped_in_ranks;
      sum.wrong_refused += report.lies.wrong_refused;
    }
    EXPECT_EQ(sum.false_sent > 20, in_slots);
    EXPECT_EQ(sum.flipped_in_ranks > 20, !in_slots);
    EXPECT_GT(sum.wrong_refused, 20u);
  }
}

// Two ranks that send 1 and 2 in one lane of 32 bits, or as one scale.
class JudgeTest : public testing::Test {
 protected:
  void send(uint8_t format, uint32_t bytes) {
    fields_.format = format;
    fields_.payload_bytes = bytes;
    for (uint8_t rank = 0; rank < 2; ++rank) {
      const std::vector<uint8_t> payload = with(static_cast<uint8_t>(rank + 1));
      result_checker_.note_contribution(round_, rank, fields_, payload.data());
      result_checker_.note_contribution(round_, rank, fields_, payload.data());  // again
    }
  }
  std::string get(uint8_t value, const ResultChecker::Reaction& reaction) {
    return result_checker_.check(round_, 0, 2, fields_, with(value).data(), reaction);
  }
  static std::vector<uint8_t> with(uint8_t value) {
    std::vector<uint8_t> payload(64);
    payload[0] = value;
    return payload;
  }

  ResultChecker result_checker_;
  ResultChecker::Round round_{.aggregator = 0, .job = 3, .epoch = 4, .slot = 5, .round = 1};
  netsum_fields fields_{};
};
constexpr ResultChecker::Reaction kIgnored{.waited = true}, kTaken{.waited = true, .taken = true},
    kRefused{.waited = true, .refused = true};
constexpr uint32_t kBytes = 64;

TEST_F(JudgeTest, ASumIsTakenIfAndOnlyIfItIsThatOfAll) {
  send(NETSUM_FORMAT_SUM_I32, kBytes);
  EXPECT_TRUE(result_checker_.is_right(round_, 2, fields_, with(3).data()));
  EXPECT_FALSE(result_checker_.is_right(round_, 3, fields_, with(3).data()));  // one has not contributed
  EXPECT_EQ(get(3, kTaken), "");
  EXPECT_EQ(get(2, kRefused), "");
  EXPECT_EQ(get(2, {}), "");  // too late
  EXPECT_THAT(get(2, kTaken), testing::HasSubstr("a wrong sum was taken"));
  EXPECT_THAT(get(2, kIgnored), testing::HasSubstr("nobody has noticed a false result"));
  EXPECT_EQ(result_checker_.false_alarms(), 0u);
  EXPECT_THAT(get(3, kRefused), testing::HasSubstr("a right sum was refused"));
  EXPECT_EQ(result_checker_.false_alarms(), 1u);
}

TEST_F(JudgeTest, KnowsWhoHasTakenFalseScales) {
  send(NETSUM_FORMAT_MAX_U8, 8);
  EXPECT_EQ(get(2, kTaken), "");
  EXPECT_TRUE(result_checker_.misled().empty());
  ResultChecker::Reaction of_weights = kTaken;
  of_weights.of_weights = true;
  EXPECT_EQ(get(3, of_weights), "");
  ASSERT_EQ(result_checker_.misled().size(), 1u);
  EXPECT_TRUE(result_checker_.misled().front().of_weights);
  EXPECT_EQ(result_checker_.misled().front().job, ResultChecker::Job(3, 4));
  EXPECT_TRUE(result_checker_.lied_to().contains({3, 4}));
  EXPECT_TRUE(result_checker_.alarmed().empty());
  EXPECT_THAT(get(2, kTaken), testing::HasSubstr("have not been noticed"));
  // Its counts, one for each scale in 16 bits, behind which is the tag.
  round_.round = 2;
  send(NETSUM_FORMAT_SUM_I16, 16 + verify::tag_bytes(2, 2));
  EXPECT_THAT(get(3, kTaken), testing::HasSubstr("false scales were confirmed"));
}

// Random runs beside all other faults, each with aggregators that lie. `netsum simulate --lying` does the same with flags.
TEST(Lies, NoneIsBelievedInRandomRuns) {
  const char* wanted = std::getenv("NETSUM_SIM_RUNS");
  const uint64_t runs = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : soak() ? 200'000 : 250;
  const char* first = std::getenv("NETSUM_SIM_SEED");
  const uint64_t first_seed = first != nullptr ? std::strtoull(first, nullptr, 10) : 1;
  Tally tally;
  for (uint64_t seed = first_seed; seed < first_seed + runs; ++seed) {
    const Report report = run_seed(seed, {.lying = true});
    ASSERT_TRUE(report.violations.empty())
        << report.violations.front() << "\nrerun: netsum simulate " << flags_of(seed, {.lying = true});
    tally.add(report);
  }
  std::printf("%s", describe(tally).c_str());
  EXPECT_GT(tally.lies_injected(), 2 * runs);
  for (size_t kind = 0; kind < tally.lies.injected.size(); ++kind)
    EXPECT_GT(tally.lies.injected[kind], 0u) << name_of(static_cast<Lie>(kind));
  EXPECT_GT(tally.runs_upwards, runs / 20);
  EXPECT_GT(tally.runs_switches, runs / 20);
  EXPECT_GT(tally.lies.wrong_refused, runs);
  EXPECT_GT(tally.lies.false_scales, runs / 20);
  EXPECT_GT(tally.sums_verified, 10 * runs);
}

// Scales that no rank has are found when the ranks count who has them, before data is sent.
TEST(Lies, ScalesThatAreTooLargeAreFoundBeforeDataIsSent) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Scenario scenario = quiet_scenario(3, DataType::kFloat32, 16 * 400, 1);
    scenario.seed = seed;
    scenario.jobs[0].verifies_sums = true;
    scenario.jobs[0].operations[0].content = Content::kWideRange;
    let_fail(&scenario);
    Simulation simulation(scenario);
    bool raised = false, data = false;
    simulation.set_filter([&](const Address&, const OutPacket& packet) {
      netsum_fields fields;
      netsum_parse(packet.data, packet.size, &fields);
      data |= fields.type == NETSUM_TYPE_CONTRIBUTION && fields.format == NETSUM_FORMAT_SUM_I32;
      raised |= fields.type == NETSUM_TYPE_RESULT && fields.format == NETSUM_FORMAT_MAX_U8;
      return true;
    });
    simulation.set_result([seed](netsum_fields* fields, uint8_t* payload) {
      if (fields->format != NETSUM_FORMAT_MAX_U8) return false;
      uint8_t& scale = payload[seed % fields->payload_bytes];
      scale = static_cast<uint8_t>(scale + 1);
      return true;
    });
    const Report report = simulation.run();
    ASSERT_TRUE(report.violations.empty()) << report.violations.front();
    EXPECT_TRUE(raised);
    EXPECT_FALSE(data);
    for (const RankReport& rank : report.jobs[0])
      EXPECT_EQ(rank.operations[0].status.code(), ErrorCode::kWrongSum);
  }
}

// As above, with scales whose counts need two packets: those of the second.
TEST(Lies, AllScalesOfAGroupAreCounted) {
  for (const uint32_t at : {0u, 22u, 24u, 46u}) {
    Scenario scenario = quiet_scenario(3, DataType::kBFloat16, 0, 1);
    scenario.jobs[0].verifies_sums = true;
    scenario.jobs[0].operations[0].tensors.assign(24, {1, false});
    let_fail(&scenario);
    Simulation simulation(scenario);
    simulation.set_result([at](netsum_fields* fields, uint8_t* payload) {
      if (fields->format != NETSUM_FORMAT_MAX_U8) return false;
      EXPECT_EQ(fields->payload_bytes, 48u);
      ++payload[at];
      return true;
    });
    const Report report = simulation.run();
    ASSERT_TRUE(report.violations.empty()) << report.violations.front();
    for (const RankReport& rank : report.jobs[0])
      EXPECT_EQ(rank.operations[0].status.code(), ErrorCode::kWrongSum) << at;
  }
}

// Scales that are those of one rank, but not of the other, whose elements are larger.
TEST(Lies, ScalesBelowThoseOfARankAreRefusedByIt) {
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 1, 1);
  scenario.jobs[0].verifies_sums = true;
  let_fail(&scenario);
  Simulation simulation(scenario);
  const float small = 1, large = 1000;
  simulation.memory(0, 0).set_input(0, 0, &small);
  simulation.memory(0, 0).set_input(1, 0, &large);
  simulation.set_result([](netsum_fields* fields, uint8_t* payload) {
    if (fields->format != NETSUM_FORMAT_MAX_U8) return false;
    payload[0] = 127;  // that of 1
    return true;
  });
  const Report report = simulation.run();
  ASSERT_TRUE(report.violations.empty()) << report.violations.front();
  EXPECT_EQ(report.jobs[0][1].operations[0].status.code(), ErrorCode::kWrongSum);
  EXPECT_EQ(report.jobs[0][1].sums_refused, 4u);
}

}  // namespace
}  // namespace netsum::emulate::lies_test
