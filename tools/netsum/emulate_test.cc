#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tools/netsum/emulate_check.h"
#include "tools/netsum/emulate_plan.h"
#include "tools/netsum/emulate_report.h"

namespace netsum::tool::emulate_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

class EmulateTest : public testing::Test {
 protected:
  EmulateTest() : folder_(std::filesystem::path(testing::TempDir()) / "emulate-XXXXXX") {
    std::string name = folder_.string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~EmulateTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  void write_record(const std::string& name, int rank, int ranks, const std::string& model = "m") const {
    Json header = {{"format", "netsum-program"},
                   {"version", 1},
                   {"world_size", ranks},
                   {"rank", rank},
                   {"model", model},
                   {"netsum", "0.2.0"},
                   {"machine", "here"},
                   {"clock", "steady, ns"},
                   {"steps", 1}};
    write(name, header.dump() +
                    "\n"
                    R"({"step":0,"operations":[],"threads":[[["compute",5]]],"duration_ns":5})"
                    "\n");
  }

  std::filesystem::path folder_;
};

TEST_F(EmulateTest, AProfileIsAPrefixOrAFolder) {
  write_record("run.0.jsonl", 0, 3);
  write_record("run.2.jsonl", 2, 3);
  write("run.x.jsonl.tmp", "no record");
  EmulatePlan plan;
  plan.ranks = 3;
  for (const std::string& profile : {path("run"), folder_.string()}) {
    plan.profile = profile;
    const auto records = read_profile(plan);
    ASSERT_TRUE(records.ok()) << records.status().to_string();
    ASSERT_EQ(records->size(), 2u);
    EXPECT_EQ((*records)[1].header.rank, 2);
  }
}

TEST_F(EmulateTest, WrongProfilesAreRefused) {
  EmulatePlan plan;
  plan.ranks = 4;
  plan.profile = path("run");
  const auto why = [&] { return read_profile(plan).status().message(); };
  EXPECT_THAT(why(), HasSubstr("there is no such file"));
  write_record("run.0.jsonl", 0, 3);
  EXPECT_THAT(why(), HasSubstr("recorded in a job of 3 ranks, not 4: give --ranks 3, or --other-size"));
  plan.other_size = true;
  EXPECT_EQ(why(), "");
  write_record("run.1.jsonl", 0, 3);
  EXPECT_THAT(why(), HasSubstr("its name says 1"));
  write_record("run.1.jsonl", 1, 3, "other");
  EXPECT_THAT(why(), HasSubstr("model 'other'"));
  write("run.1.jsonl", "{}\n");
  EXPECT_THAT(why(), HasSubstr("run.1.jsonl:1: this is no program"));
}

TEST_F(EmulateTest, APlanIsReadAsItWasWritten) {
  EmulatePlan plan;
  plan.ranks = 8;
  plan.real = 2;
  plan.rack_size = 4;
  plan.dilate = 2.5;
  plan.knobs[3].speed = 0.5;
  plan.knobs[3].stragglers = {{.factor = 1.2, .from = 10, .to = 50}};
  plan.knobs[4].pauses_ns = {{7, 1'000'000'000}};
  plan.knobs[5].crash = 20;
  plan.late[6] = std::chrono::seconds(5);
  plan.network_namespaces[1] = "netsum-x-w1";
  plan.own_ranks = {2, 3};
  const Json json = to_json(plan);
  EXPECT_EQ(to_json(emulate_plan_from_json(json)), json);
}

// Two ranks, of which ghost 1 is the last in each operation of the steps after the first.
TEST_F(EmulateTest, TheReportSaysWhoWasWaitedFor) {
  EmulatePlan plan;
  plan.ranks = 2;
  plan.real = 1;
  const auto rank = [](int number, std::vector<int64_t> submitted) {
    return Json{{"rank", number},
                {"of_all", {0, 1, 2}},
                {"in_first_step", 1},
                {"begins_us", {0, 100'000, 200'000, 300'000}},
                {"submitted_us", std::move(submitted)},
                {"done_us", {100'000, 200'000, 310'000}},
                {"lateness_ns", {9'000'000, 1'000, 2'000}},
                {"bytes_sent", 1000},
                {"bytes_received", 2000}};
  };
  const auto result = [&](const std::string& name, bool is_real, Json one) {
    write(
        name,
        Json{{"is_real", is_real}, {"cpu_seconds", 1.5}, {"peak_bytes", 1 << 20}, {"ranks", {std::move(one)}}}
            .dump());
  };
  result("0", true, rank(0, {90'000, 150'000, 250'000}));
  result("1", false, rank(1, {10'000, 170'000, 260'000}));
  EmulateReport report(plan, {0, 1, 2});
  ASSERT_TRUE(report.add_result(path("0")).ok());
  ASSERT_TRUE(report.add_result(path("1")).ok());
  const auto json = report.to_json();
  ASSERT_TRUE(json.ok()) << json.status().to_string();
  EXPECT_THAT(json->at("steps").get<std::vector<double>>(),
              testing::ElementsAre(testing::DoubleEq(0.1), testing::DoubleEq(0.11)));
  EXPECT_EQ(json->at("verdict"), "valid") << *json;
  for (const auto& [first_ids, seconds] :
       {std::pair(std::vector<uint64_t>{0, 0, 1, 2}, std::vector<double>{0.1, 0.11}),
        std::pair(std::vector<uint64_t>{0, 1, 1, 2}, std::vector<double>{0.05, 0.05, 0.11})}) {
    EmulateReport with_empty(plan, first_ids);
    ASSERT_TRUE(with_empty.add_result(path("0")).ok());
    EXPECT_THAT(with_empty.to_json()->at("steps").get<std::vector<double>>(),
                testing::Pointwise(testing::DoubleEq(), seconds));
  }
  ASSERT_EQ(json->at("waited_for").size(), 1u);
  EXPECT_EQ(json->at("waited_for")[0].at("rank"), 1);
  EXPECT_DOUBLE_EQ(json->at("waited_for")[0].at("seconds"), 0.03);
  EXPECT_DOUBLE_EQ(json->at("ghosts").at("lateness_seconds").at("most"), 2e-6) << "without the first step";
  EXPECT_THAT(report_text(*json), HasSubstr("rank 1 was last in 100 % of the operations"));
  const std::string page = report_page(*json);
  EXPECT_THAT(page, HasSubstr("rank 1 was last in 100 % of the operations"));
  EXPECT_THAT(page, HasSubstr("<polyline"));
}

TEST_F(EmulateTest, LateGhostsMakeARunVoid) {
  EmulatePlan plan;
  plan.ranks = 1;
  write("0", Json{{"is_real", false},
                  {"cpu_seconds", 1},
                  {"peak_bytes", 1},
                  {"ranks",
                   {{{"rank", 0},
                     {"of_all", {0, 1}},
                     {"in_first_step", 1},
                     {"submitted_us", {1, 2}},
                     {"done_us", {100'000, 200'000}},
                     {"lateness_ns", {0, 201'000}},
                     {"bytes_sent", 0},
                     {"bytes_received", 0}}}}}
                 .dump());
  EmulateReport report(plan, {0, 1});
  ASSERT_TRUE(report.add_result(path("0")).ok());
  const auto json = report.to_json();
  ASSERT_TRUE(json.ok()) << json.status().to_string();
  EXPECT_EQ(json->at("verdict"), "void");
  EXPECT_THAT(report_text(*json),
              HasSubstr("the ghosts were late: 99 of 100 operations by up to 201.0 us = 0.20 % of a step"));
  EXPECT_THAT(report_text(*json), testing::Not(HasSubstr("hypervisor")));
  report.set_stolen_share(0.012);
  EXPECT_THAT(report_text(*report.to_json()), HasSubstr("its hypervisor gave 1.2 % of the time"));
}

TEST_F(EmulateTest, DilatedTimesAreReportedAsThoseOfTheJob) {
  EmulatePlan plan;
  plan.ranks = plan.real = 1;
  plan.dilate = 2;
  plan.knobs[0].speed = 0.5;
  plan.knobs[0].pauses_ns[3] = 1000;
  EXPECT_EQ(plan.knobs_of(0).factor(0), 4);
  EXPECT_EQ(plan.knobs_of(0).pauses_ns.at(3), 2000);
  EXPECT_EQ(plan.knobs_of(1).factor(0), 2);
  write("0", Json{{"is_real", false},
                  {"cpu_seconds", 1},
                  {"peak_bytes", 1},
                  {"ranks",
                   {{{"rank", 0},
                     {"of_all", {0, 1}},
                     {"in_first_step", 1},
                     {"submitted_us", {1, 2}},
                     {"done_us", {100'000, 200'000}},
                     {"lateness_ns", {0, 50'000}},
                     {"bytes_sent", 0},
                     {"bytes_received", 0}}}}}
                 .dump());
  EmulateReport report(plan, {0, 1});
  ASSERT_TRUE(report.add_result(path("0")).ok());
  report.set_correlation(0.9);
  const auto json = report.to_json();
  ASSERT_TRUE(json.ok());
  EXPECT_DOUBLE_EQ(json->at("steps")[0], 0.05);
  EXPECT_DOUBLE_EQ(json->at("ghosts").at("lateness_seconds").at("most"), 25e-6);
  EXPECT_THAT(report_text(*json), HasSubstr("the recorded ones do (correlation 0.90)"));
}

TEST_F(EmulateTest, ATraceGivesTheTimesOfARealRank) {
  EmulatePlan plan;
  plan.ranks = 1;
  plan.real = 1;
  const auto event = [](const char* phase, const char* name, int64_t at, const char* number) {
    return Json{{"name", name}, {"ph", phase}, {"ts", at}, {"id2", {{"local", number}}}};
  };
  write("trace",
        Json{{"traceEvents",
              {event("b", "all_reduce #0 int32[1]", 1, "0"), event("b", "all_reduce #1 float32[9]", 50, "1"),
               event("b", "data", 60, "1"), event("e", "all_reduce #1 float32[9]", 90, "1")}}}
            .dump());
  EmulateReport report(plan, {0});
  ASSERT_TRUE(report.add_trace(0, path("trace"), {0}, true).ok());
  const auto json = report.to_json();
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->at("waited_for")[0].at("operations"), 1);
  EXPECT_EQ(json->at("verdict"), "void") << "no step has ended";
  write("trace", "[");
  EXPECT_FALSE(report.add_trace(0, path("trace"), {0}, true).ok());
}

// Operation 1 of both ranks is of a group that the other one is not in.
TEST_F(EmulateTest, OnlyOperationsOfAllRanksAreWaitedFor) {
  EmulatePlan plan;
  plan.ranks = 2;
  EmulateReport report(plan, {0, 1});
  for (const int rank : {0, 1}) {
    write("result", Json{{"is_real", false},
                         {"cpu_seconds", 1},
                         {"peak_bytes", 1},
                         {"ranks",
                          {{{"rank", rank},
                            {"of_all", rank == 0 ? Json{0, 2} : Json{0, 1}},
                            {"in_first_step", 1},
                            {"submitted_us", rank == 0 ? Json{10, 900, 1000} : Json{20, 1010}},
                            {"done_us", rank == 0 ? Json{50, 950, 2000} : Json{50, 2000}},
                            {"lateness_ns", Json::array()},
                            {"bytes_sent", 0},
                            {"bytes_received", 0}}}}}
                        .dump());
    ASSERT_TRUE(report.add_result(path("result")).ok());
  }
  const auto json = report.to_json();
  ASSERT_TRUE(json.ok());
  ASSERT_EQ(json->at("waited_for").size(), 1u) << *json;
  EXPECT_EQ(json->at("waited_for")[0].at("rank"), 1);
  EXPECT_EQ(json->at("waited_for")[0].at("operations"), 1);
  EXPECT_DOUBLE_EQ(json->at("waited_for")[0].at("seconds"), 10e-6);
}

TEST(MedianInterval, HoldsTheMedian) {
  const MedianInterval same = median_interval({2, 2, 2});
  EXPECT_EQ(same.median, 2);
  EXPECT_EQ(same.half_width(), 0);
  const MedianInterval spread = median_interval({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(spread.median, 4.5);
  EXPECT_GE(spread.low, 1);
  EXPECT_LT(spread.low, 4.5);
  EXPECT_GT(spread.high, 4.5);
  EXPECT_LE(spread.high, 8);
}

CheckRound round_of(double real, double ghosts, double again) {
  const auto report = [](double step) {
    return Json{
        {"step_seconds", {{"median", step}}},
        {"ghosts", {{"cpu_seconds", 1}, {"peak_bytes", 14 << 20}, {"count", 7}, {"lateness_share", 0}}}};
  };
  return {report(real), report(ghosts), report(again)};
}

TEST(Check, TellsSameFromDifferentAndUnknown) {
  EXPECT_EQ(check_report({round_of(1, 1.001, 1), round_of(1, 0.999, 1.001)}).at("verdict"), "same");
  EXPECT_EQ(check_report({round_of(1, 1.05, 1), round_of(1, 1.051, 1)}).at("verdict"), "different");
  EXPECT_EQ(check_report({round_of(1, 1, 1)}).at("ghost_mib"), 2);
  EXPECT_EQ(check_report({round_of(1, 1, 1.01), round_of(1, 1, 1.01)}).at("verdict"), "unknown");
  EXPECT_EQ(check_report({round_of(1, 1.1, 1), round_of(1, 0.9, 1)}).at("verdict"), "unknown");
}

TEST(Check, ComparesARecordWithTheRunThatWasRecorded) {
  CheckRound round = round_of(1, 1.02, 1.04);
  EXPECT_NEAR(check_report({round}).at("difference").at("median"), 0, 1e-12);
  round.replays_real = true;
  EXPECT_NEAR(check_report({round}).at("difference").at("median"), 0.02, 1e-12);
}

}  // namespace
}  // namespace netsum::tool::emulate_test
