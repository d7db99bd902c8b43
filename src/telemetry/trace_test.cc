#include "src/telemetry/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace netsum::trace_test {
namespace {

using Json = nlohmann::json;

class TraceTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) { return folder_ + name; }

  std::unique_ptr<TraceLog> open(const std::string& name, size_t max_records = 100) {
    auto trace = TraceLog::open(path(name), "a/job", 3, max_records);
    EXPECT_TRUE(trace.ok()) << trace.status().to_string();
    return std::move(trace).value();
  }
  static Json load(const std::string& file) {
    std::ifstream in(file);
    return Json::parse(in);
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string folder_ = [] {
    std::string pattern = ::testing::TempDir() + "/netsum_trace_XXXXXX";
    return std::string(mkdtemp(pattern.data())) + "/";
  }();
};

TraceRecord record(uint64_t number) {
  return {.number = number,
          .type = DataType::kBFloat16,
          .elements = 1000,
          .submitted_us = 100,
          .first_scale_us = 110,
          .scales_agreed_us = 150,
          .first_data_us = 140,
          .done_us = 400,
          .packets = 5,
          .retransmissions = 2};
}

TEST_F(TraceTest, AnOperationHasTheNameOfItsCollectiveAndTheIdOfItsFirstTensor) {
  auto trace = open("t.json");
  TraceRecord identified = record(8);
  identified.collective = "reduce";
  identified.tensor_id = UINT64_MAX;
  trace->add(record(7));
  trace->add(identified);
  trace.reset();
  std::map<std::string, Json> begun;
  const Json file = load(path("t.json"));
  for (const Json& event : file.at("traceEvents"))
    if (event.at("ph") == "b" && event.contains("args")) begun[event.at("name")] = event.at("args");
  ASSERT_EQ(begun.size(), 2u);
  EXPECT_FALSE(begun.at("all_reduce #7 bfloat16[1000]").contains("tensor"));
  EXPECT_EQ(begun.at("reduce #8 bfloat16[1000]").at("tensor"), UINT64_MAX);
}

TEST_F(TraceTest, AnOperationIsASpanWithItsPhasesInside) {
  auto trace = open("t.json");
  trace->add(record(7));
  trace.reset();
  const Json file = load(path("t.json"));
  std::map<std::string, std::pair<int64_t, int64_t>> spans;
  for (const Json& event : file.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("ph") == "b") spans[event.at("name")].first = event.at("ts");
    if (event.at("ph") == "e") spans[event.at("name")].second = event.at("ts");
    if (event.at("ph") == "b" || event.at("ph") == "e") {
      EXPECT_EQ(event.at("id2").at("local"), "7");
    }
    if (event.at("name") == "all_reduce #7 bfloat16[1000]" && event.at("ph") == "b") {
      EXPECT_EQ(event.at("args").at("bytes"), 2000);
      EXPECT_EQ(event.at("args").at("retransmissions"), 2);
      EXPECT_EQ(event.at("args").at("ok"), true);
    }
  }
  ASSERT_EQ(spans.size(), 3u);
  const auto [begin, end] = spans.at("all_reduce #7 bfloat16[1000]");
  EXPECT_EQ(end - begin, 300);
  EXPECT_EQ(spans.at("scales"), std::pair(begin + 10, begin + 50));
  EXPECT_EQ(spans.at("data"), std::pair(begin + 40, begin + 300));
}

TEST_F(TraceTest, WhatNeverBeganHasNoSpan) {
  auto trace = open("t.json");
  TraceRecord early = record(0);
  early.first_scale_us = early.scales_agreed_us = early.first_data_us = 0;
  early.ok = false;
  trace->add(early);
  trace.reset();
  int spans = 0;
  const Json file = load(path("t.json"));
  for (const Json& event : file.at("traceEvents")) spans += event.at("ph") == "b" ? 1 : 0;
  EXPECT_EQ(spans, 1);
}

TEST_F(TraceTest, OnlyTheNewestAreKept) {
  auto trace = open("t.json", 5);
  for (uint64_t number = 0; number < 8; ++number) trace->add(record(number));
  trace.reset();
  const Json file = load(path("t.json"));
  EXPECT_EQ(file.at("otherData").at("operations"), 8);
  EXPECT_EQ(file.at("otherData").at("operations_left_out"), 3);
  std::vector<std::string> numbers;
  for (const Json& event : file.at("traceEvents")) {
    if (event.at("ph") == "b" && event.at("name") == "data") numbers.push_back(event.at("id2").at("local"));
  }
  EXPECT_THAT(numbers, ::testing::ElementsAre("3", "4", "5", "6", "7"));
}

TEST_F(TraceTest, RankAndJobInThePath) {
  open("{job}-of-{rank}.json").reset();
  EXPECT_EQ(load(path("a_job-of-3.json")).at("otherData").at("job"), "a/job");
}

TEST_F(TraceTest, APathThatCannotBeWrittenIsNamed) {
  const auto trace = TraceLog::open(path("no/such/folder.json"), "job", 0);
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(trace.status().message(), ::testing::HasSubstr("no/such/folder.json"));
}

}  // namespace
}  // namespace netsum::trace_test
