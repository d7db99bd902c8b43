#include "src/job/job_spec.h"

#include <gmock/gmock.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "src/job/capabilities.h"
#include "wire/ids.h"

namespace netsum::job_spec_test {
namespace {

using ::testing::HasSubstr;

void add_option(JobSpec& spec, const std::string& name, const std::string& value) {
  JobOption& option = *spec.add_options();
  option.set_name(name);
  option.set_value(value);
}

JobSpec spec() {
  JobSpec spec;
  spec.set_protocol_version(NETSUM_VERSION);
  spec.set_name("train");
  spec.set_token("secret");
  spec.set_world_size(4);
  spec.set_mtu(1500);
  spec.set_slots(256);
  add_option(spec, "predict_scales", "1");
  return spec;
}

// As a later release would send it, with one more number.
JobSpec with_unknown_field(JobSpec known, int number, uint64_t value) {
  std::string bytes = known.SerializeAsString();
  {
    google::protobuf::io::StringOutputStream out(&bytes);  // appends
    google::protobuf::io::CodedOutputStream coded(&out);
    coded.WriteTag(static_cast<uint32_t>(number) << 3);
    coded.WriteVarint64(value);
  }
  JobSpec parsed;
  EXPECT_TRUE(parsed.ParseFromString(bytes));
  return parsed;
}

TEST(JobSpec, EqualOnesAreTheSame) {
  EXPECT_TRUE(check_same(spec(), spec()).ok());
  EXPECT_TRUE(check_same(with_unknown_field(spec(), 99, 7), with_unknown_field(spec(), 99, 7)).ok());
}

struct Mismatch {
  void (*change)(JobSpec&);
  const char* says;
};

class JobSpecMismatch : public ::testing::TestWithParam<Mismatch> {};

TEST_P(JobSpecMismatch, NamesTheFieldAndBothValues) {
  JobSpec other = spec();
  GetParam().change(other);
  const Status refused = check_same(spec(), other);
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    EveryField, JobSpecMismatch,
    ::testing::Values(
        Mismatch{[](JobSpec& job) { job.set_world_size(5); }, "with world size 4, and this rank asks for 5"},
        Mismatch{[](JobSpec& job) { job.set_mtu(9000); }, "with mtu 1500, and this rank asks for 9000"},
        Mismatch{[](JobSpec& job) { job.set_slots(512); }, "with slots 256, and this rank asks for 512"},
        Mismatch{[](JobSpec& job) { job.set_min_members(2); },
                 "with min_members 0, and this rank asks for 2"},
        Mismatch{[](JobSpec& job) { job.set_gather_ms(9); }, "with gather_ms 0, and this rank asks for 9"},
        Mismatch{[](JobSpec& job) { job.set_when_full(1); }, "with when_full 0, and this rank asks for 1"},
        Mismatch{[](JobSpec& job) { job.set_verify(1); }, "with verify packet, and this rank asks for both"},
        // Of what follows from another field, the other one is named.
        Mismatch{[](JobSpec& job) {
                   job.set_verify(2);
                   need_cookies(job.mutable_needs());
                 },
                 "with verify packet, and this rank asks for sum"},
        Mismatch{[](JobSpec& job) { job.set_verify(7); }, "with verify packet, and this rank asks for 7"},
        Mismatch{[](JobSpec& job) { job.mutable_options(0)->set_value("0"); },
                 "with predict_scales 1, and this rank asks for 0"},
        Mismatch{[](JobSpec& job) { job.clear_options(); },
                 "with predict_scales 1, and this rank asks for none"},
        Mismatch{[](JobSpec& job) { job.set_numerics(1); },
                 "with numerics auto, and this rank asks for fixed"},
        Mismatch{[](JobSpec& job) { job.set_phase_period_us(100'000); },
                 "with phase_period (us) 0, and this rank asks for 100000"},
        Mismatch{[](JobSpec& job) { job.set_phase_offset_us(5); },
                 "with phase_offset (us) 0, and this rank asks for 5"}));

TEST(JobSpec, OptionsAreFewShortAndPrintable) {
  const auto check = [](int count, const std::string& value) {
    JobSpec asked = spec();
    for (int i = 1; i < count; ++i) add_option(asked, "o", value);
    return check_spec(asked).message();
  };
  EXPECT_EQ(check(64, "1"), "");
  EXPECT_THAT(check(65, "1"), HasSubstr("65 options; at most 64 are allowed"));
  EXPECT_THAT(check(2, "a\nb"), HasSubstr("option o"));
  EXPECT_THAT(check(2, std::string(257, 'v')), HasSubstr("option o"));
}

TEST(JobSpec, PhasesHaveARange) {
  const auto check = [](uint64_t period_us, uint64_t offset_us) {
    JobSpec asked = spec();
    asked.set_phase_period_us(period_us);
    asked.set_phase_offset_us(offset_us);
    return check_spec(asked).message();
  };
  EXPECT_EQ(check(0, 0), "");
  EXPECT_EQ(check(60'000'000, 59'999'999), "");
  for (const auto& [period_us, offset_us] :
       std::vector<std::pair<uint64_t, uint64_t>>{{60'000'001, 0}, {5, 5}, {0, 1}, {UINT64_MAX, 3}})
    EXPECT_THAT(check(period_us, offset_us), HasSubstr("out of range: a period is at most 60000000 us"));
}

TEST(JobSpec, AFieldOfALaterReleaseIsComparedAndNamedByItsNumber) {
  EXPECT_THAT(check_same(with_unknown_field(spec(), 99, 7), spec()).message(),
              HasSubstr("with field 99 (of a later release) 7, and this rank asks for 0"));
  EXPECT_THAT(check_same(with_unknown_field(spec(), 99, 7), with_unknown_field(spec(), 99, 8)).message(),
              HasSubstr("field 99 (of a later release) 7, and this rank asks for 8"));
}

TEST(JobSpec, WhatIsEachMembersOwnMayDiffer) {
  JobSpec other = spec();
  other.set_aggregator_token("another aggregator's");
  EXPECT_TRUE(check_same(spec(), other).ok());
}

TEST(JobSpec, EveryFieldOfTheProtoHasAName) {
  std::ifstream file("src/job/job.proto");
  std::stringstream text;
  text << file.rdbuf();
  const std::string proto = text.str();
  const size_t begin = proto.find("message JobSpec {");
  ASSERT_NE(begin, std::string::npos);
  const std::string message = proto.substr(begin, proto.find("\n}", begin) - begin);
  const std::regex field(R"(\n  (?:repeated |optional )?\w+ (\w+) = (\d+);)");
  int fields = 0;
  for (std::sregex_iterator at(message.begin(), message.end(), field), end; at != end; ++at, ++fields)
    EXPECT_NE(name_of_job_field(std::stoi((*at)[2])), "") << (*at)[1] << ": add it to kFields in job_spec.cc";
  EXPECT_GE(fields, 11);
}

}  // namespace
}  // namespace netsum::job_spec_test
