#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "src/control/client.h"

namespace netsum::query_status_test {
namespace {

constexpr int64_t kMs = 1000;

// A call whose answer was read at `read_us` of the remote clock.
void note(RemoteStatus* remote, int64_t read_us, int64_t begin_us, int64_t end_us) {
  remote->note_clock(static_cast<uint64_t>(read_us / kMs), begin_us, end_us);
}

TEST(QueryStatus, ClocksDifferByWhatAllCallsAllow) {
  constexpr int64_t kAhead = 7'300, kBegin = 1'800'000'000'000'000;
  RemoteStatus remote;
  // Of each call: how long the request took, then the answer. Waiting on one way alone does not shift the bounds.
  int64_t now = kBegin, narrow = INT64_MAX;
  for (const auto& [there, back] :
       {std::pair<int64_t, int64_t>{40 * kMs, 200}, {100, 43 * kMs}, {60 * kMs, 50 * kMs}, {700, 300}}) {
    note(&remote, now + there + kAhead, now, now + there + back);
    EXPECT_LE(remote.least_ahead_us, kAhead);
    EXPECT_GE(remote.most_ahead_us, kAhead);
    EXPECT_LE(remote.most_ahead_us - remote.least_ahead_us, std::min(narrow, there + back + kMs));
    narrow = remote.most_ahead_us - remote.least_ahead_us;
    now += 250'123;
  }
  EXPECT_LE(narrow, 2 * kMs);
}

TEST(QueryStatus, AClockThatWasSetBetweenCallsCountsByTheShortest) {
  RemoteStatus remote;
  note(&remote, 1'000'000, 1'000'000 - 300, 1'000'000 + 300);
  note(&remote, 9'000'000, 1'100'000 - 50 * kMs, 1'100'000 + 50 * kMs);
  EXPECT_LE(remote.least_ahead_us, 0);
  EXPECT_GE(remote.most_ahead_us, 0);
  note(&remote, 9'200'000, 1'300'000 - 100, 1'300'000 + 100);
  EXPECT_LE(remote.least_ahead_us, 7'900'000);
  EXPECT_GE(remote.most_ahead_us, 7'900'000);
  // This clock was set during a call: it says nothing.
  note(&remote, 9'300'000, 1'400'000, 1'300'000);
  EXPECT_EQ(remote.most_ahead_us, 7'901'000 + 100);
  // Times that no clock has.
  remote = {};
  remote.note_clock(UINT64_MAX, 1, 2);
  EXPECT_LE(remote.least_ahead_us, remote.most_ahead_us);
}

}  // namespace
}  // namespace netsum::query_status_test
