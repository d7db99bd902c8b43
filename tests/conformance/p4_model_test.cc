// The model of the P4 pipeline against the golden vectors, and against the slot machine on random packets.
#include <gtest/gtest.h>

#include "src/base/soak.h"
#include "tests/conformance/p4_run.h"
#include "tests/conformance/random_packets.h"
#include "tests/conformance/reference_dataplane.h"

namespace netsum::conformance::p4_model_test {
namespace {

// By name: what needs a capability that the model does not announce.
bool applies(const std::string& vector) {
  for (const char* part : {"no_lanes", "brief", "floats"}) {
    if (vector.find(part) != std::string::npos) return false;
  }
  return vector != "values" && vector != "values_in_a_hierarchy";
}

TEST(P4Model, GoldenVectors) {
  for (const Vector& vector : load_vectors()) {
    P4Run dataplane;
    const ReplayResult result = replay(vector, dataplane);
    EXPECT_EQ(result.outcome, applies(vector.name) ? Outcome::kPassed : Outcome::kNotApplicable)
        << vector.name << ": " << result.detail;
  }
}

void expect_as_the_reference(int runs, uint32_t payload_bytes) {
  for (const uint64_t seed : seeds(runs)) {
    SCOPED_TRACE("NETSUM_SEED=" + std::to_string(seed));
    P4Run dataplane;
    ReferenceDataplane reference;
    ASSERT_EQ(first_difference(seed, 1000, reference, dataplane, payload_bytes), "");
    EXPECT_EQ(dataplane.pipeline().counter(NETSUM_P4_COUNT_LOST_PASS), 0u);
    for (const auto& [name, accesses] : dataplane.pipeline().register_accesses())
      EXPECT_LE(accesses, dataplane.pipeline().passes()) << name;
  }
}

TEST(P4Model, RandomPacketsAsTheReference) {
  expect_as_the_reference(soak() ? 3'000 : 100, 96);
}

TEST(P4Model, RandomPacketsOfSeveralPassesAsTheReference) {
  expect_as_the_reference(soak() ? 2'000 : 60, 1024);
}

}  // namespace
}  // namespace netsum::conformance::p4_model_test
