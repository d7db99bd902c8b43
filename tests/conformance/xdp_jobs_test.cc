// Jobs of the XDP program under what is not in the vectors: traffic while they are removed and granted again,
// recorded packets that somebody sends again, and the limit of their rate.
#include <bpf/bpf.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "tests/conformance/frames.h"
#include "tests/conformance/vector_writer.h"
#include "tests/conformance/xdp_fixture.h"

static std::atomic<uint64_t> lookups{0};

// Counts the look-ups of single values, in place of libbpf's own.
extern "C" int bpf_map_lookup_elem(int fd, const void* key, void* value) {
  static const auto real =
      reinterpret_cast<decltype(&bpf_map_lookup_elem)>(dlsym(RTLD_NEXT, "bpf_map_lookup_elem"));
  ++lookups;
  return real(fd, key, value);
}

namespace netsum::conformance::xdp_jobs_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{60};

class XdpJobs : public XdpFixture {
 protected:
  static VectorJob job(uint16_t index, uint16_t epoch, uint16_t members = 2) {
    return {.job = index,
            .epoch = epoch,
            .key = {0xC0DE0000u | epoch, index},
            .members = members,
            .data_slots = 4,
            .scale_slots = 0,
            .payload_bytes = 1440};
  }
  static bool wait_for(const std::function<bool()>& condition) {
    const auto deadline = Clock::now() + kPatience;
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }
};

// --- Removal -----------------------------------------------------------------------------------------------

// Another thread runs the program without a pause on one frame, which can be changed under way.
class Traffic {
 public:
  explicit Traffic(XdpProgram* program) : program_(program), thread_([this] { loop(); }) {}
  ~Traffic() {
    stop_ = true;
    thread_.join();
  }
  void send(const Bytes* frame) { frame_ = frame; }

 private:
  void loop() {
    while (!stop_) {
      if (const Bytes* frame = frame_) XdpRun::run(program_, *frame, 200);
    }
  }
  XdpProgram* const program_;
  std::atomic<const Bytes*> frame_{nullptr};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A packet that is being looked at while its job is removed must not touch the slots of others: not those of
// the job that has slot 0, and not those of the next job under the index.
TEST_F(XdpJobs, ARemovedJobsPacketsTouchNoOtherJobsSlots) {
  constexpr int kTurns = 60;
  constexpr uint32_t kSlotsOfJob[] = {8, 16};
  const DataplaneJob bystander = dataplane_job(job(0, 1), address_of);
  ASSERT_TRUE(program_->install(bystander, 0).ok());
  std::vector<DataplaneJob> jobs;
  std::vector<Bytes> contributions;
  for (uint16_t epoch = 1; epoch <= kTurns; ++epoch) {
    const VectorWriter w("", "", std::vector<VectorJob>{job(1, epoch)});
    jobs.push_back(dataplane_job(w.job(), address_of));
    contributions.push_back(frame_around(w.contribution(0, {}, Bytes(1440, 0x11)), 0));
  }
  Traffic traffic(program_);
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto i = static_cast<size_t>(turn);
    const uint32_t first_slot = kSlotsOfJob[turn % 2];
    const uint64_t stale = program_->counter(NETSUM_DROP_STALE_EPOCH);
    ASSERT_TRUE(program_->install(jobs[i], first_slot).ok());
    // The packets of the job before are still under way: none of them is taken for one of this job.
    ASSERT_TRUE(turn == 0 || wait_for([&] { return program_->counter(NETSUM_DROP_STALE_EPOCH) > stale; }));
    EXPECT_EQ(program_->slots(first_slot, 1)[0].current, 0u) << "turn " << turn;

    const VectorWriter w("", "", std::vector<VectorJob>{job(1, jobs[i].epoch)});
    ASSERT_EQ(XdpRun::run(program_, frame_around(w.hello(0, 1), 0)).verdict, static_cast<uint32_t>(XDP_PASS));
    traffic.send(&contributions[i]);
    ASSERT_TRUE(wait_for([&] { return program_->slots(first_slot, 1)[0].current == 1; }));
    program_->remove(1);
    const netsum_slot untouched{};
    ASSERT_TRUE(program_->set_slot(first_slot, untouched).ok());
    const uint64_t unknown = program_->counter(NETSUM_DROP_UNKNOWN_JOB);
    ASSERT_TRUE(wait_for([&] { return program_->counter(NETSUM_DROP_UNKNOWN_JOB) > unknown; }));
    EXPECT_EQ(program_->slots(first_slot, 1)[0].current, 0u) << "turn " << turn << ": its own, once removed";
    ASSERT_EQ(program_->slots(0, 1)[0].current, 0u) << "turn " << turn << ": another job's slot";
  }
  program_->remove(0);
}

