#include "src/program/json_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "src/base/rng.h"

namespace netsum::program::json_lines_test {
namespace {

using ::testing::HasSubstr;

constexpr char kHeader[] =
    R"({"format":"netsum-program","version":1,"world_size":4,"rank":1,"model":"m","netsum":"0.2.0",)"
    R"("machine":"host","clock":"steady, ns","groups":[{"id":0,"ranks":[0,1,2,3]},{"id":1,"ranks":[1,3]}],"steps":2})";
constexpr char kFirst[] =
    R"({"step":0,"operations":[{"id":0,"collective":"broadcast","type":"byte","count":4096,"root":0,"group":0,)"
    R"("tag":7,"submitted_ns":10,"done_ns":90}],"threads":[[["compute",10],["submit",0],["compute",5]]],"duration_ns":15})";
constexpr char kSecond[] =
    R"({"step":1,"partial":true,"operations":[{"id":0,"collective":"all_reduce","type":"float32","count":30,)"
    R"("parts":[10,20],"operation":"avg","root":-1,"group":1,"tag":0,"hosts":true,"submitted_ns":0,"done_ns":40},)"
    R"({"id":1,"collective":"reduce_scatter","type":"bfloat16","count":8,"operation":"sum","root":-1,"group":0,)"
    R"("tag":0,"submitted_ns":0}],"carried":[{"id":2,"steps_back":1,"operation":0,"done_ns":75}],)"
    R"("threads":[[["submit",0],["wait",2],["wait",0],["compute",9]],[["submit",1]]],"duration_ns":84})";

std::string file(const std::string& header = kHeader, const std::string& first = kFirst,
                 const std::string& second = kSecond) {
  return header + "\n" + first + "\n" + second + "\n";
}

Result<Program> read(const std::string& text) {
  std::istringstream in(text);
  return read_program(in, "job.1.jsonl");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(JsonLines, ReadsWhatIsWritten) {
  const auto program = read(file());
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  EXPECT_EQ(program->header.world_size, 4);
  EXPECT_EQ(program->header.rank, 1);
  EXPECT_EQ(group_size(program->header, 1), 2);
  ASSERT_EQ(program->steps.size(), 2u);
  const Step& step = program->steps[1];
  EXPECT_TRUE(step.partial);
  EXPECT_EQ(step.operations[0].op, ReduceOp::kAvg);
  EXPECT_EQ(step.operations[0].done_ns, 40);
  EXPECT_EQ(step.operations[1].collective, Collective::kReduceScatter);
  EXPECT_EQ(step.operations[1].type, DataType::kBFloat16);
  EXPECT_TRUE(step.operations[0].on_hosts);
  EXPECT_EQ(step.operations[1].done_ns, std::nullopt);
  EXPECT_EQ(step.threads[0][1], (Instruction{Instruction::Kind::kWait, 2}));
  std::ostringstream out;
  ASSERT_TRUE(write_program(out, *program).ok());
  EXPECT_EQ(out.str(), file());
}

TEST(JsonLines, NamesOfCollectivesAreRead) {
  for (int i = 0; i < kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    Program program;
    program.header.world_size = 2;
    Operation operation;
    operation.collective = collective;
    operation.count = 2;
    if (has_root(collective)) operation.root = 1;
    program.steps.push_back({.operations = {operation}, .threads = {{{Instruction::Kind::kSubmit, 0}}}});
    std::ostringstream out;
    ASSERT_TRUE(write_program(out, program).ok()) << collective_name(collective);
    const auto again = read(out.str());
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(again->steps[0].operations[0].collective, collective);
  }
}

struct Wrong {
  std::string text, message;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

TEST(JsonLines, WrongFilesAreRefusedWithTheLine) {
  const auto header = [](const char* from, const char* to) { return file(replaced(kHeader, from, to)); };
  const auto first = [](const char* from, const char* to) {
    return file(kHeader, replaced(kFirst, from, to));
  };
  const auto second = [](const char* from, const char* to) {
    return file(kHeader, kFirst, replaced(kSecond, from, to));
  };
  const std::vector<Wrong> cases = {
      {"", ":1: the file is empty"},
      {"{}\n", ":1: this is no program"},
      {"[1]\n", ":1: this is no program"},
      {header("netsum-program", "chakra"), ":1: this is no program"},
      {header("\"version\":1", "\"version\":2"), "version 2 of the format", ErrorCode::kVersionMismatch},
      {header("\"rank\":1", "\"rank\":4"), ":1: rank 4 is not in a job of 4 ranks"},
      {header("\"world_size\":4", "\"world_size\":0"), ":1: the header, \"world_size\" is no integer from 1"},
      {header("\"model\":\"m\"", "\"model\":3"), ":1: the header, \"model\" is no text"},
      {header("\"model\"", "\"modell\""), "unknown key \"modell\""},
      {header("[1,3]", "[1,4]"), "group 1: its ranks are not different ones of 0 to 3"},
      {header("[1,3]", "[1,1]"), "group 1: its ranks are not different ones of 0 to 3"},
      {header("{\"id\":1", "{\"id\":0"), "group 0 occurs twice"},
      {second("\"tag\":0,\"hosts\"", "\"tag\":0,\"scales\":\"7\",\"hosts\""),
       ":3: operation 0, \"scales\" has no two hexadecimal digits for each value"},
      {second("\"tag\":0,\"hosts\"", "\"tag\":0,\"scales\":\"7g\",\"hosts\""), "no two hexadecimal digits"},
      {second("\"tag\":0,\"hosts\"", "\"tag\":0,\"scales\":\"7f80\",\"hosts\""),
       "it has 2 scales, which are one for each 360 of its 30 elements"},
      {first("\"tag\":7", "\"tag\":7,\"scales\":\"7f\""), "of sums of floats alone"},
      {header("\"steps\":2", "\"steps\":3"),
       "the file ends after 2 of 3 steps: it is truncated: copy it again, whole, or record again"},
      {header("\"steps\":2", "\"steps\":1"), ":3: the header announces 1 steps, and this is one more"},
      {file().substr(0, file().size() - 1), ":3: the file ends within this line: it is truncated"},
      {first("\"submit\"", "\"send\""), ":2: the instruction \"send\" is unknown"},
      {first("[\"compute\",10]", "[\"compute\",-1]"), ":2: the number of a compute is no integer"},
      {first("[\"compute\",10]", "[\"compute\",1e300]"), ":2: the number of a compute is no integer"},
      {first("[\"compute\",10]", "[\"compute\",18446744073709551615]"),
       "the number of a compute is no integer"},
      {first("[\"compute\",10]", "[\"compute\"]"), ":2: an instruction is no list of a name and a number"},
      {first("[\"compute\",10]", "[\"compute\",9007199254740992]"),
       "a thread computes for more than 2^53 ns"},
      {first("\"broadcast\"", "\"broadcasts\""), "\"collective\": \"broadcasts\" is unknown"},
      {first("\"byte\"", "\"float8\""), "\"type\": \"float8\" is unknown"},
      {first("\"count\":4096", "\"count\":99999999999999999999"), "\"count\" is no integer from 0"},
      {first("\"count\":4096", "\"length\":4096"), ":2: operation 0 has the unknown key \"length\""},
      {first("\"root\":0", "\"root\":-1"), "operation 0: its root is -1, which is no rank of its group"},
      {first("\"root\":0", "\"root\":4"), "its root is 4, which is no rank of its group"},
      {first("\"group\":0", "\"group\":2"), "there is no group 2"},
      {first("\"done_ns\":90", "\"done_ns\":9"), "it is done before it was submitted"},
      {first("\"tag\":7", "\"tag\":7,\"operation\":\"sum\""), "its collective reduces nothing"},
      {first("[\"submit\",0],", ""), "no thread submits operation 0"},
      {first("[\"submit\",0]", "[\"submit\",0],[\"submit\",0]"), "operation 0 is submitted twice"},
      {first("[\"submit\",0]", "[\"submit\",1]"),
       "a thread submits operation 1, which the step does not have"},
      {first("{\"step\":0", "{\"step\":0,"), ":2: this is no JSON at byte"},
      {second("\"step\":1", "\"step\":0"), "its number is not above that of the step before"},
      {second("[\"wait\",0]", "[\"wait\",1]"), "waits for operation 1, which has no done_ns"},
      {second("[\"wait\",0]", "[\"wait\",3]"), "waits for operation 3, which the step does not have"},
      {second("\"parts\":[10,20]", "\"parts\":[10,21]"), "its parts have 31 elements, but its count is 30"},
      {second("\"count\":8", "\"count\":9"), "it has no part for each of the 4 ranks"},
      {second("\"root\":-1", "\"root\":1"), "its root is 1, but this collective has none: use -1"},
      {second("\"steps_back\":1", "\"steps_back\":2"), "there is no step 2 steps before"},
      {second("\"steps_back\":1,\"operation\":0", "\"steps_back\":1,\"operation\":1"), "has no operation 1"},
      {second("\"partial\":true", "\"partial\":1"), "\"partial\" is neither true nor false"},
  };
  for (const Wrong& wrong : cases) {
    const auto program = read(wrong.text);
    ASSERT_FALSE(program.ok()) << wrong.message;
    EXPECT_EQ(program.status().code(), wrong.code);
    EXPECT_THAT(program.status().message(), HasSubstr("job.1.jsonl:"));
    EXPECT_THAT(program.status().message(), HasSubstr(wrong.message));
  }
}

TEST(JsonLines, WrongProgramsAreNotWritten) {
  std::ostringstream out;
  EXPECT_EQ(write_program(out, {}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(out.str(), "");
}

// Each file is read or refused with a message; what is read can be written and is then read the same.
TEST(JsonLines, MutatedFiles) {
  const std::string right = file();
  int read_files = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    Rng rng(seed);
    std::string text = right;
    for (uint64_t n = rng.below(2) + 1; n > 0; --n) {
      const size_t at = rng.below(text.size());
      switch (rng.below(8)) {
        case 0:
          text[at] = static_cast<char>(rng.next());
          break;
        case 1:
          text.erase(at, rng.below(8) + 1);
          break;
        case 2:
          text.insert(at, text.substr(rng.below(text.size()), rng.below(60)));
          break;
        case 3:
          text.resize(at + 1);
          break;
        case 4:
          text[at] = "[]{}:,\"-.e"[rng.below(10)];
          break;
        default:  // another number
          if (const size_t digit = text.find_first_of("0123456789", at); digit != std::string::npos)
            text[digit] = "0123456789"[rng.below(10)];
          break;
      }
    }
    const auto program = read(text);
    if (!program.ok()) {
      ASSERT_THAT(program.status().message(), HasSubstr("job.1.jsonl:")) << "seed " << seed;
      ++refused;
      continue;
    }
    ++read_files;
    std::ostringstream out, again;
    ASSERT_TRUE(write_program(out, *program).ok()) << "seed " << seed;
    const auto second = read(out.str());
    ASSERT_TRUE(second.ok()) << "seed " << seed << ": " << second.status().to_string();
    ASSERT_TRUE(write_program(again, *second).ok());
    ASSERT_EQ(out.str(), again.str()) << "seed " << seed;
  }
  EXPECT_GT(read_files, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace netsum::program::json_lines_test
