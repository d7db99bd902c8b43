// Switches, and the dataplane on top of them: what all drivers do alike, and the golden vectors and random packets. With BMv2
// where p4c and simple_switch_grpc are on the PATH.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "aggregator/p4/driver/frame.h"
#include "aggregator/p4/driver/p4_dataplane.h"
#include "tests/conformance/cookie_run.h"
#include "tests/conformance/network_run.h"
#include "tests/conformance/p4_run.h"
#include "tests/conformance/random_packets.h"
#include "tests/conformance/switch_lab.h"
#include "tests/conformance/vector_writer.h"

namespace netsum::conformance::p4_switch_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::chrono::seconds kPatience{30};
constexpr uint64_t kOwnMac = 0x020000000001;

template <typename Condition>
bool wait_for(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

// The lab of a kind is made once, because BMv2's takes long.
Result<SwitchLab*> lab_of(const std::string& kind) {
  if (kind == "model") {
    static const std::unique_ptr<SwitchLab> model = make_model_lab();
    return model.get();
  }
  static const Result<std::unique_ptr<SwitchLab>> bmv2 = make_bmv2_lab();
  if (!bmv2.ok()) return bmv2.status();
  return bmv2.value().get();
}

VectorJob cookie_job(uint16_t members = 2) {
  VectorJob job = usual_job(members);
  job.tag = NETSUM_TAG_COOKIE;
  return job;
}

class SwitchTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Result<SwitchLab*> lab = lab_of(GetParam());
    if (lab.status().code() == ErrorCode::kUnsupported) GTEST_SKIP() << lab.status().message();
    ASSERT_TRUE(lab.ok()) << lab.status().to_string();
    lab_ = *lab;
    auto driver = lab_->connect();
    ASSERT_TRUE(driver.ok()) << driver.status().to_string();
    driver_ = std::move(driver).value();
  }

  SwitchLab* lab_ = nullptr;
  std::unique_ptr<p4::SwitchDriver> driver_;
};

// --- Drivers -----------------------------------------------------------------------------------------------------------

class SwitchDriverTest : public SwitchTest {
 protected:
  struct Frame {
    uint16_t port = 0;
    Bytes bytes;
  };
  void SetUp() override {
    SwitchTest::SetUp();
    if (driver_ == nullptr) return;
    driver_->set_events({.on_packet =
                             [this](uint16_t port, std::span<const uint8_t> frame) {
                               const std::lock_guard lock(mutex_);
                               frames_.push_back({port, Bytes(frame.begin(), frame.end())});
                             },
                         .on_restart =
                             [this](const Status& reason) {
                               const std::lock_guard lock(mutex_);
                               restarts_.push_back(reason);
                             }});
  }
  void TearDown() override {
    if (driver_ != nullptr) driver_->set_events({});
  }
  std::vector<Frame> frames() {
    const std::lock_guard lock(mutex_);
    return frames_;
  }
  size_t restarts() {
    const std::lock_guard lock(mutex_);
    return restarts_.size();
  }
  uint64_t count(int event) {
    const Result<p4::SwitchCounters> counters = driver_->counters();
    EXPECT_TRUE(counters.ok()) << counters.status().to_string();
    return counters.ok() ? counters->events[static_cast<size_t>(event)] : 0;
  }
  // Refused by that name, and answered by nothing.
  void expect_refused(Peer from, const Bytes& datagram, int reason) {
    const uint64_t before = count(reason);
    lab_->send(from, datagram);
    EXPECT_TRUE(wait_for([&] { return count(reason) == before + 1; }));
  }
  static p4::JobEntry entry_of(const VectorJob& job, uint32_t first_slot = 0) {
    return {.epoch = job.epoch,
            .members = job.members,
            .slots = job.data_slots + job.scale_slots,
            .payload_bytes = job.payload_bytes,
            .first_slot = first_slot,
            .cookie = job.packet_key().cookie()};
  }