// --- Slots -------------------------------------------------------------------------------------------------

TEST_F(XdpJobs, APacketOfASlotThatStaysHeldIsDroppedAndCounted) {
  const VectorWriter w("", "", std::vector<VectorJob>{job(1, 1)});
  XdpRun dataplane(program_);
  const uint32_t slot = 0;
  dataplane.install(job(1, 1));
  dataplane.feed(0, w.hello(0, 1));
  const Bytes contribution = frame_around(w.contribution(0, {}, Bytes(64, 1)), 0);
  ASSERT_TRUE(program_->set_slot(slot, netsum_slot{}, /*held=*/true).ok());
  const uint64_t before = program_->counter(NETSUM_XDP_SLOT_HELD);
  EXPECT_EQ(XdpRun::run(program_, contribution).verdict, static_cast<uint32_t>(XDP_DROP));
  EXPECT_EQ(program_->counter(NETSUM_XDP_SLOT_HELD), before + 1);
  ASSERT_TRUE(program_->set_slot(slot, netsum_slot{}).ok());
  EXPECT_EQ(program_->slots(slot, 1)[0].current, 0u) << "the dropped packet changed nothing";
  XdpRun::run(program_, contribution);
  EXPECT_EQ(program_->counter(NETSUM_XDP_SLOT_HELD), before + 1);
  EXPECT_EQ(program_->slots(slot, 1)[0].current, 1u) << "what the member sends again is taken";
}

// A status report reads the slots of all jobs ten times a second.
TEST_F(XdpJobs, ManySlotsAreReadByFewSystemCalls) {
  constexpr uint32_t kFirst = 3, kCount = 1000, kHeld = 700;
  const auto state = [](uint32_t slot) {
    netsum_slot value{};
    value.current = static_cast<decltype(value.current)>(slot * 7 + 1);
    return value;
  };
  for (uint32_t slot = kFirst; slot < kFirst + kCount; ++slot)
    ASSERT_TRUE(program_->set_slot(slot, state(slot), slot == kHeld).ok());
  const uint64_t before = lookups;
  const std::vector<netsum_slot> slots = program_->slots(kFirst, kCount);
  EXPECT_LE(lookups - before, 300u) << "of the one that is held";
  ASSERT_EQ(slots.size(), kCount);
  for (uint32_t i = 0; i < kCount; ++i)
    EXPECT_EQ(slots[i].current, kFirst + i == kHeld ? 0 : state(kFirst + i).current) << i;
  for (uint32_t slot = 0; slot < kFirst + kCount; ++slot)
    ASSERT_TRUE(program_->set_slot(slot, netsum_slot{}).ok());
}

