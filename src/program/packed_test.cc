#include "src/program/packed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "src/program/json_lines.h"

namespace netsum::program::packed_test {
namespace {

using ::testing::HasSubstr;

Program example() {
  Program program;
  program.header = {.world_size = 4,
                    .rank = 1,
                    .model = "m\xff",
                    .netsum = "0.2.0",
                    .machine = "host",
                    .groups = {{.id = 0, .ranks = {0, 1, 2, 3}}, {.id = 7, .ranks = {3, 1}}}};
  Step first{.operations = {{.collective = Collective::kBroadcast,
                             .type = DataType::kByte,
                             .count = uint64_t{1} << 40,
                             .root = 0,
                             .tag = UINT32_MAX,
                             .submitted_ns = 10,
                             .done_ns = 90}},
             .threads = {{{Instruction::Kind::kCompute, 10}, {Instruction::Kind::kSubmit, 0}}},
             .duration_ns = 10};
  Step second{.number = 3,
              .partial = true,
              .operations = {{.count = 721,
                              .parts = {700, 21},
                              .op = ReduceOp::kAvg,
                              .group = 7,
                              .scales = {0, 127, 255},
                              .done_ns = 40},
                             {.collective = Collective::kSend, .type = DataType::kByte, .on_hosts = true}},
              .carried = {{.steps_back = 1, .operation = 0, .done_ns = -5}},
              .threads = {{{Instruction::Kind::kSubmit, 0},
                           {Instruction::Kind::kWait, 2},
                           {Instruction::Kind::kWait, 0}},
                          {{Instruction::Kind::kSubmit, 1}}},
              .duration_ns = 40};
  program.steps = {first, second};
  return program;
}

std::string packed(const Program& program) {
  std::ostringstream out;
  EXPECT_TRUE(write_packed(out, program).ok());
  return out.str();
}

std::string lines(const Program& program) {
  std::ostringstream out;
  EXPECT_TRUE(write_program(out, program).ok());
  return out.str();
}

Result<Program> read(const std::string& bytes) {
  std::istringstream in(bytes);
  return read_any_program(in, "job.1.packed");
}

TEST(Packed, HasAllThatJsonLinesHave) {
  const std::string bytes = packed(example());
  const auto again = read(bytes);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(lines(*again), lines(example()));
  EXPECT_EQ(packed(*again), bytes);
  EXPECT_EQ(again->header.model, example().header.model) << "text of any bytes";
  EXPECT_LT(bytes.size() * 4, lines(example()).size());
  const auto of_lines = read(lines(example()));
  ASSERT_TRUE(of_lines.ok()) << of_lines.status().to_string();
  EXPECT_EQ(lines(*of_lines), lines(example()));
}

TEST(Packed, ATruncatedFileIsRefusedWhereverItEnds) {
  const std::string bytes = packed(example());
  for (size_t length = 1; length < bytes.size(); ++length) {
    const Status status = read(bytes.substr(0, length)).status();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << length;
    EXPECT_EQ(status.message(), "job.1.packed, byte " + std::to_string(length) +
                                    ": the file ends here: it is truncated: copy it again, whole, or record "
                                    "again");
  }
}

TEST(Packed, AGarbledFileIsRefusedWhereverItIs) {
  const std::string bytes = packed(example());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string wrong = bytes;
      wrong[at] = static_cast<char>(wrong[at] ^ 1 << bit);
      const Status status = read(wrong).status();
      EXPECT_FALSE(status.ok()) << "bit " << bit << " of byte " << at;
      EXPECT_THAT(status.message(), HasSubstr("job.1.packed"));
    }
  }
}

std::string file_of(const std::vector<std::string>& blocks) {
  std::string file(kPackedMagic);
  for (const std::string& block : blocks) file += packed_block(block);
  return file;
}

// A header of one rank without names or groups, and how many steps.
std::string header_of(char steps) {
  return std::string("\1\0\0\0\0\0\0", 7) + steps;
}

TEST(Packed, WrongFilesAreRefusedWithTheByte) {
  const auto why = [](const std::string& bytes) { return read(bytes).status().message(); };
  // The number of a step, not partial, 0 ns, no operation, none carried, one thread without instructions.
  const std::string step("\0\0\0\0\0\1\0", 7);
  ASSERT_TRUE(read(file_of({header_of(1), step})).ok()) << why(file_of({header_of(1), step}));
  const auto with = [&](size_t at, char value) {
    std::string wrong = step;
    wrong[at] = value;
    return file_of({header_of(1), wrong});
  };
  EXPECT_THAT(why(with(1, 2)), HasSubstr("byte 23: whether a step is partial is 2, at most 1 is allowed"));
  EXPECT_THAT(why(with(2, 1)), HasSubstr("the duration of a step is -1, and must be 0 to"));
  EXPECT_THAT(why(with(3, 9)), HasSubstr("byte 25: the number of operations is 9, at most 4 is allowed"));
  EXPECT_THAT(why(with(5, 0)), HasSubstr("byte 28: the block has more than its fields"));
  EXPECT_THAT(why(file_of({header_of(1), std::string("\0\0\0\0\0\0", 6)})),
              HasSubstr("byte 22: it has no thread"));
  EXPECT_THAT(
      why(file_of({header_of(1), std::string("\0\0\0\0\0\1\1\3\0", 9)})),
      HasSubstr("the kind of an instruction: this netsum knows compute, submit and wait, and it is 3"));
  EXPECT_THAT(why(file_of({header_of(0)})), HasSubstr("the program has no step"));
  EXPECT_THAT(why(file_of({header_of(1), step, step})), HasSubstr("the file has more"));
  EXPECT_THAT(why(file_of({header_of(2), step, step})), HasSubstr("its number is not above"));
  std::string version(kPackedMagic);
  version.back() = 2;
  EXPECT_EQ(read(version).status().code(), ErrorCode::kVersionMismatch);
  EXPECT_THAT(why("\xff\xfenetsum"), HasSubstr("byte 0: this is no packed program"));
}

TEST(Packed, WrongProgramsAreNotWritten) {
  Program program = example();
  program.steps[1].operations[0].scales.pop_back();
  std::ostringstream out;
  EXPECT_THAT(write_packed(out, program).message(), HasSubstr("it has 2 scales, which are one for each 360"));
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace netsum::program::packed_test
