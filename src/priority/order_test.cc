// Ranks without a network: each has its order, and steps begin and end at random times.
#include "src/priority/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "src/base/soak.h"

namespace netsum::order_test {
namespace {

using Kind = PriorityOrder::Kind;
using Report = PriorityOrder::Report;
using Step = PriorityOrder::Step;

// A job whose ranks submit operations at different times, and some much later than others. A step ends in the network when
// all ranks have started it; packets that are lost delay it, so steps end in any order, and each rank learns of it later.
class Job {
 public:
  Job(Rng* rng, int ranks) : rng_(*rng), ranks_(static_cast<size_t>(ranks)) {
    for (Rank& rank : ranks_) rank.haste = rng_.chance(0.8) ? haste_ : haste_ / 4;
  }

  void run(size_t operations) {
    for (size_t i = 0; i < operations; ++i) {
      const uint64_t grain = 1 + rng_.below(200);
      operations_.push_back({.priority = static_cast<int32_t>(rng_.below(8)) - 4,
                             .elements = 1 + rng_.below(rng_.chance(0.3) ? most_ : 30'000),
                             .element_bytes = rng_.chance(0.8) ? 4u : 2u,
                             .grain = grain,
                             .least = rng_.chance(0.5) ? 16 * grain : 0});
      if (rng_.chance(0.1)) operations_.back().grain = operations_.back().elements;  // in one piece
    }
    begun_.assign(operations, 0);
    uint64_t idle = 0;
    while (!done()) {
      idle = act() ? 0 : idle + 1;
      ASSERT_LT(idle, 200'000u) << "no step can start: a deadlock";
      if (testing::Test::HasFailure()) return;
    }
    for (size_t i = 0; i < operations; ++i) EXPECT_EQ(begun_[i], operations_[i].elements) << i;
  }

 private:
  struct Rank {
    PriorityOrder order;
    double haste = 0;
    size_t added = 0;
    std::vector<Step> started;
    std::vector<size_t> untold;  // of these, those whose end it does not know
    size_t pieces = 0;           // elements of started pieces
  };
  // Since the operation is everywhere.
  struct Wait {
    std::set<uint64_t> passed;  // batches with less urgent pieces before its last one
    uint64_t last_batch = 0;    // in which its last piece must be
  };

  bool done() const {
    size_t elements = 0;
    for (const auto& operation : operations_) elements += operation.elements;
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return rank.added == operations_.size() && rank.pieces == elements && rank.untold.empty();
    });
  }

  bool act() {
    Rank& rank = ranks_[rng_.below(ranks_.size())];
    switch (rng_.below(4)) {
      case 0:
        if (rank.added == operations_.size() || !rng_.chance(rank.haste)) return false;
        rank.order.add(operations_[rank.added++]);
        note_everywhere();
        return true;
      case 1:
        return start(&rank);
      case 2:
        return transfer();
      default:
        return tell(&rank);
    }
  }

  bool start(Rank* rank) {
    const std::optional<Step> step = rank->order.next();
    if (!step) return false;
    const size_t index = rank->started.size();
    rank->started.push_back(*step);
    rank->untold.push_back(index);
    rank->pieces += step->count;
    if (index == sequence_.size()) {
      sequence_.push_back(*step);
      reports_.emplace_back();
      transferred_.push_back(false);
      if (step->kind == Kind::kPiece) note_piece(*step, rank->order.batch_bytes());
    }
    // The same sequence on all ranks.
    const Step& first = sequence_[index];
    EXPECT_EQ(first.kind, step->kind);
    EXPECT_EQ(first.signature, step->signature);
    EXPECT_EQ(first.operation, step->operation);
    EXPECT_EQ(first.begin, step->begin);
    EXPECT_EQ(first.count, step->count);
    reports_[index].push_back(step->report);
    return true;
  }

  bool transfer() {
    for (size_t i = first_; i < sequence_.size() && reports_[i].size() == ranks_.size(); ++i) {
      if (transferred_[i] || (i > first_ && rng_.chance(slowness_))) continue;
      transferred_[i] = true;
      while (first_ < sequence_.size() && transferred_[first_]) ++first_;
      return true;
    }
    return false;
  }

  bool tell(Rank* rank) {
    for (size_t i = 0; i < rank->untold.size(); ++i) {
      const size_t index = rank->untold[i];
      if (!transferred_[index] || rng_.chance(0.3)) continue;
      rank->untold.erase(rank->untold.begin() + static_cast<std::ptrdiff_t>(i));
      const Step& step = rank->started[index];
      step.kind == Kind::kPiece ? rank->order.ended(step) : rank->order.agreed(reports_[index]);
      return true;
    }
    return false;
  }