  std::mutex mutex_;
  std::vector<Frame> frames_;
  std::vector<Status> restarts_;
};

TEST_P(SwitchDriverTest, LimitsAreThoseOfTheProgram) {
  const p4::SwitchLimits limits = driver_->limits();
  EXPECT_EQ(limits.jobs, NETSUM_P4_JOBS);
  EXPECT_EQ(limits.members, static_cast<uint32_t>(NETSUM_P4_MEMBERS));
  EXPECT_EQ(limits.slots, static_cast<uint32_t>(NETSUM_P4_SLOTS));
  EXPECT_EQ(limits.payload_bytes, static_cast<uint32_t>(NETSUM_P4_GROUPS * NETSUM_P4_PASS_BYTES));
}

TEST_P(SwitchDriverTest, AMemberIsWhereItsFirstHelloCameFrom) {
  const VectorWriter w("", "", {cookie_job()});
  expect_refused(0, w.hello(0, 1), NETSUM_DROP_UNKNOWN_JOB);
  ASSERT_TRUE(driver_->set_job(w.job().job, entry_of(w.job())).ok());
  lab_->send(0, w.hello(0, 1));
  ASSERT_TRUE(wait_for([&] { return !frames().empty(); }));
  const Frame hello = frames().front();
  const p4::MemberEntry place = lab_->place_of(0);
  EXPECT_EQ(hello.port, place.port);
  const std::optional<p4::UdpFrame> frame = p4::parse_frame(hello.bytes);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->datagram, w.hello(0, 1));
  EXPECT_EQ(frame->from_mac, place.mac);
  EXPECT_EQ(frame->from_ip, place.ip);
  EXPECT_EQ(frame->from_port, place.udp_port);
  expect_refused(0, w.probe(0, {}), NETSUM_DROP_UNKNOWN_PEER);

  ASSERT_TRUE(driver_->set_member(w.job().job, 0, place).ok());
  lab_->send(0, w.hello(0, 2));
  const std::vector<Reply> replies = lab_->take_replies(1);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0], (Reply{0, w.welcome(0, 2)}));
  expect_refused(1, w.hello(0, 3), NETSUM_DROP_UNKNOWN_PEER);
  EXPECT_EQ(frames().size(), 1u);

  ASSERT_TRUE(driver_->remove_job(w.job().job).ok());
  expect_refused(0, w.hello(0, 4), NETSUM_DROP_UNKNOWN_JOB);
  EXPECT_TRUE(driver_->remove_job(w.job().job).ok()) << "one that is not there";
}

TEST_P(SwitchDriverTest, AJobThatIsReplacedHasNoMembers) {
  VectorJob job = cookie_job();
  ASSERT_TRUE(driver_->set_job(job.job, entry_of(job)).ok());
  ASSERT_TRUE(driver_->set_member(job.job, 0, lab_->place_of(0)).ok());
  const VectorWriter before("", "", {job});
  ++job.epoch;
  const VectorWriter after("", "", {job});
  ASSERT_TRUE(driver_->set_job(job.job, entry_of(job)).ok());
  expect_refused(0, before.hello(0, 1), NETSUM_DROP_STALE_EPOCH);
  lab_->send(0, after.hello(0, 1));
  ASSERT_TRUE(wait_for([&] { return frames().size() == 1; })) << "it is new to the switch";
  EXPECT_TRUE(driver_->remove_job(job.job).ok());
}

TEST_P(SwitchDriverTest, JobsAreRemovedOneByOne) {
  VectorJob one = cookie_job(), other = cookie_job();
  other.job = one.job + 1;
  ASSERT_TRUE(driver_->set_job(one.job, entry_of(one)).ok());
  ASSERT_TRUE(driver_->set_job(other.job, entry_of(other, 10)).ok());
  for (const uint16_t job : {one.job, other.job})
    ASSERT_TRUE(driver_->set_member(job, 0, lab_->place_of(0)).ok());
  ASSERT_TRUE(driver_->remove_job(one.job).ok());
  const VectorWriter w("", "", {other});
  lab_->send(0, w.hello(0, 9));
  EXPECT_EQ(lab_->take_replies(1), (std::vector<Reply>{{0, w.welcome(0, 9)}}));
  EXPECT_TRUE(driver_->remove_job(other.job).ok());
}

