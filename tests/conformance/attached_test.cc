// The XDP dataplane as it runs, its program attached to the ports of a switch: real packets from hosts in
// network namespaces, against the golden vectors and against the reference dataplane on random packets. Both
// with a port for each member and with all members behind one port.
#include <gtest/gtest.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "aggregator/xdp/xdp_dataplane.h"
#include "tests/conformance/network_run.h"
#include "tests/conformance/random_packets.h"
#include "tests/conformance/reference_dataplane.h"
#include "tests/conformance/vector_writer.h"
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

// The kernel keeps what one poll has for a port and sends it at the poll's end, answers for one member and
// copies for all together.
TEST_P(AttachedXdp, AnswersOfOnePollGoEachToWhomTheyAreFor) {
  NetworkRun dataplane(dataplane_.get(), sockets_);
  VectorWriter w("bursts", "");
  w.everybody_says_hello();
  const Round done{.slot = 0, .round = 1, .chunk = 1}, next{.slot = 1, .round = 1, .chunk = 2};
  const Round later{.slot = 0, .round = 2, .chunk = 3};
  const Bytes ours = lanes32({1, 2}), theirs = lanes32({10, 20}), sum = lanes32({11, 22});
  w.contribute(0, done, ours).contribute(1, done, theirs);
  w.contribute(1, next, theirs).contribute(1, later, theirs);
  dataplane.install(w.job());
  for (const VectorStep& step : w.done().steps) dataplane.feed(step.from, step.packet);

  const Bytes packet = w.contribution(0, done, ours);
  const int segment = static_cast<int>(packet.size());
  const auto burst = [&](const std::vector<Round>& rounds, std::vector<Reply> expected) {
    Bytes packets;
    for (const Round& r : rounds) {
      const Bytes one = w.contribution(0, r, ours);
      packets.insert(packets.end(), one.begin(), one.end());
    }
    std::vector<Reply> replies = dataplane.feed(0, packets);
    std::sort(replies.begin(), replies.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(replies.size(), expected.size());
    return replies == expected;
  };
  // One send that the kernel cuts up, so that all packets come at once.
  ASSERT_EQ(setsockopt(sockets_[0], IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);
  EXPECT_TRUE(
      burst({done, next}, {{0, w.result(done, sum)}, {0, w.result(next, sum)}, {1, w.result(next, sum)}}))
      << "first an answer for one, then copies for all";
  EXPECT_TRUE(burst({later, next, next}, {{0, w.result(later, sum)},
                                          {1, w.result(later, sum)},
                                          {0, w.result(next, sum)},
                                          {0, w.result(next, sum)}}))
      << "first copies for all, then answers for one";
  const int whole = 0;
  setsockopt(sockets_[0], IPPROTO_UDP, UDP_SEGMENT, &whole, sizeof whole);
}

INSTANTIATE_TEST_SUITE_P(Hosts, AttachedXdp, testing::Values(kNetworkPeers, 1, 3), [](const auto& hosts) {
  return hosts.param == 1 ? std::string("OnePortForAll") : "Over" + std::to_string(hosts.param) + "Ports";
});

}  // namespace
}  // namespace netsum::conformance
