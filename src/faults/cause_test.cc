// Slow links, slow hosts and stragglers of a model of one job: what LinkWatch makes of what an aggregator and the ranks count.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "src/base/soak.h"
#include "src/faults/link_watch.h"

namespace netsum::faults::cause_test {
namespace {

constexpr size_t kRanks = 8;
constexpr int kChunks = 4096, kOperations = 2;
constexpr size_t kBurst = 88;

struct Rank {
  double host_us = 0.3;  // of its processor, for a packet that it receives and the one that it sends then
  double link_us = 1;    // for a packet, in each direction
  double begins_us = 0;  // later than the others
};

// Each rank keeps `window` chunks in flight: the result of one lets it send another. Its processor handles what waits in its socket
// by bursts; when nothing waits it looks again and again, every `look_us`, and finds nothing.
class Model {
 public:
  Model(std::array<Rank, kRanks> ranks, int window, uint64_t seed)
      : ranks_(ranks), window_(window), rng_(seed) {}

  LinkWatch run() {
    for (int operation = 0; operation < kOperations; ++operation) {
      sum();
      watch_.observe(totals_);
    }
    return watch_;
  }

 private:
  struct Event {
    double at_us = 0;
    int order = 0;
    enum class Kind { kArrives, kResult, kHostIsFree } kind = Kind::kArrives;
    size_t rank = 0;
    int chunk = 0;
    bool operator>(const Event& other) const {
      return at_us != other.at_us ? at_us > other.at_us : order > other.order;
    }
  };
  struct State {
    double up_free_us = 0, down_free_us = 0;
    double idle_since_us = 0;
    bool busy = false;
    int next = 0;
    std::deque<int> socket;
    std::vector<int> batch;
  };

  void add(double at_us, Event::Kind kind, size_t rank, int chunk) {
    events_.push({at_us, order_++, kind, rank, chunk});
  }
  double jitter() { return 0.2 * static_cast<double>(rng_.next() % 1000) / 1000; }

  void send(size_t rank, double now_us) {
    State& state = states_[rank];
    if (state.next == kChunks) return;
    state.up_free_us = std::max(state.up_free_us, now_us) + ranks_[rank].link_us;
    add(state.up_free_us + kDelayUs + jitter(), Event::Kind::kArrives, rank, state.next++);
  }

  void begin_batch(size_t rank, double now_us) {
    State& state = states_[rank];
    if (state.busy || state.socket.empty()) return;
    // Calls that found nothing.
    totals_[rank].receive_calls += static_cast<uint64_t>((now_us - state.idle_since_us) / kLookUs) + 1;
    state.busy = true;
    while (!state.socket.empty() && state.batch.size() < kBurst) {
      state.batch.push_back(state.socket.front());
      state.socket.pop_front();
    }
    totals_[rank].packets_received += state.batch.size();
    add(now_us + ranks_[rank].host_us * static_cast<double>(state.batch.size()), Event::Kind::kHostIsFree,
        rank, 0);
  }

  void sum() {
    states_.assign(kRanks, {});
    std::vector<size_t> contributed(kChunks, 0);
    std::vector<double> first_us(kChunks, 0);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      states_[rank].idle_since_us = ranks_[rank].begins_us;
      for (int i = 0; i < window_; ++i) send(rank, ranks_[rank].begins_us + i * ranks_[rank].host_us);
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      State& state = states_[event.rank];
      if (event.kind == Event::Kind::kResult) {
        state.socket.push_back(event.chunk);
        begin_batch(event.rank, event.at_us);
      } else if (event.kind == Event::Kind::kHostIsFree) {
        for (size_t i = 0; i < state.batch.size(); ++i) send(event.rank, event.at_us);
        state.batch.clear();
        state.busy = false;
        state.idle_since_us = event.at_us;
        begin_batch(event.rank, event.at_us);
      } else {
        const auto chunk = static_cast<size_t>(event.chunk);
        if (contributed[chunk]++ == 0) first_us[chunk] = event.at_us;
        totals_[event.rank].kept[0]++;
        if (event.chunk < window_) {
          totals_[event.rank].begin.add(chunk, static_cast<uint64_t>(event.at_us - first_us[chunk]));
        } else {
          totals_[event.rank].contributions++;
          totals_[event.rank].late_us += static_cast<uint64_t>(event.at_us - first_us[chunk]);
        }
        if (contributed[chunk] < kRanks) continue;
        for (size_t to = 0; to < kRanks; ++to) {
          State& other = states_[to];
          other.down_free_us = std::max(other.down_free_us, event.at_us) + ranks_[to].link_us;
          add(other.down_free_us + kDelayUs + jitter(), Event::Kind::kResult, to, event.chunk);
        }
      }
    }
  }