TEST_P(SwitchDriverTest, AMemberNeedsAJob) {
  EXPECT_EQ(driver_->set_member(17, 0, lab_->place_of(0)).code(), ErrorCode::kInvalidArgument);
}

TEST_P(SwitchDriverTest, AParentNeedsAJobThatHasOne) {
  EXPECT_EQ(driver_->set_parent(17, {}).code(), ErrorCode::kInvalidArgument);
  const VectorJob job = cookie_job();
  ASSERT_TRUE(driver_->set_job(job.job, entry_of(job)).ok());
  const Status status = driver_->set_parent(job.job, {});
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("no job 3 with a parent"));
  EXPECT_TRUE(driver_->remove_job(job.job).ok());
}

TEST_P(SwitchDriverTest, RoundsAreCountedByJob) {
  VectorJob job = cookie_job(1);
  VectorWriter w("", "", {job});
  ASSERT_TRUE(driver_->set_job(job.job, entry_of(job)).ok());
  ASSERT_TRUE(driver_->set_member(job.job, 0, lab_->place_of(0)).ok());
  const uint64_t before = driver_->counters()->rounds.at(job.job);
  for (uint32_t round = 1; round <= 3; ++round) {
    lab_->send(0, w.contribution(0, {.round = round}, lanes32({1, 2})));
    ASSERT_EQ(lab_->take_replies(1), (std::vector<Reply>{{0, w.result({.round = round}, lanes32({1, 2}))}}));
  }
  EXPECT_EQ(driver_->counters()->rounds.at(job.job), before + 3);
  EXPECT_EQ(driver_->counters()->rounds.at(job.job + 1u), 0u);
  EXPECT_TRUE(driver_->remove_job(job.job).ok());
}

TEST_P(SwitchDriverTest, FramesLeaveByThePortThatIsAskedFor) {
  const p4::MemberEntry at = lab_->place_of(2);
  const Bytes datagram(100, 7);
  const Address own = lab_->own_address();
  const uint32_t own_ip =
      uint32_t{own.ip[0]} << 24 | uint32_t{own.ip[1]} << 16 | uint32_t{own.ip[2]} << 8 | own.ip[3];
  ASSERT_TRUE(driver_
                  ->send(at.port, p4::build_frame({.to_mac = at.mac,
                                                   .from_mac = 0x020000000001,
                                                   .from_ip = own_ip,
                                                   .to_ip = at.ip,
                                                   .from_port = NETSUM_P4_DATA_PORT,
                                                   .to_port = at.udp_port,
                                                   .datagram = datagram}))
                  .ok());
  // The model hands over what has left together with the next datagram.
  lab_->send(5, VectorWriter("", "").hello(0, 1));
  EXPECT_EQ(lab_->take_replies(1), (std::vector<Reply>{{2, datagram}}));
}

TEST_P(SwitchDriverTest, ASwitchThatRestartsIsEmpty) {
  const VectorWriter w("", "", {cookie_job()});
  ASSERT_TRUE(driver_->set_job(w.job().job, entry_of(w.job())).ok());
  ASSERT_TRUE(driver_->set_member(w.job().job, 0, lab_->place_of(0)).ok());
  lab_->restart();
  ASSERT_TRUE(wait_for([&] { return restarts() == 1; }));
  EXPECT_EQ(restarts_[0].code(), ErrorCode::kAggregatorLost);
  EXPECT_THAT(restarts_[0].message(), HasSubstr("restarted"));
  ASSERT_TRUE(wait_for([&] { return driver_->counters().ok(); }));
  EXPECT_EQ(count(NETSUM_P4_COUNT_HELLOS), 0u);
  expect_refused(0, w.hello(0, 1), NETSUM_DROP_UNKNOWN_JOB);
  EXPECT_TRUE(driver_->remove_job(w.job().job).ok());
  ASSERT_TRUE(driver_->set_job(w.job().job, entry_of(w.job())).ok());
  ASSERT_TRUE(driver_->set_member(w.job().job, 0, lab_->place_of(0)).ok());
  lab_->send(0, w.hello(0, 2));
  EXPECT_EQ(lab_->take_replies(1), (std::vector<Reply>{{0, w.welcome(0, 2)}}));
}