// Two threads contribute to one slot, as two CPUs do whose queues have packets of one round.
TEST_F(XdpJobs, ASlotAddsThePacketsOfSeveralCpusOneAfterTheOther) {
  constexpr uint16_t kMembers = 32;
  constexpr uint32_t kRounds = 300, kValue = 0x00010203;
  const VectorJob spec = job(1, 1, kMembers);
  const VectorWriter w("", "", std::vector<VectorJob>{spec});
  XdpRun dataplane(program_);
  dataplane.install(spec);
  Bytes lanes(1440);
  for (size_t i = 0; i < lanes.size(); i += 4) std::memcpy(&lanes[i], &kValue, 4);
  for (uint16_t m = 0; m < kMembers; ++m) dataplane.feed(m, w.hello(m, 1));
  for (uint32_t round = 1; round <= kRounds; ++round) {
    std::vector<Bytes> frames;
    for (uint16_t m = 0; m < kMembers; ++m)
      frames.push_back(frame_around(w.contribution(m, {.round = round}, lanes), m));
    std::atomic<int> ready{0}, results{0};
    std::atomic<bool> right{false};
    const uint64_t held_before = program_->counter(NETSUM_XDP_SLOT_HELD);
    const auto contribute = [&](size_t first, size_t step) {
      ready += 1;
      while (ready < 2) std::this_thread::yield();
      for (size_t m = first; m < kMembers; m += step) {
        const XdpRun::Output output = XdpRun::run(program_, frames[m]);
        if (output.verdict != XDP_REDIRECT) continue;
        results += 1;
        uint32_t sum = 0;
        bool all = output.frame.size() == frames[m].size();
        for (size_t i = output.frame.size() - lanes.size(); all && i < output.frame.size(); i += 4) {
          std::memcpy(&sum, &output.frame[i], 4);
          all = sum == kMembers * kValue;
        }
        right = all;
      }
    };
    std::thread other(contribute, 1, 2);
    contribute(0, 2);
    other.join();
    // Where a CPU stalls while it holds the slot, the other's packet is dropped, and sent again.
    if (results == 0 && program_->counter(NETSUM_XDP_SLOT_HELD) > held_before) contribute(0, 1);
    ASSERT_EQ(results, 1) << "round " << round;
    ASSERT_TRUE(right) << "round " << round;
  }
}

// --- Replays -----------------------------------------------------------------------------------------------

Bytes from_other_mac(Bytes frame) {
  frame[6 + 5] ^= 0x40;
  return frame;
}
Bytes to_other_mac(Bytes frame) {
  frame[5] ^= 0x40;
  return frame;
}
Mac receiver_of(const Bytes& frame) {
  Mac mac;
  std::copy(frame.begin(), frame.begin() + ETH_ALEN, mac.begin());
  return mac;
}
Mac sender_of(const Bytes& frame) {
  Mac mac;
  std::copy(frame.begin() + ETH_ALEN, frame.begin() + 2 * ETH_ALEN, mac.begin());
  return mac;
}

TEST_F(XdpJobs, AReplayedHelloDoesNotMoveTheMember) {
  VectorWriter w("", "", std::vector<VectorJob>{job(1, 1)});
  XdpRun dataplane(program_);
  dataplane.install(w.job());
  const Bytes hello = frame_around(w.hello(0, 1), 0);
  ASSERT_EQ(XdpRun::run(program_, hello).verdict, static_cast<uint32_t>(XDP_PASS));
  const uint64_t before = program_->counter(NETSUM_DROP_UNKNOWN_PEER);
  for (const Bytes& replayed : {from_other_mac(hello), to_other_mac(hello)}) {
    EXPECT_EQ(XdpRun::run(program_, replayed).verdict, static_cast<uint32_t>(XDP_DROP));
  }
  EXPECT_EQ(program_->counter(NETSUM_DROP_UNKNOWN_PEER), before + 2);
  EXPECT_EQ(XdpRun::run(program_, hello).verdict, static_cast<uint32_t>(XDP_PASS)) << "from where it was";
}

TEST_F(XdpJobs, AReplayedWelcomeDoesNotMoveTheParent) {
  VectorJob child = job(1, 1, 1);
  child.parent = VectorParent{.peer = 7, .job = 5, .epoch = 9, .key = {77, 78}, .member = 3};
  VectorWriter w("", "", std::vector<VectorJob>{child});
  const VectorJob at_parent{.job = 5,
                            .epoch = 9,
                            .key = {77, 78},
                            .members = 4,
                            .data_slots = 4,
                            .scale_slots = 0,
                            .payload_bytes = 1440};
  VectorWriter parent("", "", std::vector<VectorJob>{at_parent});
  XdpRun dataplane(program_);
  dataplane.install(child);
  ASSERT_EQ(dataplane.feed(0, w.hello(0, 1)).size(), 1u) << "goes up";
  const Bytes welcome = frame_around(parent.welcome(3, 1), 7);
  XdpRun::run(program_, welcome);
  XdpRun::run(program_, from_other_mac(welcome));
  XdpRun::run(program_, to_other_mac(welcome));
  ASSERT_EQ(dataplane.feed(0, w.hello(0, 2)).size(), 1u);
  const XdpRun::Output sum = XdpRun::run(program_, frame_around(w.contribution(0, {}, Bytes(1440, 0x11)), 0));
  ASSERT_EQ(sum.verdict, static_cast<uint32_t>(XDP_REDIRECT));
  EXPECT_EQ(receiver_of(sum.frame), sender_of(welcome));
  EXPECT_EQ(sender_of(sum.frame), receiver_of(welcome));
}

