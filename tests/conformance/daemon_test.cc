// The running user-space dataplane, its sockets and threads included, against the golden vectors and against
// the reference dataplane on random packets.
#include <gtest/gtest.h>
#include <unistd.h>

#include "aggregator/server/server.h"
#include "tests/conformance/network_run.h"
#include "tests/conformance/random_packets.h"
#include "tests/conformance/reference_dataplane.h"

namespace netsum::conformance {
namespace {

// With a receive queue for each job, or one for all.
class DaemonOnLoopback : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    pin_to_one_cpu();
    const Address anywhere = Address::parse("127.0.0.1:0").value();
    auto started =
        start_udp_dataplane({.bind = anywhere, .slots_per_core = 64, .queue_for_each_job = GetParam()});
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
  for (const Vector& vector : load_vectors(NETSUM_VECTORS)) {
    NetworkRun dataplane(dataplane_.get(), sockets_);
    const ReplayResult result = replay(vector, dataplane);
    const bool applies = vector.name != "oversized" && vector.start.empty();
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

INSTANTIATE_TEST_SUITE_P(Queues, DaemonOnLoopback, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "OneForEachJob" : "OneForAll"; });

}  // namespace
}  // namespace netsum::conformance
