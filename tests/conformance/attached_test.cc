// The XDP dataplane as it runs, its program attached to the ports of a switch: real packets from hosts in
// network namespaces, against the golden vectors and against the reference dataplane on random packets. Both
// with a port for each member and with all members behind one port.
#include <gtest/gtest.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "aggregator/xdp/maps.h"
#include "aggregator/xdp/xdp_dataplane.h"
#include "src/base/soak.h"
#include "tests/conformance/network_run.h"
#include "tests/conformance/random_packets.h"
#include "tests/conformance/reference_dataplane.h"
#include "tests/conformance/vector_writer.h"
#include "tests/conformance/veth_lab.h"

namespace netsum::conformance::attached_test {
namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr Mac kStrangersMac = {0x02, 0x66, 0, 0, 0, 1};

bool wait_for(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Replies to `feed`, sorted, as NetworkRun gives them in any order.
std::vector<Reply> sorted(std::vector<Reply> replies) {
  std::sort(replies.begin(), replies.end());
  return replies;
}

class Attached : public testing::Test {
 protected:
  // Attaches to the first `attached` of the switch's ports.
  void start(int hosts, int attached, int mtu = 1500, uint32_t payload_bytes = 1440) {
    pin_to_one_cpu();
    auto lab = VethLab::make(hosts, {.mtu = mtu});
    if (lab.status().code() == ErrorCode::kPermissionDenied) GTEST_SKIP() << lab.status().to_string();
    ASSERT_TRUE(lab.ok()) << lab.status().to_string();
    lab_ = std::move(lab).value();
    {
      const VethLab::Inside inside = lab_->in_switch();
      std::vector<std::string> interfaces = lab_->ports();
      interfaces.resize(static_cast<size_t>(attached));
      auto started = start_xdp_dataplane({.bind = VethLab::switch_address(),
                                          .interfaces = interfaces,
                                          .slots = 64,
                                          .payload_bytes = payload_bytes});
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
  Address address_of(Peer peer) const {
    sockaddr_storage local{};
    socklen_t bytes = sizeof local;
    getsockname(sockets_[static_cast<size_t>(peer)], reinterpret_cast<sockaddr*>(&local), &bytes);
    return Address::from_sockaddr(local);
  }
  // The datagram in `peer`'s name, sent out of `host` by somebody else.
  void spoof(int host, Peer peer, const Bytes& datagram) const {
    const FrameAddresses addresses{kStrangersMac, lab_->switch_mac(), address_of(peer),
                                   dataplane_->endpoints()[0]};
    ASSERT_TRUE(lab_->send_frame(host, frame_of(addresses, datagram)));
  }

  std::unique_ptr<VethLab> lab_;
  std::unique_ptr<Dataplane> dataplane_;
  std::vector<int> sockets_;
};

class AttachedXdp : public Attached, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override { start(GetParam(), GetParam()); }
};

TEST_P(AttachedXdp, GoldenVectors) {
  for (const Vector& vector : load_vectors()) {
    NetworkRun dataplane(dataplane_.get(), sockets_, /*lengthens=*/false);
    const ReplayResult result = replay(vector, dataplane);
    const bool applies = vector.name != "oversized" && vector.name != "values" &&
                         vector.name != "values_in_a_hierarchy" &&
                         vector.name.find("floats") == std::string::npos && vector.start.empty() &&
                         !vector.lengthens.value_or(false);
    EXPECT_EQ(result.outcome, applies ? Outcome::kPassed : Outcome::kNotApplicable)
        << vector.name << ": " << result.detail;
  }
  EXPECT_GT(counter("rounds_completed"), 0u);
}

TEST_P(AttachedXdp, RandomPacketsAsTheReference) {
  for (const uint64_t seed : seeds(4)) {
    SCOPED_TRACE("NETSUM_SEED=" + std::to_string(seed));
    NetworkRun dataplane(dataplane_.get(), sockets_, /*lengthens=*/false);
    ReferenceDataplane reference(/*lengthens=*/false);
    ASSERT_EQ(first_difference(seed, 400, reference, dataplane), "");
  }
  EXPECT_GT(counter("rounds_completed"), 0u);
}

// The kernel keeps what one poll has for a port and sends it at the poll's end, answers for one member and
// copies for all together.
TEST_P(AttachedXdp, AnswersOfOnePollGoEachToWhomTheyAreFor) {
  NetworkRun dataplane(dataplane_.get(), sockets_, /*lengthens=*/false);
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

// Sends one datagram again and again, on another CPU than the test's where there is one.
class Flood {
 public:
  Flood(int fd, Bytes datagram) : fd_(fd), datagram_(std::move(datagram)), thread_([this] { loop(); }) {}
  ~Flood() {
    stop_ = true;
    thread_.join();
  }

 private:
  void loop() {
    cpu_set_t others;
    std::memset(&others, 0xFF, sizeof others);
    CPU_CLR(static_cast<size_t>(sched_getcpu()), &others);
    sched_setaffinity(0, sizeof others, &others);  // fails where this is the only CPU
    while (!stop_) send(fd_, datagram_.data(), datagram_.size(), 0);
  }
  const int fd_;
  const Bytes datagram_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A job's packets name the same slot, round and chunk as those of another job while it is removed, granted
// again under its index, and removed. Every sum of the other job is right.
TEST_P(AttachedXdp, AJobRemovedUnderTrafficTouchesNoOther) {
  constexpr uint32_t kTurns = 30;
  const auto job = [](uint16_t index, uint16_t epoch) {
    return VectorJob{.job = index,
                     .epoch = epoch,
                     .key = {index, epoch},
                     .members = 2,
                     .data_slots = 1,
                     .scale_slots = 0,
                     .payload_bytes = 1440};
  };
  const auto lanes = [](int32_t value) { return lanes32(std::vector<int32_t>(360, value)); };
  VectorWriter w("", "", {job(1, 1)});
  // First of all, so that it has slot 0.
  const DataplaneJob summing = dataplane_job(w.job(), [&](Peer peer) { return address_of(peer); });
  ASSERT_TRUE(dataplane_->install(summing).ok());
  NetworkRun network(dataplane_.get(), sockets_);
  for (const uint16_t m : {0, 1}) ASSERT_EQ(network.feed(m, w.hello(m, 1)).size(), 1u);
  std::unique_ptr<Flood> flood;
  for (uint32_t turn = 1; turn <= kTurns; ++turn) {
    const Round round{.round = turn};
    ASSERT_TRUE(network.feed(0, w.contribution(0, round, lanes(1))).empty());

    VectorWriter other("", "", {job(2, static_cast<uint16_t>(turn))});
    const DataplaneJob removed = dataplane_job(other.job(), [&](Peer peer) { return address_of(peer); });
    ASSERT_TRUE(dataplane_->install(removed).ok());
    flood.reset();
    ASSERT_EQ(network.feed(2, other.hello(1, 1)).size(), 1u);
    flood = std::make_unique<Flood>(sockets_[2], other.contribution(1, round, lanes(1000)));
    const uint64_t before = counter("packets_received");
    ASSERT_TRUE(wait_for([&] { return counter("packets_received") > before + 20; }));
    dataplane_->remove(removed.job, removed.epoch);

    const Bytes sum = w.result(round, lanes(3));
    ASSERT_EQ(sorted(network.feed(1, w.contribution(1, round, lanes(2)))),
              (std::vector<Reply>{{0, sum}, {1, sum}}))
        << "turn " << turn;
  }
  flood.reset();
  dataplane_->remove(summing.job, summing.epoch);
}

// Somebody behind another port, or behind the same one, repeats a member's HELLO from an Ethernet address of
// their own. Results still reach every member, each at once.
TEST_P(AttachedXdp, AReplayedHelloMovesNobody) {
  NetworkRun network(dataplane_.get(), sockets_);
  VectorWriter w("", "", 6);
  network.install(w.job());
  for (uint16_t m = 0; m < 6; ++m) ASSERT_EQ(network.feed(m, w.hello(m, 1000u + m)).size(), 1u);
  const uint64_t before = counter("packets_received");
  for (const uint16_t m : {0, 4}) spoof((m + 1) % GetParam(), m, w.hello(m, 1000u + m));
  ASSERT_TRUE(wait_for([&] { return counter("packets_received") >= before + 2; }));
  network.feed(5, w.hello(5, 1005));  // takes in what the replays led to, if anything
  for (uint32_t turn = 1; turn <= 6; ++turn) {
    const Round round{.round = turn};
    std::vector<Reply> expected;
    for (uint16_t m = 0; m < 6; ++m) {
      expected.push_back({m, w.result(round, lanes32({6, 12}))});
      const std::vector<Reply> replies = network.feed(m, w.contribution(m, round, lanes32({1, 2})));
      ASSERT_EQ(sorted(replies), m == 5 ? expected : std::vector<Reply>{}) << "round " << turn;
    }
  }
  EXPECT_EQ(counter("drop_unknown_peer"), 2u);
}

class AttachedInPart : public Attached {
 protected:
  void SetUp() override { start(2, 1); }
};

// What comes in by a port without the program is for the loader to check.
TEST_F(AttachedInPart, AForgedHelloPastTheProgramGetsNoWelcome) {
  const VectorWriter w("", "");
  const DataplaneJob job = dataplane_job(w.job(), [&](Peer peer) { return address_of(peer); });
  ASSERT_TRUE(dataplane_->install(job).ok());
  const auto answer_to = [&](const Bytes& datagram) {
    Bytes answer(65536);
    pollfd socket{.fd = sockets_[0], .events = POLLIN, .revents = 0};
    if (send(socket.fd, datagram.data(), datagram.size(), 0) < 0 ||
        poll(&socket, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) != 1) {
      return Bytes();
    }
    answer.resize(static_cast<size_t>(recv(socket.fd, answer.data(), answer.size(), 0)));
    return answer;
  };
  ASSERT_EQ(answer_to(w.hello(0, 1)), w.welcome(0, 1));
  Bytes forged = w.hello(0, 2);
  forged[24] ^= 1;  // in the tag
  const auto answered = [&] { return counter("hellos") + counter("hellos_refused"); };
  const uint64_t before = answered(), refused = counter("hellos_refused");
  spoof(1, 0, forged);
  ASSERT_TRUE(wait_for([&] { return answered() > before; }));
  EXPECT_EQ(counter("hellos_refused"), refused + 1);
  EXPECT_EQ(answer_to(w.hello(0, 3)), w.welcome(0, 3)) << "and nothing before it";
  dataplane_->remove(job.job, job.epoch);
}

// Links with an MTU above a page: the program sums the largest packets that fit into one, and passes on larger ones.
class AttachedToLargeMtu : public Attached {
 protected:
  void SetUp() override { start(3, 3, 9000, NETSUM_XDP_MAX_PAYLOAD); }
};

TEST_F(AttachedToLargeMtu, SumsPacketsOfOneBuffer) {
  NetworkRun network(dataplane_.get(), sockets_);
  VectorJob job = usual_job(3);
  job.payload_bytes = NETSUM_XDP_MAX_PAYLOAD;
  VectorWriter w("", "", {job});
  network.install(w.job());
  for (uint16_t m = 0; m < 3; ++m) ASSERT_EQ(network.feed(m, w.hello(m, 1000u + m)).size(), 1u);
  const auto lanes = [](int32_t value) {
    return lanes32(std::vector<int32_t>(NETSUM_XDP_MAX_PAYLOAD / 4, value));
  };
  for (uint32_t turn = 1; turn <= 20; ++turn) {
    const Round round{.round = turn};
    for (uint16_t m = 0; m < 2; ++m)
      ASSERT_TRUE(network.feed(m, w.contribution(m, round, lanes(m + 1))).empty());
    const Bytes sum = w.result(round, lanes(6));
    ASSERT_EQ(sorted(network.feed(2, w.contribution(2, round, lanes(3)))),
              (std::vector<Reply>{{0, sum}, {1, sum}, {2, sum}}))
        << "round " << turn;
  }
}

TEST_F(AttachedToLargeMtu, FramesOfSeveralBuffersPassUnlessTheyAreForTheAggregator) {
  const auto bound_in_switch = [&] {
    const VethLab::Inside inside = lab_->in_switch();
    sockaddr_storage local{};
    const socklen_t bytes = VethLab::switch_address().to_sockaddr(&local);
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&local), bytes) == 0 ? fd : -1;
  };
  const int receiver = bound_in_switch();
  ASSERT_GE(receiver, 0);
  sockaddr_storage at{};
  socklen_t bytes = sizeof at;
  ASSERT_EQ(getsockname(receiver, reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  const Bytes large(8'000, 7);
  ASSERT_EQ(send(sockets_[0], large.data(), large.size(), 0), 8'000);  // to the aggregator
  ASSERT_TRUE(wait_for([&] { return counter("drop_ip_length") == 1; }));
  {
    const VethLab::Inside inside = lab_->in_host(0);
    const int sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(sendto(sender, large.data(), large.size(), 0, reinterpret_cast<sockaddr*>(&at), bytes), 8'000);
    close(sender);
  }
  Bytes received(65'536);
  pollfd incoming{.fd = receiver, .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&incoming, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())), 1);
  received.resize(static_cast<size_t>(recv(receiver, received.data(), received.size(), 0)));
  EXPECT_EQ(received, large);
  close(receiver);
}

// Three ports with four members each are between a port for each member and one for all.
INSTANTIATE_TEST_SUITE_P(Hosts, AttachedXdp,
                         testing::ValuesIn(soak() ? std::vector<int>{kNetworkPeers, 1, 3}
                                                  : std::vector<int>{1, 3}),
                         [](const auto& hosts) {
                           return hosts.param == 1 ? std::string("OnePortForAll")
                                                   : "Over" + std::to_string(hosts.param) + "Ports";
                         });

}  // namespace
}  // namespace netsum::conformance::attached_test