  static constexpr double kDelayUs = 10, kLookUs = 1;
  const std::array<Rank, kRanks> ranks_;
  const int window_;
  Rng rng_;
  std::array<MemberTotals, kRanks> totals_;
  std::vector<State> states_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int order_ = 0;
  LinkWatch watch_;
};

struct Case {
  std::array<Rank, kRanks> ranks;
  int window = 256;
  size_t at = 0;
  double times = 1;
};

Case random_case(Rng* rng) {
  Case one;
  one.at = rng->next() % kRanks;
  one.window = 128 << rng->next() % 3;
  one.times = 3 + static_cast<double>(rng->next() % 60) / 10;
  for (Rank& rank : one.ranks) rank.host_us = 0.2 + static_cast<double>(rng->next() % 20) / 100;
  return one;
}

std::string text_of(const Case& one, uint64_t seed) {
  return "seed " + std::to_string(seed) + ", rank " + std::to_string(one.at) + ", window " +
         std::to_string(one.window) + ", times " + std::to_string(one.times);
}

// The thresholds were chosen by the first 50.
const uint64_t kCases = soak() ? 150 : 6;

TEST(Cause, ASlowLinkIsNamedAndNotTheHost) {
  for (uint64_t seed = 1; seed <= kCases; ++seed) {
    Rng rng(seed);
    Case one = random_case(&rng);
    one.ranks[one.at].link_us *= one.times;
    const std::vector<Fault> found = Model(one.ranks, one.window, seed).run().faults();
    ASSERT_EQ(found.size(), 1u) << text_of(one, seed);
    EXPECT_EQ(found[0].member, one.at) << text_of(one, seed);
    EXPECT_EQ(found[0].kind, Kind::kSlowLink) << text_of(one, seed);
  }
}

TEST(Cause, ASlowHostIsNotCalledASlowLink) {
  uint64_t named = 0;
  for (uint64_t seed = 1; seed <= kCases; ++seed) {
    Rng rng(seed);
    Case one = random_case(&rng);
    one.ranks[one.at].host_us = one.times;  // of a packet that its link carries in 1 us
    const std::vector<Fault> found = Model(one.ranks, one.window, seed).run().faults();
    ASSERT_EQ(found.size(), 1u) << text_of(one, seed);
    EXPECT_EQ(found[0].member, one.at) << text_of(one, seed);
    EXPECT_NE(found[0].kind, Kind::kSlowLink) << text_of(one, seed);
    named += found[0].kind == Kind::kSlowHost ? 1 : 0;
  }
  EXPECT_EQ(named, kCases);
}

// It is late with the first window of each operation, and then keeps up.
TEST(Cause, AStragglerIsNoFault) {
  for (uint64_t seed = 1; seed <= kCases; ++seed) {
    Rng rng(seed);
    Case one = random_case(&rng);
    one.ranks[one.at].begins_us = 1000 * one.times;
    EXPECT_TRUE(Model(one.ranks, one.window, seed).run().faults().empty()) << text_of(one, seed);
  }
}

TEST(Cause, WithoutCountsOfAllItIsNotKnown) {
  EXPECT_EQ(cause_of(0, 3), Kind::kSlow);
  EXPECT_EQ(cause_of(30, 0), Kind::kSlow);
  EXPECT_EQ(cause_of(30, 3), Kind::kSlowHost);
  EXPECT_EQ(cause_of(1, 3), Kind::kSlowLink);
  EXPECT_EQ(cause_of(5, 3), Kind::kSlow);
}

}  // namespace
}  // namespace netsum::faults::cause_test
