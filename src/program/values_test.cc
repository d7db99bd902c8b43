#include "src/program/values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace netsum::program::values_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Rank 3, which is rank 0 of group 7.
Program example() {
  Program program;
  program.header = {
      .world_size = 4, .rank = 3, .groups = {{.id = 0, .ranks = {0, 1, 2, 3}}, {.id = 7, .ranks = {3, 1}}}};
  program.steps = {
      {.operations =
           {{.count = 3},
            {.collective = Collective::kAllGather, .type = DataType::kByte, .count = 8},
            {.collective = Collective::kBroadcast, .type = DataType::kByte, .count = 5, .root = 0}}},
      {.number = 1,
       .operations = {{.collective = Collective::kAllGather,
                       .type = DataType::kByte,
                       .count = 5,
                       .parts = {1, 4},
                       .group = 7}}}};
  return program;
}

const std::vector<std::vector<uint8_t>> kValues = {
    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {13, 14}, {}, {15}};

std::string written(std::span<const std::vector<uint8_t>> values = kValues) {
  std::ostringstream out;
  EXPECT_TRUE(write_values(out, example(), values).ok());
  return out.str();
}

TEST(Values, AreReadAsTheyWereWritten) {
  const std::string file = written();
  const auto values = read_values(bytes_of(file), example(), "f");
  ASSERT_TRUE(values.ok()) << values.status().message();
  ASSERT_EQ(values->size(), kValues.size());
  for (size_t i = 0; i < kValues.size(); ++i)
    EXPECT_EQ(std::vector<uint8_t>((*values)[i].begin(), (*values)[i].end()), kValues[i]) << i;
}

TEST(Values, AreOfWhatARankContributes) {
  const Program program = example();
  const Operation& gathered = program.steps[1].operations[0];
  EXPECT_EQ(contributed_by(gathered, 0, 2).begin, 0u);
  EXPECT_EQ(contributed_by(gathered, 1, 2).begin, 1u);
  EXPECT_EQ(contributed_by(gathered, 1, 2).count, 4u);
  const Operation& moved = program.steps[0].operations[2];
  EXPECT_EQ(contributed_by(moved, 0, 4).count, 5u);
  EXPECT_EQ(contributed_by(moved, 3, 4).count, 0u);
  EXPECT_EQ(contributed_by({.collective = Collective::kBarrier}, 0, 4).count, 0u);
}

TEST(Values, OfAnotherProgramOrDamagedAreRefused) {
  const std::string file = written();
  const auto error = [](const std::string& of) {
    const auto values = read_values(bytes_of(of), example(), "f.3.values");
    return values.ok() ? std::string("ok") : values.status().message();
  };
  // Cut off at each byte.
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_THAT(error(file.substr(0, size)), HasSubstr("f.3.values: it ")) << size;
  EXPECT_THAT(error(file + "x"), HasSubstr("behind its last operation"));
  auto values = kValues;
  values[1].push_back(0);
  EXPECT_THAT(error(written(values)),
              HasSubstr("step 0 has 3 bytes of all_gather, of which its program has 2"));
  values.pop_back();
  EXPECT_THAT(error(written(values)), HasSubstr("it is of 3 operations, and its program has 4"));
  std::string other = file;
  other[7] = 1;
  EXPECT_THAT(error(other), HasSubstr("it is of version 1"));
  EXPECT_EQ(read_values(bytes_of(other), example(), "f").status().code(), ErrorCode::kVersionMismatch);
}

TEST(Values, OfAnotherRecordOfTheSameOperationsAreRefused) {
  const std::string file = written();
  Program other = example();
  EXPECT_EQ(fingerprint(other), fingerprint(example()));
  other.steps[0].operations[2].submitted_ns = 1;
  const auto values = read_values(bytes_of(file), other, "f.3.values");
  EXPECT_EQ(values.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(values.status().message(), HasSubstr("f.3.values: it is of another record than its program"));
  other = example();
  other.header.rank = 1;
  EXPECT_FALSE(read_values(bytes_of(file), other, "f.1.values").ok());
}

}  // namespace
}  // namespace netsum::program::values_test
