#include "tools/netsum/program_trace.h"

#include <gmock/gmock.h>
#include <google/protobuf/io/gzip_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <gtest/gtest.h>

#include <sstream>

#include "src/base/rng.h"
#include "src/program/json_lines.h"
#include "src/program/replay.h"
#include "tools/netsum/chakra.pb.h"

namespace netsum::tool::program_trace_test {
namespace {

using ::testing::HasSubstr;

// Two threads, two groups, an operation that is carried, parts, all ways of ending.
constexpr char kProgram[] =
    R"({"format":"netsum-program","version":1,"world_size":4,"rank":1,"model":"m","netsum":"0.2.0","machine":"host",)"
    R"("clock":"steady, ns","groups":[{"id":0,"ranks":[0,1,2,3]},{"id":3,"ranks":[1,3]}],"steps":2})"
    "\n"
    R"({"step":4,"operations":[{"id":0,"collective":"all_reduce","type":"float32","count":30,"parts":[10,20],)"
    R"("operation":"avg","root":-1,"group":3,"tag":4000000000,"scales":"7f","submitted_ns":1500,"done_ns":4499},)"
    R"({"id":1,"collective":"all_gather","type":"byte","count":10,"parts":[1,2,3,4],"root":-1,"group":0,"tag":2,)"
    R"("submitted_ns":2000,"done_ns":9001},{"id":2,"collective":"send","type":"byte","count":8,"root":2,"group":0,)"
    R"("tag":0,"submitted_ns":4500}],"threads":[[["compute",1500],["submit",0],["compute",1],["wait",0],)"
    R"(["compute",7]],[["compute",2000],["submit",1],["wait",0],["compute",1],["submit",2]]],"duration_ns":4506})"
    "\n"
    R"({"step":7,"partial":true,"operations":[{"id":0,"collective":"barrier","type":"byte","count":0,"root":-1,"group":0,)"
    R"("tag":0,"hosts":true,"submitted_ns":0,"done_ns":5}],"carried":[{"id":1,"steps_back":1,"operation":1,"done_ns":4495}],)"
    R"("threads":[[["submit",0],["wait",1],["wait",0]],[]],"duration_ns":4495})"
    "\n";

program::Program example() {
  std::istringstream in(kProgram);
  auto program = program::read_program(in, "example");
  EXPECT_TRUE(program.ok()) << program.status().to_string();
  return std::move(program).value();
}

Result<program::Program> read(const std::string& trace) {
  std::istringstream in(trace);
  return trace_program(in, "job.1.et", 1, 4);
}

std::string text_of(const program::Program& program) {
  std::ostringstream out;
  EXPECT_TRUE(program::write_program(out, program).ok());
  return out.str();
}

TEST(ProgramTrace, IsReadAsItWasWritten) {
  const auto again = read(program_trace(example()));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(text_of(*again), kProgram);
}

TEST(ProgramTrace, GzipIsRead) {
  const std::string trace = program_trace(example());
  std::string zipped;
  {
    google::protobuf::io::StringOutputStream out(&zipped);
    google::protobuf::io::GzipOutputStream gzip(&out);
    void* data = nullptr;
    int size = 0;
    size_t at = 0;
    while (at < trace.size() && gzip.Next(&data, &size)) {
      const size_t n = std::min(trace.size() - at, static_cast<size_t>(size));
      trace.copy(static_cast<char*>(data), n, at);
      at += n;
      gzip.BackUp(size - static_cast<int>(n));
    }
  }
  const auto again = read(zipped);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(text_of(*again), kProgram);
  EXPECT_THAT(read(zipped.substr(0, zipped.size() / 2)).status().message(), HasSubstr("job.1.et: "));
}

void append(std::string* trace, const google::protobuf::MessageLite& message) {
  trace->push_back(static_cast<char>(message.ByteSizeLong()));  // below 128
  *trace += message.SerializeAsString();
}

chakra::Node node(uint64_t id, chakra::NodeType type, std::vector<uint64_t> after, uint64_t duration_us) {
  chakra::Node made;
  made.set_id(id);
  made.set_type(type);
  for (const uint64_t one : after) made.add_data_deps(one);
  made.set_duration_micros(duration_us);
  return made;
}

void number(chakra::Node* of, const char* name, int64_t value) {
  chakra::Attribute* const attribute = of->add_attr();
  attribute->set_name(name);
  attribute->set_int64_value(value);
}

TEST(ProgramTrace, TracesOfOthersAreOneStep) {
  std::string trace;
  append(&trace, chakra::GlobalMetadata());
  // The end comes first in the file. Multiverse writes comm_size without a sign.
  append(&trace, node(9, chakra::COMP_NODE, {2, 3}, 20));
  append(&trace, node(1, chakra::COMP_NODE, {}, 10));
  chakra::Node reduce = node(2, chakra::COMM_COLL_NODE, {1}, 100);
  number(&reduce, "comm_type", 0);
  reduce.add_attr()->set_name("comm_size");
  reduce.mutable_attr(1)->set_uint64_value(4096);
  append(&trace, reduce);
  chakra::Node gather = node(3, chakra::COMM_COLL_NODE, {1}, 7);
  number(&gather, "comm_type", 2);
  number(&gather, "comm_size", 10);
  append(&trace, gather);
  const auto program = read(trace);
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  ASSERT_EQ(program->steps.size(), 1u);
  const program::Step& step = program->steps[0];
  EXPECT_EQ(step.duration_ns, 130'000);
  EXPECT_EQ(program::replay(step, program::recorded_completions(step))->duration_ns, 130'000);
  EXPECT_EQ(step.operations[0].collective, program::Collective::kAllReduce);
  EXPECT_EQ(step.operations[0].count, 1024u);
  EXPECT_EQ(step.operations[1].collective, program::Collective::kAllGather);
  EXPECT_EQ(step.operations[1].parts, (std::vector<uint64_t>{3, 3, 2, 2}));
}

TEST(ProgramTrace, WrongTracesAreRefused) {
  const auto message_of = [](const std::vector<chakra::Node>& nodes) {
    std::string trace;
    append(&trace, chakra::GlobalMetadata());
    for (const chakra::Node& one : nodes) append(&trace, one);
    const auto program = read(trace);
    EXPECT_EQ(program.status().code(), ErrorCode::kInvalidArgument);
    return program.status().message();
  };
  using chakra::COMP_NODE;
  EXPECT_THAT(message_of({node(1, COMP_NODE, {2}, 1)}),
              HasSubstr("node 1 depends on node 2, which the trace does not"));
  EXPECT_THAT(message_of({node(1, COMP_NODE, {2}, 1), node(2, COMP_NODE, {1}, 1)}),
              HasSubstr("depends on itself"));
  EXPECT_THAT(message_of({node(1, COMP_NODE, {}, 1), node(1, COMP_NODE, {}, 1)}),
              HasSubstr("node 1 occurs twice"));
  EXPECT_THAT(message_of({node(1, COMP_NODE, {}, UINT64_MAX)}),
              HasSubstr("node 1: it takes more than 2^53 ns"));
  EXPECT_THAT(message_of({}), HasSubstr("the program has no step"));
  chakra::Node reduce = node(1, chakra::COMM_COLL_NODE, {}, 1);
  number(&reduce, "comm_type", 10);
  EXPECT_THAT(message_of({reduce}), HasSubstr("comm_type is no integer from 0 to 9"));
  EXPECT_THAT(read("").status().message(), HasSubstr("job.1.et: byte 0"));
  const std::string trace = program_trace(example());
  EXPECT_THAT(read(trace.substr(0, trace.size() - 1)).status().message(), HasSubstr("the file is truncated"));
}

// Each trace is read or refused with a message; what is read can be written and is then read the same.
TEST(ProgramTrace, MutatedTraces) {
  const std::string right = program_trace(example());
  int read_traces = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    Rng rng(seed);
    std::string trace = right;
    for (uint64_t n = rng.below(3) + 1; n > 0; --n) {
      const size_t at = rng.below(trace.size());
      if (rng.below(8) == 0)
        trace.erase(at, rng.below(8) + 1);
      else
        trace[at] = static_cast<char>(rng.next());
    }
    const auto program = read(trace);
    if (!program.ok()) {
      ASSERT_THAT(program.status().message(), HasSubstr("job.1.et: ")) << "seed " << seed;
      ++refused;
      continue;
    }
    ++read_traces;
    const auto again = read(program_trace(*program));
    ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << again.status().to_string();
  }
  EXPECT_GT(read_traces, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace netsum::tool::program_trace_test
