// The XDP program against the golden vectors, against the reference dataplane on random packets, and against
// frames that are no plain netsum datagram.
#include <gtest/gtest.h>
#include <linux/bpf.h>

#include "src/base/rng.h"
#include "tests/conformance/random_packets.h"
#include "tests/conformance/reference_dataplane.h"
#include "tests/conformance/xdp_fixture.h"

namespace netsum::conformance::xdp_test {
namespace {

class Xdp : public XdpFixture {};

TEST_F(Xdp, GoldenVectors) {
  for (const Vector& vector : load_vectors()) {
    XdpRun dataplane(program_);
    const ReplayResult result = replay(vector, dataplane);
    const bool applies = vector.name != "oversized" && vector.name != "values" &&
                         vector.name != "values_in_a_hierarchy" &&
                         vector.name.find("floats") == std::string::npos && !vector.lengthens.value_or(false);
    EXPECT_EQ(result.outcome, applies ? Outcome::kPassed : Outcome::kNotApplicable)
        << vector.name << ": " << result.detail;
  }
}

TEST_F(Xdp, RandomPacketsAsTheReference) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE("NETSUM_SEED=" + std::to_string(seed));
    XdpRun dataplane(program_);
    ReferenceDataplane reference(/*lengthens=*/false);
    const std::string difference = first_difference(seed, 400, reference, dataplane);
    ASSERT_EQ(difference, "");
  }
}

// The verifier's work grows with the payload, and with what is switched on.
TEST_F(Xdp, LoadsWithTheLargestPayload) {
  for (const uint64_t job_packets_per_s : {0, 1000}) {
    const auto loaded = XdpProgram::load({.address = Address::parse("10.0.0.254:5152").value(),
                                          .slots = 1,
                                          .max_jobs = 1,
                                          .payload_bytes = NETSUM_XDP_MAX_PAYLOAD,
                                          .job_packets_per_s = job_packets_per_s,
                                          .inject_loss = 0.5});
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
  }
}

// --- Around the datagram -----------------------------------------------------------------------------------

class XdpFrames : public Xdp {
 protected:
  // A frame that the program takes in the end: a HELLO of an unknown job.
  Bytes good() const {
    VectorJob job{.job = 7,
                  .epoch = 1,
                  .key = {5, 6},
                  .members = 2,
                  .data_slots = 1,
                  .scale_slots = 0,
                  .payload_bytes = 32};
    netsum_fields f{};
    f.type = NETSUM_TYPE_HELLO;
    f.job = job.job;
    Bytes datagram(NETSUM_HEADER_BYTES);
    wire::write_header(f, wire::stripe_key(job.key, 0), datagram.data());
    return frame_around(datagram, 0);
  }
  // Verdict, and the one counter that moved.
  void expect(const Bytes& frame, uint32_t verdict, uint32_t counter) {
    std::vector<uint64_t> before;
    for (uint32_t i = 0; i < NETSUM_XDP_COUNTERS; ++i) before.push_back(program_->counter(i));
    const XdpRun::Output output = XdpRun::run(program_, frame);
    EXPECT_EQ(output.verdict, verdict);
    if (verdict == XDP_PASS) {
      EXPECT_EQ(output.frame, frame) << "other traffic is not touched";
    }
    EXPECT_EQ(program_->counter(counter), before[counter] + 1);
    for (uint32_t i = 0; i < NETSUM_XDP_COUNTERS; ++i) {
      if (i == counter || i == NETSUM_XDP_PACKETS_RECEIVED || i == NETSUM_XDP_BYTES_RECEIVED) continue;
      EXPECT_EQ(program_->counter(i), before[i]) << i;
    }
  }
  static void fix_ip_checksum(Bytes* frame, size_t ip_at) {
    Bytes& f = *frame;
    f[ip_at + 10] = f[ip_at + 11] = 0;
    uint32_t sum = 0;
    for (size_t i = 0; i < size_t{4} * (f[ip_at] & 15); i += 2) sum += f[ip_at + i] << 8 | f[ip_at + i + 1];
    while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
    f[ip_at + 10] = static_cast<uint8_t>(~sum >> 8);
    f[ip_at + 11] = static_cast<uint8_t>(~sum);
  }
};

TEST_F(XdpFrames, AGoodOneReachesTheParser) {
  expect(good(), XDP_DROP, NETSUM_DROP_UNKNOWN_JOB);
}

TEST_F(XdpFrames, OtherTrafficPassesUntouched) {
  for (const auto& [at, value] :
       std::vector<std::pair<size_t, uint8_t>>{{12, 0x86},        // not IPv4
                                               {14 + 9, 6},       // TCP
                                               {14 + 19, 0xFD},   // to another address
                                               {14 + 20 + 3, 1},  // to another port
                                               {14, 0x65}}) {     // IP version 6 in an IPv4 frame
    Bytes frame = good();
    frame[at] = value;
    expect(frame, XDP_PASS, NETSUM_XDP_PASSED);
  }
  for (size_t size = 14; size < 42; ++size) {
    const Bytes frame = good();
    expect(Bytes(frame.begin(), frame.begin() + static_cast<long>(size)), XDP_PASS, NETSUM_XDP_PASSED);
  }
  // A later fragment has no ports; the stack will not get the first one.
  Bytes later = good();
  later[14 + 7] = 10;
  fix_ip_checksum(&later, 14);
  expect(later, XDP_PASS, NETSUM_XDP_PASSED);
}

TEST_F(XdpFrames, VlanTags) {
  for (const uint8_t tag_protocol : {0x81, 0x88}) {
    Bytes frame = good();
    const Bytes tag{tag_protocol, static_cast<uint8_t>(tag_protocol == 0x81 ? 0x00 : 0xA8), 0, 5};
    frame.insert(frame.begin() + 12, tag.begin(), tag.end());
    expect(frame, XDP_DROP, NETSUM_XDP_VLAN_TAG);
    frame[18 + 20 + 3] ^= 1;  // another port
    expect(frame, XDP_PASS, NETSUM_XDP_PASSED);
  }
}

TEST_F(XdpFrames, IpOptions) {
  for (uint8_t words = 6; words <= 15; ++words) {
    Bytes frame = good();
    frame.insert(frame.begin() + 34, size_t{4} * (words - 5u), 1);
    frame[14] = static_cast<uint8_t>(0x40 | words);
    fix_ip_checksum(&frame, 14);
    expect(frame, XDP_DROP, NETSUM_XDP_IP_OPTIONS);
  }
}

TEST_F(XdpFrames, FirstFragments) {
  Bytes frame = good();
  frame[14 + 6] = 0x20;
  fix_ip_checksum(&frame, 14);
  expect(frame, XDP_DROP, NETSUM_XDP_IP_FRAGMENT);
}

TEST_F(XdpFrames, Lengths) {
  for (const int change : {-32, -1, 1, 40}) {
    Bytes frame = good();
    frame.resize(frame.size() + static_cast<size_t>(change + 32) - 32);
    expect(frame, XDP_DROP, NETSUM_XDP_IP_LENGTH);
    frame = good();
    frame[14 + 20 + 5] = static_cast<uint8_t>(frame[14 + 20 + 5] + change);
    expect(frame, XDP_DROP, NETSUM_XDP_IP_LENGTH);
  }
}

TEST_F(XdpFrames, IpChecksums) {
  for (size_t bit = 0; bit < 16; ++bit) {
    Bytes frame = good();
    frame[14 + 10 + bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    expect(frame, XDP_DROP, NETSUM_XDP_IP_CHECKSUM);
  }
}

}  // namespace
}  // namespace netsum::conformance::xdp_test