  void note_everywhere() {
    size_t everywhere = operations_.size();
    for (const Rank& rank : ranks_) everywhere = std::min(everywhere, rank.added);
    for (; waits_.size() < everywhere;) {
      const size_t operation = waits_.size();
      uint64_t left = 0, bytes = 0;
      for (size_t i = 0; i <= operation; ++i) {
        const uint64_t rest = operations_[i].elements - begun_[i];
        left += rest > 0 ? 1 : 0;
        bytes += rest * operations_[i].element_bytes;
      }
      const uint64_t batches = batch_bytes_.size();
      waits_.push_back({.passed = {}, .last_batch = batches + PriorityOrder::starvation_bound(left, bytes)});
      for (size_t i = first_; i < sequence_.size(); ++i)
        if (!transferred_[i]) note_passed(sequence_[i], operation);
    }
  }

  void note_passed(const Step& piece, size_t operation) {
    if (piece.kind != Kind::kPiece ||
        operations_[piece.operation].priority >= operations_[operation].priority)
      return;
    auto& passed = waits_[operation].passed;
    passed.insert(piece.batch);
    // While it waits for more urgent ones, the oldest operation has its turns.
    const uint64_t turns = (piece.batch - *passed.begin()) / PriorityOrder::kTurns;
    EXPECT_LE(passed.size(), PriorityOrder::kCreditBatches + turns)
        << "operation " << operation << " waits for less urgent ones";
  }

  void note_piece(const Step& piece, uint64_t most_bytes) {
    const PriorityOrder::Operation& operation = operations_[piece.operation];
    EXPECT_EQ(piece.begin, begun_[piece.operation]);
    EXPECT_EQ(piece.begin % operation.grain, 0u);
    EXPECT_TRUE(piece.count > operation.least || piece.count == operation.elements);
    // Before it has begun to the end, less urgent ones count.
    for (size_t i = 0; i < waits_.size(); ++i) {
      if (begun_[i] == operations_[i].elements) continue;
      note_passed(piece, i);
      EXPECT_LE(piece.batch, waits_[i].last_batch) << "operation " << i << " is starved";
    }
    begun_[piece.operation] += piece.count;
    EXPECT_EQ(piece.is_last, begun_[piece.operation] == operation.elements);
    batch_bytes_.resize(piece.batch + 1);
    uint64_t& bytes = batch_bytes_[piece.batch];
    const bool is_first = bytes == 0;
    bytes += piece.count * operation.element_bytes;
    const uint64_t rest = operation.least * operation.element_bytes;
    const uint64_t smallest = (2 * operation.least + operation.grain) * operation.element_bytes;
    EXPECT_LE(bytes, is_first ? std::max(most_bytes + rest, smallest) : most_bytes + rest);
  }