// A HELLO can reach the loader's socket by an interface without the program: nobody has checked it then.
TEST_F(XdpJobs, TheLoaderAnswersOnlyHellosThatAreRightAndWereNoted) {
  VectorWriter w("", "", std::vector<VectorJob>{job(1, 1), job(2, 1)});
  XdpRun dataplane(program_);
  dataplane.install(w.job());
  const DataplaneJob spec = dataplane_job(w.job(), address_of);
  const Bytes hello = w.hello(0, 1);
  std::vector<uint8_t> frame(2 * hello.size());
  const auto answered = [&](const Bytes& datagram, Peer from) {
    return program_->answer_hello(spec, datagram, address_of(from), frame.data()).size;
  };
  EXPECT_EQ(answered(hello, 0), 0u) << "the program has not seen it";
  ASSERT_EQ(dataplane.feed(0, hello).size(), 1u);
  EXPECT_EQ(answered(hello, 0), hello.size());

  EXPECT_EQ(answered(hello, 1), 0u) << "from elsewhere";
  EXPECT_EQ(answered(w.hello(1, 1), 0), 0u) << "another member's, which the program has not seen";
  for (size_t at = 4; at < hello.size(); ++at) {
    Bytes forged = hello;
    forged[at] ^= 1;
    EXPECT_EQ(answered(forged, 0), 0u) << "byte " << at << " altered";
  }
  for (const size_t size : {0u, 1u, 31u, 32u, 40u, 1464u}) {
    Bytes cut = hello;
    cut.resize(size);
    EXPECT_EQ(answered(cut, 0), 0u) << "cut to " << size << " bytes";
  }
  Bytes longer = hello;
  longer.resize(hello.size() + 32);
  EXPECT_EQ(answered(longer, 0), 0u) << "longer than the job's packets";
  EXPECT_EQ(answered(w.probe(0, {}), 0), 0u) << "no HELLO";
  w.speak_for(1);
  EXPECT_EQ(answered(w.hello(0, 1), 0), 0u) << "another job's";
}

// --- Rate --------------------------------------------------------------------------------------------------

// A job with so low a rate that nothing is earned while the test runs: 64 packets of each kind, and the one
// that is due.
class XdpRate : public XdpJobs {
 protected:
  static constexpr uint64_t kAllowed = 65;

  void SetUp() override {
    XdpJobs::SetUp();
    if (IsSkipped()) return;
    auto limited = XdpRun::load(1);
    ASSERT_TRUE(limited.ok()) << limited.status().to_string();
    limited_ = std::move(limited).value();
    dataplane_ = std::make_unique<XdpRun>(limited_.get());
  }
  void TearDown() override { dataplane_.reset(); }
  void say_hello(const VectorWriter& w) {
    for (uint16_t m = 0; m < w.job().members; ++m) {
      ASSERT_EQ(dataplane_->feed(m, w.hello(m, 1000u + m)).size(), 1u);
    }
  }
  void run(const Bytes& datagram, Peer from, int times) {
    for (int i = 0; i < times; ++i) XdpRun::run(limited_.get(), frame_around(datagram, from));
  }
  uint64_t counter(uint32_t index) const { return limited_->counter(index); }

  std::unique_ptr<XdpProgram> limited_;
  std::unique_ptr<XdpRun> dataplane_;
};

