#include "src/job/capabilities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/ids.h"

namespace netsum::capabilities_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kWho = "the dataplane 'fake' of this aggregator";

JobSpec job_that_needs(const Capabilities& needs) {
  JobSpec job;
  job.set_name("train");
  *job.mutable_needs() = needs;
  return job;
}

TEST(Capabilities, WhoSaysNothingCanDoAndNeedsTheStandard) {
  EXPECT_TRUE(check_needs(JobSpec(), Capabilities(), kWho).ok());
  EXPECT_TRUE(check_needs(JobSpec(), standard_capabilities(1440), kWho).ok());
  EXPECT_TRUE(check_needs(job_that_needs(standard_capabilities(1440)), Capabilities(), kWho).ok());
}

TEST(Capabilities, ModesOfVerify) {
  Capabilities can = standard_capabilities(1440);
  EXPECT_THAT(verify_modes_of(can), ElementsAre("packet", "both"));
  add_cookies(&can);
  EXPECT_THAT(verify_modes_of(can), ElementsAre("packet", "both", "sum"));
  can.clear_tags();
  can.add_tags(NETSUM_TAG_COOKIE);
  EXPECT_THAT(verify_modes_of(can), ElementsAre("sum"));
}

TEST(Capabilities, ValuesAreSummedOnlyWhereAllCan) {
  Capabilities values = standard_capabilities(1440);
  EXPECT_FALSE(sums_values(values));
  add_values(&values);
  EXPECT_TRUE(sums_values(values));
  EXPECT_TRUE(sums_values(common(values, values)));
  EXPECT_FALSE(sums_values(common(values, standard_capabilities(1440))));
  EXPECT_FALSE(sums_values(common(values, Capabilities())));  // of an older release
  EXPECT_FALSE(adds_floats(values));
  Capabilities floats = values;
  floats.set_adds_floats(true);
  EXPECT_TRUE(adds_floats(floats) && adds_floats(below_parent(floats)));
  EXPECT_TRUE(adds_floats(common(floats, floats)));
  EXPECT_FALSE(adds_floats(common(floats, values)));
  JobSpec job;
  EXPECT_TRUE(adds_floats(floats, job));
  job.set_numerics(1);
  EXPECT_FALSE(adds_floats(floats, job));
  job.set_numerics(0);
  job.set_verify(1);
  EXPECT_FALSE(adds_floats(floats, job));
  EXPECT_FALSE(sums_values(Capabilities()));
  EXPECT_FALSE(sums_values(below_parent(values)));
  EXPECT_TRUE(sums_partial_floats(values) && sums_partial_floats(below_parent(values)));
  EXPECT_TRUE(sums_partial_floats(common(values, below_parent(values))));
  EXPECT_FALSE(sums_partial_floats(common(values, standard_capabilities(1440))));
  EXPECT_EQ(below_parent(standard_capabilities(1440)).SerializeAsString(),
            standard_capabilities(1440).SerializeAsString());
}

TEST(Capabilities, WordsAreCombinedOnlyWhereAllCan) {
  Capabilities words = standard_capabilities(1440);
  EXPECT_FALSE(combines_words(words));
  add_words(&words);
  EXPECT_TRUE(combines_words(words));
  EXPECT_FALSE(sums_values(words));
  EXPECT_TRUE(combines_words(common(words, words)));
  EXPECT_TRUE(combines_words(below_parent(words))) << "OR of ORs";
  EXPECT_FALSE(combines_words(common(words, standard_capabilities(1440))));
  EXPECT_FALSE(combines_words(common(words, Capabilities())));  // of an older release
  EXPECT_FALSE(combines_words(Capabilities()));
}

TEST(Capabilities, AMissingFormatOfValuesIsNamed) {
  Capabilities needs = standard_capabilities(1440);
  needs.add_formats(NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32));
  EXPECT_THAT(check_needs(job_that_needs(needs), standard_capabilities(1440), kWho).message(),
              HasSubstr("needs sums of values (format 113)"));
}

TEST(Capabilities, JobsWith8BitLanesNeedSumsAndMarks) {
  Capabilities needs, can = standard_capabilities(1440);
  add_lanes8(&needs);
  EXPECT_THAT(check_needs(job_that_needs(needs), can, kWho).message(), HasSubstr("SUM of 8-bit lanes"));
  can.add_formats(NETSUM_FORMAT_SUM_I8);
  EXPECT_THAT(check_needs(job_that_needs(needs), can, kWho).message(), HasSubstr("OR of unsigned 64-bit"));
  add_words(&can);
  EXPECT_TRUE(check_needs(job_that_needs(needs), can, kWho).ok());
  can.mutable_formats()->erase(can.mutable_formats()->begin() + 1);
  EXPECT_THAT(check_needs(job_that_needs(needs), can, kWho).message(), HasSubstr("SUM of 32-bit lanes"));
}

struct Lack {
  void (*change)(Capabilities* needs, Capabilities* can);
  const char* says;
};

class CapabilityLacked : public ::testing::TestWithParam<Lack> {};

TEST_P(CapabilityLacked, IsNamedWithWhoLacksItAndWhatToDo) {
  Capabilities needs = standard_capabilities(1440), can = standard_capabilities(1440);
  ASSERT_TRUE(check_needs(job_that_needs(needs), can, kWho).ok());
  GetParam().change(&needs, &can);
  const Status refused = check_needs(job_that_needs(needs), can, kWho);
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr(std::string("job 'train' needs ") + GetParam().says +
                                           ", which the dataplane 'fake' of this aggregator cannot do: use"));
}