// --- The dataplane -----------------------------------------------------------------------------------------------------

class SwitchDataplaneTest : public SwitchTest {
 protected:
  void SetUp() override {
    SwitchTest::SetUp();
    if (driver_ == nullptr) return;
    dataplane_ = p4::make_p4_dataplane({.address = lab_->own_address(), .mac = kOwnMac}, std::move(driver_));
  }
  std::string result_of(const Vector& vector, Outcome* outcome) {
    const std::unique_ptr<DataplaneUnderTest> run = lab_->run(dataplane_.get());
    CookieRun cookies(run.get());
    const ReplayResult result = replay(vector, cookies);
    *outcome = result.outcome;
    return result.detail;
  }

  std::unique_ptr<Dataplane> dataplane_;
};

TEST_P(SwitchDataplaneTest, GoldenVectors) {
  int passed = 0;
  for (const Vector& vector : load_vectors()) {
    Outcome outcome = Outcome::kFailed;
    const std::string detail = result_of(vector, &outcome);
    EXPECT_NE(outcome, Outcome::kFailed) << vector.name << ": " << detail;
    passed += outcome == Outcome::kPassed;
  }
  EXPECT_GE(passed, 24);
}

TEST_P(SwitchDataplaneTest, RandomPacketsAsTheModel) {
  const bool model = GetParam() == "model";
  for (const uint64_t seed : seeds(model ? 20 : 2)) {
    SCOPED_TRACE("NETSUM_SEED=" + std::to_string(seed));
    P4Run reference;
    const Vector vector = record(seed, model ? 500 : 150, reference, seed % 2 == 0 ? 96 : 1024);
    Outcome outcome = Outcome::kFailed;
    const std::string detail = result_of(vector, &outcome);
    ASSERT_EQ(outcome, Outcome::kPassed) << detail;
  }
}

DataplaneJob job_of(uint16_t index, uint16_t members, uint32_t slots) {
  DataplaneJob job;
  job.job = index;
  job.epoch = 1;
  job.members = members;
  job.data_slots = slots;
  job.payload_bytes = 256;
  job.tag = NETSUM_TAG_COOKIE;
  return job;
}

