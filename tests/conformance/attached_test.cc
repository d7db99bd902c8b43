// The XDP dataplane as it runs, its program attached to the ports of a switch: real packets from hosts in
// network namespaces, against the golden vectors and against the reference dataplane on random packets. Both
// with a port for each member and with all members behind one port.
#include <gtest/gtest.h>
#include <unistd.h>

#include "aggregator/xdp/xdp_dataplane.h"
#include "tests/conformance/network_run.h"
#include "tests/conformance/random_packets.h"
#include "tests/conformance/reference_dataplane.h"
#include "tests/conformance/veth_lab.h"

namespace netsum::conformance {
namespace {

class AttachedXdp : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const int hosts = GetParam();
    pin_to_one_cpu();
    auto lab = VethLab::make(hosts);
    if (lab.status().code() == ErrorCode::kPermissionDenied) GTEST_SKIP() << lab.status().to_string();
    ASSERT_TRUE(lab.ok()) << lab.status().to_string();
    lab_ = std::move(lab).value();
    {
      const VethLab::Inside inside = lab_->in_switch();
      auto started =
          start_xdp_dataplane({.bind = VethLab::switch_address(), .interfaces = lab_->ports(), .slots = 64});
      ASSERT_TRUE(started.ok()) << started.status().to_string();
      dataplane_ = std::move(started).value();
    }
    for (Peer peer = 0; peer < kNetworkPeers; ++peer) {
      const VethLab::Inside inside = lab_->in_host(peer % hosts);
      sockets_.push_back(open_peer(VethLab::host_address(peer % hosts), dataplane_->endpoints()[0]));
      ASSERT_GE(sockets_.back(), 0);
    }
  }
  void TearDown() override {
    for (const int fd : sockets_) close(fd);
  }
  uint64_t counter(const std::string& name) const {
    for (const AggregatorCounter& counter : dataplane_->counters()) {
      if (counter.name == name) return counter.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }
  std::unique_ptr<VethLab> lab_;
  std::unique_ptr<Dataplane> dataplane_;
  std::vector<int> sockets_;
};

TEST_P(AttachedXdp, GoldenVectors) {
  for (const Vector& vector : load_vectors(NETSUM_VECTORS)) {
    NetworkRun dataplane(dataplane_.get(), sockets_);
    const ReplayResult result = replay(vector, dataplane);
    const bool applies = vector.name != "oversized" && vector.start.empty();
    EXPECT_EQ(result.outcome, applies ? Outcome::kPassed : Outcome::kNotApplicable)
        << vector.name << ": " << result.detail;
  }
  EXPECT_GT(counter("rounds_completed"), 0u);
}

TEST_P(AttachedXdp, RandomPacketsAsTheReference) {
  for (const uint64_t seed : seeds(4)) {
    SCOPED_TRACE("NETSUM_SEED=" + std::to_string(seed));
    NetworkRun dataplane(dataplane_.get(), sockets_);
    ReferenceDataplane reference;
    ASSERT_EQ(first_difference(seed, 400, reference, dataplane), "");
  }
  EXPECT_GT(counter("rounds_completed"), 0u);
}

INSTANTIATE_TEST_SUITE_P(Hosts, AttachedXdp, testing::Values(kNetworkPeers, 1, 3), [](const auto& hosts) {
  return hosts.param == 1 ? std::string("OnePortForAll") : "Over" + std::to_string(hosts.param) + "Ports";
});

}  // namespace
}  // namespace netsum::conformance
