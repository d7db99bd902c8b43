// The running user-space dataplane, its sockets and threads included, against the golden vectors and against
// the reference dataplane on random packets.
#include <gtest/gtest.h>
#include <unistd.h>

#include "aggregator/user/dataplane.h"
#include "tests/conformance/network_run.h"
#include "tests/conformance/random_packets.h"
#include "tests/conformance/reference_dataplane.h"

namespace netsum::conformance::daemon_test {
namespace {

struct Setup {
  const char* name;
  bool queue_for_each_job = false;
  // A core that serves two ports; packets go to the first stripe, whose key is that of the vectors.
  bool two_ports = false;
};

class DaemonOnLoopback : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    pin_to_one_cpu();
    const Address anywhere = Address::parse("127.0.0.1:0").value();
    UserDataplaneOptions options{
        .ports = {{anywhere}}, .slots_per_stripe = 64, .queue_for_each_job = GetParam().queue_for_each_job};
    if (GetParam().two_ports) {
      options.ports.push_back({Address::parse("127.0.0.2:0").value()});
      options.stripes = {{0, 0}, {1, 0}};
    }
    auto started = start_user_dataplane(options);
    ASSERT_TRUE(started.ok()) << started.status().to_string();
    dataplane_ = std::move(started).value();
    for (Peer peer = 0; peer < kNetworkPeers; ++peer) {
      sockets_.push_back(open_peer(anywhere, dataplane_->endpoints()[0]));
      ASSERT_GE(sockets_.back(), 0);
    }
  }
  void TearDown() override {
    for (const int fd : sockets_) close(fd);
  }
  std::unique_ptr<Dataplane> dataplane_;
  std::vector<int> sockets_;
};

TEST_P(DaemonOnLoopback, GoldenVectors) {
  for (const Vector& vector : load_vectors()) {
    NetworkRun dataplane(dataplane_.get(), sockets_);
    const ReplayResult result = replay(vector, dataplane);
    const bool applies =
        vector.name != "oversized" && vector.start.empty() && vector.lengthens.value_or(true);
    EXPECT_EQ(result.outcome, applies ? Outcome::kPassed : Outcome::kNotApplicable)
        << vector.name << ": " << result.detail;
  }
}

TEST_P(DaemonOnLoopback, RandomPacketsAsTheReference) {
  for (const uint64_t seed : seeds(8)) {
    SCOPED_TRACE("NETSUM_SEED=" + std::to_string(seed));
    NetworkRun dataplane(dataplane_.get(), sockets_);
    ReferenceDataplane reference;
    ASSERT_EQ(first_difference(seed, 400, reference, dataplane), "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Setups, DaemonOnLoopback,
    testing::Values(Setup{.name = "OneQueueForAll"},
                    Setup{.name = "OneForEachJob", .queue_for_each_job = true},
                    Setup{.name = "TwoPorts", .queue_for_each_job = true, .two_ports = true}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace netsum::conformance::daemon_test
