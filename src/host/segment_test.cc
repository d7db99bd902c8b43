// Sharing between real processes: forked before any thread exists.
#include "src/host/segment.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "src/host/meeting.h"

namespace netsum::segment_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

SegmentOptions options_of(const std::string& name, size_t local, size_t ranks, milliseconds limit) {
  SegmentOptions options;
  options.name = "netsum-segment-test-" + std::to_string(getpid()) + "-" + name;
  options.local = local;
  options.ranks = ranks;
  options.deadline = Clock::now() + limit;
  return options;
}

TEST(Segment, ProcessesSeeEachOthersBytesAndRingEachOther) {
  const SegmentOptions first = options_of("bytes", 0, 2, seconds(30));
  SegmentOptions second = first;
  second.local = 1;
  const pid_t child = fork();
  if (child == 0) {
    auto segment = Segment::open(second);
    if (!segment.ok()) _exit(1);
    (*segment)->input(2, 1)[7] = 42;
    (*segment)->staged(2).arrive(2);
    (*segment)->event(0).notify(FutexEvent::kStaged);
    _exit(0);
  }
  auto segment = Segment::open(first);
  ASSERT_TRUE(segment.ok()) << segment.status().to_string();
  while (!(*segment)->staged(2).complete(0, 1)) {
    const uint32_t seen = (*segment)->event(0).notifications();
    if ((*segment)->staged(2).complete(0, 1)) break;
    (*segment)->event(0).wait(seen, FutexEvent::kStaged, 30'000'000);
  }
  EXPECT_EQ((*segment)->input(2, 1)[7], 42);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Segment, MissingRanksEndTheWaitOnBothSides) {
  const auto alone = Segment::open(options_of("none", 0, 2, milliseconds(100)));
  EXPECT_EQ(alone.status().code(), ErrorCode::kTimeout) << alone.status().to_string();
  const auto nobody = Segment::open(options_of("none", 1, 2, milliseconds(100)));
  EXPECT_EQ(nobody.status().code(), ErrorCode::kTimeout) << nobody.status().to_string();
}

TEST(Segment, NewsOfAFailureEndsTheWait) {
  for (const size_t local : {size_t{0}, size_t{1}}) {
    SegmentOptions options = options_of("progress", local, 2, seconds(30));
    options.interrupted = [] { return Status(ErrorCode::kPeerLost, "rank 1 died", 1); };
    EXPECT_EQ(Segment::open(options).status().code(), ErrorCode::kPeerLost);
  }
}

TEST(Segment, MemoryOfAnotherLayoutIsRefused) {
  const SegmentOptions two = options_of("layout", 0, 2, seconds(30));
  SegmentOptions three = two;
  three.local = 1;
  three.ranks = 3;
  std::thread first([&] { EXPECT_TRUE(Segment::open(two).ok()); });
  EXPECT_EQ(Segment::open(three).status().code(), ErrorCode::kVersionMismatch);
  first.join();
}

TEST(Segment, HasRoomForAsManyRanksAsAJobCanHave) {
  SegmentOptions options = options_of("many", 0, kMaxRanks, seconds(60));
  options.host_block_bytes = 4096;
  const auto last_byte = [](Segment& segment, size_t rank) -> uint8_t& {
    return segment.input(Segment::kSlots - 1, rank)[4095];
  };
  // Every rank fetches the memory. Few map it, which takes time, and write for those that follow.
  constexpr size_t kEach = 64;
  std::vector<std::thread> others;
  for (size_t rank = 1; rank < kMaxRanks; rank += kEach) {
    others.emplace_back([&, rank] {
      SegmentOptions mine = options;
      mine.local = rank;
      const auto segment = Segment::open(mine);
      ASSERT_TRUE(segment.ok()) << segment.status().to_string();
      for (size_t one = rank; one < std::min<size_t>(rank + kEach, kMaxRanks); ++one) {
        if (one != rank) EXPECT_TRUE(receive({options.name, options.deadline, options.interrupted}).ok());
        last_byte(**segment, one) = static_cast<uint8_t>(one);
        (*segment)->note(0, one).signature = static_cast<uint32_t>(one);
        (*segment)->progress(one).staged = one;
        (*segment)->event(one).notify(FutexEvent::kStaged);
      }
    });
  }
  const auto segment = Segment::open(options);
  for (std::thread& other : others) other.join();
  ASSERT_TRUE(segment.ok()) << segment.status().to_string();
  for (size_t rank = 1; rank < kMaxRanks; ++rank) {
    ASSERT_EQ(last_byte(**segment, rank), static_cast<uint8_t>(rank));
    ASSERT_EQ((*segment)->note(0, rank).signature, rank);
    ASSERT_EQ((*segment)->progress(rank).staged, rank);
    ASSERT_EQ((*segment)->event(rank).notifications(), 1u);
  }
}