TEST_P(SwitchDataplaneTest, MoreThanTheSwitchHoldsIsRefusedByName) {
  const auto refused = [&](const DataplaneJob& job, ErrorCode code, const char* words) {
    const Status status = dataplane_->install(job);
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  refused(job_of(NETSUM_P4_JOBS, 2, 8), ErrorCode::kInvalidArgument, "it holds 64 jobs");
  refused(job_of(1, 65, 8), ErrorCode::kInvalidArgument, "1 to 64 members, not 65");
  refused(job_of(1, 2, NETSUM_P4_SLOTS + 1), ErrorCode::kResourceExhausted, "1024");
  DataplaneJob large = job_of(1, 2, 8);
  large.payload_bytes = 1440;
  refused(large, ErrorCode::kInvalidArgument, "at most 1024 bytes, not 1440");
  DataplaneJob child = job_of(1, 2, 8);
  child.parent = DataplaneParent{.stripes = {*Address::parse("[fd00::1]:5152")}};
  refused(child, ErrorCode::kUnsupported, "by IPv4 alone, not at [fd00::1]:5152");
  DataplaneJob tagged = job_of(1, 2, 8);
  tagged.tag = NETSUM_TAG_KEYED;
  refused(tagged, ErrorCode::kUnsupported, "need verify 'sum'");
  EXPECT_EQ(dataplane_->free_slots(), static_cast<uint32_t>(NETSUM_P4_SLOTS));

  ASSERT_TRUE(dataplane_->install(job_of(1, 2, 1000)).ok());
  refused(job_of(2, 2, 100), ErrorCode::kResourceExhausted, "24 of 1024 are free");
  dataplane_->remove(1, 7);  // another epoch
  EXPECT_EQ(dataplane_->free_slots(), 24u);
  dataplane_->remove(1, 1);
  EXPECT_EQ(dataplane_->free_slots(), static_cast<uint32_t>(NETSUM_P4_SLOTS));
}

TEST_P(SwitchDataplaneTest, AForgedHelloAdmitsNobody) {
  const std::unique_ptr<DataplaneUnderTest> run = lab_->run(dataplane_.get());
  const VectorWriter w("", "", {cookie_job()});
  run->install(w.job());
  Bytes forged = w.hello(0, 1);
  forged[24] ^= 1;  // in the tag
  EXPECT_TRUE(run->feed(1, forged).empty());
  EXPECT_EQ(run->feed(0, w.hello(0, 2)), (std::vector<Reply>{{0, w.welcome(0, 2)}}));
  EXPECT_TRUE(run->feed(1, w.hello(0, 3)).empty());
}

TEST_P(SwitchDataplaneTest, ARestartIsReportedAndFreesTheSlots) {
  std::mutex mutex;
  std::vector<Status> lost;
  dataplane_->set_on_lost([&](const Status& reason) {
    const std::lock_guard lock(mutex);
    lost.push_back(reason);
  });
  ASSERT_TRUE(dataplane_->install(job_of(1, 2, 100)).ok());
  lab_->restart();
  EXPECT_TRUE(wait_for([&] {
    const std::lock_guard lock(mutex);
    return lost.size() == 1;
  }));
  dataplane_->set_on_lost({});
  EXPECT_EQ(dataplane_->free_slots(), static_cast<uint32_t>(NETSUM_P4_SLOTS));
  EXPECT_TRUE(wait_for([&] { return dataplane_->install(job_of(1, 2, 100)).ok(); }));
  dataplane_->remove(1, 1);
}

TEST(ArpFrame, IsReadAsItIsBuilt) {
  const p4::ArpFrame made{.is_reply = true,
                          .to_mac = kOwnMac,
                          .sender_mac = 0x020000000107,
                          .target_mac = kOwnMac,
                          .sender_ip = 0x0A000107,
                          .target_ip = 0x0A0000FE};
  Bytes bytes = p4::build_arp(made);
  const std::optional<p4::ArpFrame> read = p4::parse_arp(bytes);
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->is_reply);
  EXPECT_EQ(read->to_mac, made.to_mac);
  EXPECT_EQ(read->sender_mac, made.sender_mac);
  EXPECT_EQ(read->sender_ip, made.sender_ip);
  EXPECT_EQ(read->target_mac, made.target_mac);
  EXPECT_EQ(read->target_ip, made.target_ip);
  EXPECT_FALSE(p4::parse_frame(bytes));
  bytes[21] = 3;  // another operation
  EXPECT_FALSE(p4::parse_arp(bytes));
  bytes = p4::build_arp(made);
  bytes.pop_back();
  EXPECT_FALSE(p4::parse_arp(bytes));
}

std::string name_of(const testing::TestParamInfo<std::string>& info) {
  return info.param;
}
INSTANTIATE_TEST_SUITE_P(Switches, SwitchDriverTest, testing::Values("model", "bmv2"), name_of);
INSTANTIATE_TEST_SUITE_P(Switches, SwitchDataplaneTest, testing::Values("model", "bmv2"), name_of);

}  // namespace
}  // namespace netsum::conformance::p4_switch_test
