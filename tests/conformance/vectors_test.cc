// Replays wire/vectors on the reference dataplane and on the user-space server's core.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "aggregator/user/core.h"
#include "tests/conformance/dataplane_vectors.h"
#include "tests/conformance/random_packets.h"
#include "tests/conformance/reference_dataplane.h"

namespace netsum::conformance::vectors_test {
namespace {

const std::vector<Vector>& committed() {
  static const std::vector<Vector> vectors = load_vectors();
  if (vectors.empty()) ADD_FAILURE() << "no vectors in " << kVectors;
  return vectors;
}

class ServerCore : public DataplaneUnderTest {
 public:
  void install(const VectorJob& job) override {
    const Status status = core_.install(dataplane_job(job, address));
    ASSERT_TRUE(status.ok());
  }
  bool start_at(const VectorStart&) override { return false; }  // slots are private to it
  std::vector<Reply> feed(Peer from, const Bytes& datagram) override {
    core_.on_packet(/*now_us=*/0, {datagram.data(), static_cast<uint32_t>(datagram.size()), address(from)});
    std::vector<Reply> replies;
    for (const OutPacket& packet : core_.outbox()) {
      replies.push_back({packet.to.port - kFirstPort, Bytes(packet.data, packet.data + packet.size)});
    }
    core_.clear();
    return replies;
  }
  bool sums_values() const override { return true; }
  bool adds_floats() const override { return true; }
  std::map<std::string, uint64_t> drops() override {
    std::map<std::string, uint64_t> drops;
    for (int reason = 0; reason < NETSUM_DROP_COUNT; ++reason) {
      drops[std::string(wire::drop_name(reason))] = core_.counters().drops[static_cast<size_t>(reason)].get();
    }
    return drops;
  }

 private:
  static constexpr int kFirstPort = 1000;
  static Address address(Peer peer) {
    Address address;
    address.family = 4;
    address.ip = {10, 0, 0, 1};
    address.port = static_cast<uint16_t>(kFirstPort + peer);
    return address;
  }
  AggregatorCore core_{{.max_jobs = 8, .slots = 8, .payload_bytes = 96}};
};

TEST(Vectors, ReferenceDataplane) {
  for (const Vector& vector : committed()) {
    ReferenceDataplane dataplane(vector.lengthens.value_or(true));
    const ReplayResult result = replay(vector, dataplane);
    EXPECT_EQ(result.outcome, Outcome::kPassed) << result.detail;
  }
}

TEST(Vectors, ServerCore) {
  int passed = 0;
  for (const Vector& vector : committed()) {
    ServerCore dataplane;
    const ReplayResult result = replay(vector, dataplane);
    EXPECT_NE(result.outcome, Outcome::kFailed) << result.detail;
    passed += result.outcome == Outcome::kPassed;
  }
  EXPECT_GE(passed + 2,
            static_cast<int>(committed().size()));  // all but the wrap of rounds, and what is of XDP
}

TEST(Vectors, ServerCoreOnRandomPacketsAsTheReference) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ReferenceDataplane reference;
    ServerCore dataplane;
    ASSERT_EQ(first_difference(seed, 400, reference, dataplane), "");
  }
}

TEST(Vectors, FilesAreWhatTheGeneratorWrites) {
  const std::vector<Vector> vectors = make_vectors();
  EXPECT_EQ(vectors.size(), committed().size());
  for (const Vector& vector : vectors) {
    const std::string path = std::string(kVectors) + "/" + vector.name + ".json";
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_EQ(text.str(), to_json(vector)) << path << " is old: run netsum_make_vectors wire/vectors";
    EXPECT_EQ(to_json(from_json(text.str())), text.str());
  }
}

// --- The replayer itself -----------------------------------------------------------------------------------

// Passes everything through the reference dataplane, but for one fault.
class Faulty : public ReferenceDataplane {
 public:
  enum Fault { kLosesReplies, kAltersReplies, kRepeatsReplies, kMiscounts };
  Faulty(Fault fault, bool lengthens) : ReferenceDataplane(lengthens), fault_(fault) {}
  std::vector<Reply> feed(Peer from, const Bytes& datagram) override {
    std::vector<Reply> replies = ReferenceDataplane::feed(from, datagram);
    if (replies.empty()) return replies;
    if (fault_ == kLosesReplies) replies.pop_back();
    if (fault_ == kAltersReplies) replies.back().datagram.back() ^= 1;
    if (fault_ == kRepeatsReplies) replies.push_back(replies.back());
    return replies;
  }
  std::map<std::string, uint64_t> drops() override {
    auto drops = ReferenceDataplane::drops();
    if (fault_ == kMiscounts) ++drops["bad_check"];
    return drops;
  }

 private:
  Fault fault_;
};

TEST(Vectors, ReplaySeesEveryKindOfFault) {
  for (const Vector& vector : committed()) {
    for (auto fault :
         {Faulty::kLosesReplies, Faulty::kAltersReplies, Faulty::kRepeatsReplies, Faulty::kMiscounts}) {
      Faulty dataplane(fault, vector.lengthens.value_or(true));
      EXPECT_EQ(replay(vector, dataplane).outcome, Outcome::kFailed) << vector.name << " fault " << fault;
    }
  }
}

TEST(Vectors, MalformedFilesAreRefused) {
  const std::string good = to_json(make_vectors()[0]);
  EXPECT_NO_THROW(from_json(good));
  EXPECT_ANY_THROW(from_json(good.substr(0, good.size() / 2)));
  EXPECT_ANY_THROW(from_json("{}"));
  std::string odd = good;
  odd.replace(odd.find("a521"), 4, "a52");
  EXPECT_ANY_THROW(from_json(odd));
  EXPECT_ANY_THROW(load_vectors("/nonexistent"));
}

}  // namespace
}  // namespace netsum::conformance::vectors_test