// A thread that sleeps by a event, until it has woken.
class Sleeper {
 public:
  Sleeper(FutexEvent& event, uint32_t seen, uint32_t causes)
      : thread_([this, &event, seen, causes] {
          id_ = static_cast<pid_t>(syscall(SYS_gettid));
          const auto began = std::chrono::steady_clock::now();
          event.wait(seen, causes, std::chrono::microseconds(kHang).count());
          in_time_ = std::chrono::steady_clock::now() - began < kHang;
          awake_ = true;
        }) {}
  ~Sleeper() {
    if (thread_.joinable()) thread_.join();
  }
  // Waits until the kernel says that the thread sleeps; it does so nowhere else than by the event.
  void wait_until_asleep() const {
    while (!awake_) {
      std::ifstream file("/proc/self/task/" + std::to_string(id_.load()) + "/stat");
      std::string stat;
      std::getline(file, stat);
      const size_t name_end = stat.rfind(')');
      if (id_ != 0 && name_end != std::string::npos && stat.substr(name_end, 3) == ") S") return;
      std::this_thread::yield();
    }
  }
  bool awake() const { return awake_; }
  bool woken() {
    thread_.join();
    return in_time_;
  }

 private:
  static constexpr seconds kHang{20};

  std::atomic<pid_t> id_{0};
  std::atomic<bool> awake_{false}, in_time_{false};
  std::thread thread_;
};

TEST(FutexEvent, ASleeperWakesForEachOfItsCauses) {
  FutexEvent event;
  for (const uint32_t cause :
       {FutexEvent::kStaged, FutexEvent::kReduced, FutexEvent::kTaken, FutexEvent::kAnything}) {
    Sleeper sleeper(event, event.notifications(),
                    FutexEvent::kStaged | FutexEvent::kReduced | FutexEvent::kTaken);
    sleeper.wait_until_asleep();
    EXPECT_FALSE(sleeper.awake());
    event.notify(cause);
    EXPECT_TRUE(sleeper.woken()) << cause;
  }
}

TEST(FutexEvent, ASleeperDoesNotWakeForOtherCauses) {
  FutexEvent event;
  Sleeper sleeper(event, event.notifications(), FutexEvent::kTaken);
  sleeper.wait_until_asleep();
  event.notify(FutexEvent::kStaged);
  event.notify(FutexEvent::kReduced);
  sleeper.wait_until_asleep();  // at once, as a thread that was woken counts as running from then on
  EXPECT_FALSE(sleeper.awake());
  event.notify(FutexEvent::kTaken);
  EXPECT_TRUE(sleeper.woken());
}

TEST(FutexEvent, WhatRangBeforeTheSleepIsNotMissed) {
  FutexEvent event;
  const uint32_t before = event.notifications();
  event.notify(FutexEvent::kTaken);
  EXPECT_NE(event.notifications(), before);
  Sleeper sleeper(event, before, FutexEvent::kTaken);
  EXPECT_TRUE(sleeper.woken());
}

TEST(Barrier, CountsRounds) {
  Barrier barrier;
  for (uint64_t round = 0; round < 10; ++round) {
    EXPECT_FALSE(barrier.complete(round, 3));
    EXPECT_FALSE(barrier.arrive(3));
    EXPECT_FALSE(barrier.arrive(3));
    EXPECT_FALSE(barrier.complete(round, 3));
    EXPECT_TRUE(barrier.arrive(3));
    EXPECT_TRUE(barrier.complete(round, 3));
  }
}

}  // namespace
}  // namespace netsum::segment_test