INSTANTIATE_TEST_SUITE_P(
    Each, CapabilityLacked,
    ::testing::Values(
        Lack{[](Capabilities*, Capabilities* can) {
               can->clear_formats();
               can->add_formats(NETSUM_FORMAT_SUM_I32);
             },
             "SUM of 16-bit lanes"},
        Lack{[](Capabilities*, Capabilities* can) { can->mutable_formats()->RemoveLast(); },
             "MAX of unsigned 8-bit lanes"},
        Lack{
            [](Capabilities* needs, Capabilities*) { needs->add_formats(NETSUM_FORMAT(9, NETSUM_LANE_I32)); },
            "operation 9 of 32-bit lanes"},
        Lack{[](Capabilities* needs, Capabilities*) { needs->add_formats(NETSUM_FORMAT_SUM_I8); },
             "SUM of 8-bit lanes"},
        Lack{[](Capabilities* needs, Capabilities*) { needs->add_formats(NETSUM_FORMAT_OR_U64); },
             "OR of unsigned 64-bit lanes"},
        Lack{[](Capabilities* needs, Capabilities*) { needs->add_formats(NETSUM_FORMAT_MAX_U16); },
             "MAX of unsigned 16-bit lanes"},
        Lack{[](Capabilities* needs, Capabilities*) { needs->add_byte_orders(NETSUM_LANES_BIG_ENDIAN); },
             "big-endian lanes"},
        Lack{[](Capabilities*, Capabilities* can) { can->set_tags(0, 7); },
             "packets with keyed tags (verify: packet or both)"},
        Lack{[](Capabilities* needs, Capabilities*) { needs->add_tags(7); }, "packet tags of kind 7"},
        Lack{[](Capabilities* needs, Capabilities*) { needs->set_payload_bytes(8000); },
             "payloads of 8000 bytes (the largest is 1440)"},
        Lack{[](Capabilities*, Capabilities* can) { can->set_max_members(8); }, "64 members (the most is 8)"},
        Lack{[](Capabilities* needs, Capabilities*) { needs->set_multicast(true); }, "results by multicast"},
        Lack{[](Capabilities* needs, Capabilities*) { needs->set_empty_packets(true); },
             "contributions without lanes"},
        Lack{[](Capabilities* needs, Capabilities*) { needs->set_no_result(true); }, "results without lanes"},
        Lack{[](Capabilities* needs, Capabilities*) {
               // As a later release would send it: field 99 is 1.
               EXPECT_TRUE(needs->ParseFromString(needs->SerializeAsString() + "\x98\x06\x01"));
             },
             "capability 99, which is of a later release"}));

TEST(Capabilities, JobsWithoutTagsNeedCookies) {
  Capabilities needs, can = standard_capabilities(1440);
  EXPECT_EQ(packet_tag_of(job_that_needs(needs)), static_cast<uint32_t>(NETSUM_TAG_KEYED));
  need_cookies(&needs);
  const JobSpec job = job_that_needs(needs);
  EXPECT_EQ(packet_tag_of(job), static_cast<uint32_t>(NETSUM_TAG_COOKIE));
  for (const Capabilities& lacks : {can, Capabilities()}) {
    const Status refused = check_needs(job, lacks, kWho);
    EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(refused.message(), HasSubstr("needs packets without keyed tags (verify: sum), which the"));
  }
  add_cookies(&can);
  EXPECT_TRUE(check_needs(job, can, kWho).ok());
  EXPECT_TRUE(check_needs(JobSpec(), can, kWho).ok()) << "it has not lost the tags";
  // As of a switch, which cannot compute tags.
  Capabilities only_cookies;
  need_cookies(&only_cookies);
  EXPECT_TRUE(check_needs(job, only_cookies, kWho).ok());
  EXPECT_THAT(check_needs(JobSpec(), only_cookies, kWho).message(),
              HasSubstr("packets with keyed tags (verify: packet or both)"));
  EXPECT_TRUE(check_needs(job, common(can, only_cookies), kWho).ok());
}

TEST(Capabilities, CommonIsWhatBothCanDo) {
  Capabilities a = standard_capabilities(1440), b;
  b.add_formats(NETSUM_FORMAT_SUM_I32);
  b.add_formats(NETSUM_FORMAT(3, NETSUM_LANE_I32));
  b.set_payload_bytes(1024);
  const Capabilities both = common(a, b);
  EXPECT_THAT(both.formats(), ElementsAre(NETSUM_FORMAT_SUM_I32));
  EXPECT_THAT(both.byte_orders(), ElementsAre(NETSUM_LANES_LITTLE_ENDIAN));
  EXPECT_EQ(both.payload_bytes(), 1024u);
  EXPECT_EQ(both.max_members(), 64u);
  EXPECT_EQ(common(a, Capabilities()).payload_bytes(), 1440u) << "the other does not say";
}

TEST(Capabilities, NothingInCommonIsNotTheStandard) {
  Capabilities a, b;
  a.add_formats(NETSUM_FORMAT_SUM_I16);
  b.add_formats(NETSUM_FORMAT_SUM_I64);
  EXPECT_FALSE(check_needs(JobSpec(), common(a, b), kWho).ok());
}

}  // namespace
}  // namespace netsum::capabilities_test