TEST_F(XdpRate, IsAJobsOwnAndForgedPacketsDoNotSpendIt) {
  std::vector<VectorWriter> jobs;
  for (uint16_t index = 0; index < 2; ++index) {
    jobs.emplace_back("", "", std::vector<VectorJob>{job(index, 1, 1)});
    dataplane_->install(jobs.back().job());
    say_hello(jobs.back());
  }
  // Tries so many times to have the next round summed, and returns how often that was done.
  const auto sum = [&](const VectorWriter& w, int tries) {
    const uint64_t before = counter(NETSUM_XDP_CONTRIBUTIONS);
    const auto summed = [&] { return counter(NETSUM_XDP_CONTRIBUTIONS) - before; };
    for (int i = 0; i < tries; ++i) {
      run(w.contribution(0, {.round = static_cast<uint32_t>(1 + summed())}, lanes32({1, 2})), 0, 1);
    }
    return summed();
  };
  VectorWriter forger = jobs[0];
  VectorJob guessed = jobs[0].job();
  guessed.key.k0 ^= 1;
  forger.pretend(guessed);
  EXPECT_EQ(sum(forger, 500), 0u);
  EXPECT_EQ(counter(NETSUM_DROP_BAD_CHECK), 500u);
  for (const VectorWriter& w : jobs) {
    const uint64_t before = counter(NETSUM_DROP_OVER_RATE);
    EXPECT_EQ(sum(w, 100), kAllowed);
    EXPECT_EQ(counter(NETSUM_DROP_OVER_RATE), before + 100 - kAllowed);
  }
}

// Somebody repeats one recorded packet, from its member's address unless said otherwise. Meanwhile the job has
// what it may have: contributions to their limit, and answers.
TEST_F(XdpRate, ReplayedPacketsTakeNothingFromTheJob) {
  constexpr int kReplays = 1000;
  VectorWriter w("", "", std::vector<VectorJob>{job(1, 1)});
  const Round held{.slot = 1}, over{.slot = 2, .round = 1};
  const Bytes lanes = lanes32({1, 2});
  struct Case {
    const char* what;
    Bytes packet;
    Peer from;
    uint32_t refused_as;
  };
  const std::vector<Case> cases = {
      {"a probe of a round in progress", w.probe(0, held), 0, NETSUM_DROP_OVER_RATE},
      {"a contribution that is in", w.contribution(0, held, lanes), 0, NETSUM_DROP_OVER_RATE},
      {"a contribution of a round that is over", w.contribution(0, over, lanes), 0, NETSUM_DROP_OVER_RATE},
      {"a hello", w.hello(0, 1000), 0, NETSUM_DROP_OVER_RATE},
      {"a probe, from elsewhere", w.probe(0, held), 5, NETSUM_DROP_UNKNOWN_PEER},
      {"a hello, from elsewhere", w.hello(0, 1000), 5, NETSUM_DROP_UNKNOWN_PEER},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    dataplane_ = std::make_unique<XdpRun>(limited_.get());
    dataplane_->install(w.job());
    say_hello(w);
    run(w.contribution(0, held, lanes), 0, 1);
    for (const uint32_t round : {1u, 2u}) {
      for (const uint16_t m : {0, 1}) run(w.contribution(m, {.slot = 2, .round = round}, lanes), m, 1);
    }
    const uint64_t refused = counter(c.refused_as);
    run(c.packet, c.from, kReplays);
    EXPECT_GT(counter(c.refused_as), refused + kReplays / 2);

    const uint64_t summed = counter(NETSUM_XDP_CONTRIBUTIONS), statuses = counter(NETSUM_XDP_STATUSES);
    for (uint32_t round = 1; round <= 30; ++round) {
      for (const uint16_t m : {0, 1}) run(w.contribution(m, {.round = round}, lanes), m, 1);
      run(w.probe(1, {.round = round}), 1, 1);
    }
    EXPECT_EQ(counter(NETSUM_XDP_CONTRIBUTIONS), summed + 60) << "all of its contributions";
    EXPECT_EQ(counter(NETSUM_XDP_STATUSES), statuses + 30) << "all of its answers";
  }
}

}  // namespace
}  // namespace netsum::conformance::xdp_jobs_test