  Rng& rng_;
  const uint64_t most_ = rng_.chance(0.01) ? 20'000'000 : 1'000'000;
  const double haste_ = rng_.chance(0.5) ? 0.3 : 0.04;
  const double slowness_ = rng_.chance(0.5) ? 0.97 : 0.1;
  std::vector<Rank> ranks_;
  std::vector<PriorityOrder::Operation> operations_;
  std::vector<uint64_t> begun_;  // by operation: elements
  std::vector<Step> sequence_;
  std::vector<std::vector<Report>> reports_;
  std::vector<bool> transferred_;
  size_t first_ = 0;         // that is not transferred
  std::vector<Wait> waits_;  // by operation that is everywhere
  std::vector<uint64_t> batch_bytes_;
};

TEST(PriorityOrder, RandomSchedulesHaveOneOrderAndNoInversionAboveTheCredit) {
  const char* const chosen = std::getenv("NETSUM_SIM_SEED");
  const uint64_t seed = chosen != nullptr ? std::stoull(chosen) : std::random_device{}();
  SCOPED_TRACE("NETSUM_SIM_SEED=" + std::to_string(seed));
  Rng seeds(seed);
  const uint64_t schedules = soak() ? 1'000'000 : 1'000;
  for (uint64_t i = 0; i < schedules; ++i) {
    Rng rng(seeds.next());
    Job job(&rng, 1 + static_cast<int>(rng.below(4)));
    job.run(1 + rng.below(12));
    ASSERT_FALSE(testing::Test::HasFailure()) << "schedule " << i;
  }
}

// One rank, whose steps end at once.
void finish(PriorityOrder* order, std::vector<Step>* pieces, size_t most) {
  while (pieces->size() < most) {
    const auto step = order->next();
    if (!step) return;
    if (step->kind == Kind::kAgreement) {
      order->agreed({&step->report, 1});
    } else {
      pieces->push_back(*step);
      order->ended(*step);
    }
  }
}

TEST(PriorityOrder, TheMoreUrgentOvertakesAndTheOldestIsNotStarved) {
  PriorityOrder order;
  constexpr uint64_t kMiB = 1 << 20;
  order.add({.priority = 0, .elements = 8 * kMiB});
  std::vector<Step> pieces;
  finish(&order, &pieces, 1);
  ASSERT_EQ(pieces.size(), 1u);
  order.add({.priority = 1, .elements = 1000 * kMiB});
  finish(&order, &pieces, 400);
  size_t oldest = 0, since = 0;
  for (size_t i = 1; i < pieces.size() && oldest < 8 * kMiB - pieces[0].count; ++i) {
    since = pieces[i].operation == 0 ? 0 : since + 1;
    EXPECT_LE(since, 2 * PriorityOrder::kTurns);
    if (pieces[i].operation == 0) oldest += pieces[i].count;
  }
  EXPECT_EQ(oldest, 8 * kMiB - pieces[0].count);
  const auto urgent =
      std::count_if(pieces.begin(), pieces.end(), [](const Step& s) { return s.operation == 1; });
  EXPECT_GT(urgent, static_cast<long>(pieces.size()) * 3 / 4);
}

// More urgent operations come without end: the bound holds all the same.
TEST(PriorityOrder, ManyUrgentOperationsDoNotStarveOldOnes) {
  constexpr uint64_t kOld = 10, kBytes = 100'000;
  PriorityOrder order;
  for (uint64_t i = 0; i < kOld; ++i) order.add({.priority = 0, .elements = kBytes});
  const uint64_t most = PriorityOrder::starvation_bound(kOld, kOld * kBytes);
  uint64_t old_ones = 0, last_batch = 0;
  while (old_ones < kOld && last_batch <= most) {
    for (int i = 0; i < 64; ++i) order.add({.priority = 1, .elements = kBytes});
    const auto step = order.next();
    ASSERT_TRUE(step.has_value());
    if (step->kind == Kind::kAgreement) {
      order.agreed({&step->report, 1});
      continue;
    }
    order.ended(*step);
    last_batch = step->batch;
    old_ones += step->operation < kOld ? 1 : 0;
  }
  EXPECT_EQ(old_ones, kOld);
  EXPECT_LE(last_batch, most);
  EXPECT_GE(last_batch, PriorityOrder::kTurns * (kOld - 1));  // others were before them
}

TEST(PriorityOrder, TwoBatchesAreInFlight) {
  PriorityOrder order;
  order.add({.elements = uint64_t{1} << 34});
  std::vector<Step> running;
  for (int round = 0; round < 20; ++round) {
    while (const auto step = order.next())
      step->kind == Kind::kAgreement ? order.agreed({&step->report, 1}) : running.push_back(*step);
    ASSERT_EQ(running.size(), 2u);
    EXPECT_EQ(running[0].batch + 1, running[1].batch);
    order.ended(running.front());
    running.erase(running.begin());
  }
}

TEST(PriorityOrder, RanksThatDifferInPrioritiesDifferInSignatures) {
  std::vector<Step> pieces[2];
  for (int rank : {0, 1}) {
    PriorityOrder order;
    order.add({.priority = rank, .elements = 100});
    finish(&order, &pieces[rank], 1);
  }
  ASSERT_EQ(pieces[0].size(), 1u);
  ASSERT_EQ(pieces[1].size(), 1u);
  EXPECT_NE(pieces[0][0].signature, pieces[1][0].signature);
}

// Reports come from other processes.
TEST(PriorityOrder, ReportsThatNoRankCanSendStopNothing) {
  PriorityOrder order;
  order.add({.elements = 10});
  ASSERT_TRUE(order.next().has_value());
  order.agreed(std::vector<Report>{{.submitted = 1}, {.submitted = 0}});
  ASSERT_TRUE(order.next().has_value());
  order.agreed(std::vector<Report>{{.submitted = 1}, {.submitted = UINT64_MAX, .was_idle = 7}});
  const auto step = order.next();
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->count, 10u);
}

TEST(PriorityOrder, BatchesGrowWhileTheNetworkIsIdleAndShrinkAgain) {
  PriorityOrder order;
  order.add({.elements = uint64_t{1} << 34});
  std::vector<Step> pieces;
  finish(&order, &pieces, 10);  // each agreement ends when nothing is in flight
  EXPECT_EQ(order.batch_bytes(), PriorityOrder::kMostBatch);
  std::vector<Step> running;
  for (int i = 0; i < 2000 && order.batch_bytes() > PriorityOrder::kLeastBatch; ++i) {
    const auto step = order.next();
    if (!step) {
      order.ended(running.front());
      running.erase(running.begin());
    } else if (step->kind == Kind::kAgreement) {
      order.agreed({&step->report, 1});
    } else {
      running.push_back(*step);
    }
  }
  EXPECT_EQ(order.batch_bytes(), PriorityOrder::kLeastBatch);
}

}  // namespace
}  // namespace netsum::order_test
