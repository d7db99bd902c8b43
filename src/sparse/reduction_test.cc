// Whole jobs without a network: ranks whose sub-operations are combined here, and end in any order and at any time.
#include "src/sparse/reduction.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "src/base/soak.h"

namespace netsum::sparse::reduction_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Issued {
  SubOperation operation;
  std::vector<uint8_t> input;
};

size_t bytes_of(const SubOperation& operation) {
  return operation.view.count * size_of(operation.type);
}

template <typename T, typename Combine>
void combine(const std::vector<uint8_t>& in, std::vector<uint8_t>* acc, const Combine& both) {
  for (size_t i = 0; i < acc->size(); i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, &(*acc)[i], sizeof a);
    std::memcpy(&b, &in[i], sizeof b);
    a = both(a, b);
    std::memcpy(&(*acc)[i], &a, sizeof a);
  }
}

template <typename T>
void combine_all(ReduceOp op, const std::vector<uint8_t>& in, std::vector<uint8_t>* acc) {
  combine<T>(in, acc,
             [op](T a, T b) { return op == ReduceOp::kMax ? std::max(a, b) : static_cast<T>(a + b); });
}

class Job {
 public:
  explicit Job(Rng* rng) : rng_(rng) {}

  // Damages the combined result of a sub-operation.
  std::function<void(const SubOperation&, std::vector<uint8_t>*)> damage;
  // Ranks cannot combine bits, and learn it from the refusal of the first index.
  bool refuse_bits = false;

  // Runs one reduction per rank to its end. Returns the sub-operations of rank 0.
  std::vector<SubOperation> run(std::deque<Reduction>* ranks) {
    std::vector<std::vector<Issued>> issued(ranks->size());
    std::vector<std::vector<uint8_t>> results;
    std::vector<std::vector<bool>> ended(ranks->size());
    for (uint64_t idle = 0; idle < 10'000 * ranks->size();) {
      const size_t r = rng_->below(ranks->size());
      Reduction& rank = (*ranks)[r];
      if (rank.done()) {
        ++idle;
        if (std::all_of(ranks->begin(), ranks->end(), [](const Reduction& one) { return one.done(); })) break;
        continue;
      }
      while (const SubOperation* next = rank.next()) {
        EXPECT_EQ(next->number, issued[r].size());
        const auto* input = static_cast<const uint8_t*>(next->view.input);
        issued[r].push_back({*next, {input, input + bytes_of(*next)}});
        ended[r].push_back(false);
        idle = 0;
      }
      for (size_t n = 0; n < issued[r].size(); ++n) {
        if (ended[r][n] || rng_->chance(0.4)) continue;
        while (n >= results.size() && combine_next(issued, &results)) continue;
        if (n >= results.size()) break;
        end(&rank, issued[r][n], results[n]);
        ended[r][n] = true;
        idle = 0;
        break;
      }
      ++idle;
    }
    std::vector<SubOperation> operations;
    for (const Reduction& rank : *ranks) EXPECT_TRUE(rank.done()) << "a rank waits for ever";
    for (const Issued& one : issued[0]) operations.push_back(one.operation);
    for (const auto& one : issued) EXPECT_EQ(one.size(), issued[0].size());
    return operations;
  }

 private:
  bool combine_next(const std::vector<std::vector<Issued>>& issued,
                    std::vector<std::vector<uint8_t>>* results) {
    const size_t n = results->size();
    for (const auto& rank : issued)
      if (rank.size() <= n) return false;
    const SubOperation& first = issued[0][n].operation;
    std::vector<uint8_t> result = issued[0][n].input;
    for (size_t r = 1; r < issued.size(); ++r) {
      const SubOperation& other = issued[r][n].operation;
      EXPECT_EQ(other.parameter, first.parameter);
      EXPECT_EQ(other.type, first.type);
      EXPECT_EQ(other.op, first.op);
      EXPECT_EQ(other.view.count, first.view.count);
      if (other.view.count != first.view.count) return false;
      add(first, issued[r][n].input, &result);
    }
    if (damage) damage(first, &result);
    results->push_back(result);
    return true;
  }

  static void add(const SubOperation& operation, const std::vector<uint8_t>& in, std::vector<uint8_t>* acc) {
    if (operation.op == ReduceOp::kBitOr)
      return combine<uint64_t>(in, acc, [](uint64_t a, uint64_t b) { return a | b; });
    if (operation.type == DataType::kFloat32) return combine_all<float>(operation.op, in, acc);
    if (operation.type == DataType::kInt32) return combine_all<int32_t>(operation.op, in, acc);
    combine_all<int64_t>(operation.op, in, acc);
  }

  void end(Reduction* rank, const Issued& issued, const std::vector<uint8_t>& result) {
    const SubOperation& operation = issued.operation;
    EXPECT_EQ(std::memcmp(operation.view.input, issued.input.data(), issued.input.size()), 0)
        << "the input has changed while the operation was in progress";
    if (refuse_bits && operation.op == ReduceOp::kBitOr) {
      EXPECT_TRUE(rank->use_sums());
      return;
    }
    std::memcpy(operation.view.output, result.data(), result.size());
    rank->ended(operation.number);
  }

  Rng* const rng_;
};

// --- Dense tensors

struct DenseRank {
  std::vector<float> in, out;
  bool in_place = false;
  const float* result() const { return in_place ? in.data() : out.data(); }
};

// All ranks of all reductions use each other's memory.
std::vector<Reduction::Part> spare_parts;

std::deque<Reduction> dense_reductions(std::vector<DenseRank>* ranks, const Settings& common, size_t unit,
                                       std::vector<Profile>* profiles) {
  std::deque<Reduction> reductions;
  for (size_t r = 0; r < ranks->size(); ++r) {
    DenseRank& rank = (*ranks)[r];
    rank.out.assign(rank.in.size(), 77);
    const TensorView view{rank.in.data(), rank.in_place ? rank.in.data() : rank.out.data(), rank.in.size()};
    Settings settings = common;
    settings.rank = static_cast<int>(r);
    settings.ranks = static_cast<int>(ranks->size());
    reductions.emplace_back(make_dense_tensor(view, DataType::kFloat32, unit), settings, &(*profiles)[r],
                            &spare_parts);
  }
  return reductions;
}

// Runs a reduction and compares with sums element by element.
std::vector<SubOperation> check_dense(Job* job, std::vector<DenseRank>* ranks, const Settings& settings,
                                      size_t unit, std::vector<Profile>* profiles,
                                      SparseStats* stats = nullptr) {
  std::vector<float> expected(ranks->front().in.size(), 0);
  for (const DenseRank& rank : *ranks)
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] = settings.op == ReduceOp::kMax && &rank != &ranks->front()
                        ? std::max(expected[i], rank.in[i])
                        : expected[i] + rank.in[i];
  auto reductions = dense_reductions(ranks, settings, unit, profiles);
  const auto operations = job->run(&reductions);
  for (size_t r = 0; r < ranks->size(); ++r) {
    EXPECT_TRUE(reductions[r].status().ok()) << reductions[r].status().to_string();
    const float* result = (*ranks)[r].result();
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::bit_cast<uint32_t>(result[i]) == std::bit_cast<uint32_t>(expected[i])) continue;
      ADD_FAILURE() << "rank " << r << ", element " << i << ": " << result[i] << ", not " << expected[i];
      return operations;
    }
  }
  if (stats != nullptr) *stats = reductions[0].stats();
  return operations;
}

std::vector<DenseRank> random_ranks(Rng* rng, size_t ranks, size_t elements, double density, double overlap) {
  std::vector<DenseRank> made(ranks);
  for (DenseRank& rank : made) {
    rank.in.assign(elements, 0);
    rank.in_place = rng->chance(0.5);
  }
  const bool blocks = rng->chance(0.3);
  for (size_t i = 0; i < elements; ++i) {
    const bool common = rng->chance(density * overlap);
    for (DenseRank& rank : made) {
      if (!common && !rng->chance(density * (1 - overlap))) continue;
      const size_t n = blocks ? std::min<size_t>(100, elements - i) : 1;
      for (size_t j = i; j < i + n; ++j) rank.in[j] = static_cast<float>(1 + rng->below(1000));
    }
    if (blocks) i += 200;
  }
  return made;
}

TEST(ReductionTest, DenseTensorsOfAnyKind) {
  for (uint64_t seed = 1; seed <= (soak() ? 10'000 : 60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Job job(&rng);
    const size_t ranks = 1 + rng.below(6);
    const size_t elements = rng.chance(0.1) ? rng.below(3) : 1 + rng.below(40'000);
    const size_t unit = rng.chance(0.5) ? 1 : 1 + rng.below(300);
    Settings settings;
    settings.mode = static_cast<SparseMode>(rng.below(3));
    settings.op = rng.chance(0.2) ? ReduceOp::kMax : ReduceOp::kSum;
    settings.combines_bits = rng.chance(0.5);
    job.refuse_bits = rng.chance(0.3);
    settings.segment_bytes = static_cast<double>(1'000 + rng.below(50'000));
    std::vector<Profile> profiles(ranks);
    for (int operation = 0; operation < 4; ++operation) {
      const double density = rng.chance(0.2) ? rng.unit() : std::pow(10, -4 * rng.unit());
      auto made = random_ranks(&rng, ranks, elements, rng.chance(0.1) ? 0 : density, rng.unit());
      check_dense(&job, &made, settings, unit, &profiles);
      if (HasFailure()) return;
    }
  }
}

TEST(ReductionTest, SpecialNumbersAreNotZero) {
  Rng rng(1);
  Job job(&rng);
  const float denormal = std::numeric_limits<float>::denorm_min();
  std::vector<DenseRank> ranks(2);
  for (DenseRank& rank : ranks) rank.in_place = true;
  ranks[0].in = {INFINITY, -0.0f, denormal, 0, -INFINITY, NAN, -0.0f};
  ranks[1].in = {1, -0.0f, 0, 0, INFINITY, 0, 0};
  std::vector<Profile> profiles(2);
  auto reductions = dense_reductions(&ranks, {.mode = SparseMode::kOn}, 1, &profiles);
  const auto operations = job.run(&reductions);
  EXPECT_EQ(operations.back().kind, Kind::kValues);
  EXPECT_EQ(operations.back().view.count, 4u);
  for (const DenseRank& rank : ranks) {
    EXPECT_EQ(rank.in[0], INFINITY);
    EXPECT_EQ(rank.in[2], denormal);
    EXPECT_TRUE(std::isnan(rank.in[4]));
    EXPECT_TRUE(std::isnan(rank.in[5]));
    for (const size_t i : {1, 3, 6}) EXPECT_EQ(std::bit_cast<uint32_t>(rank.in[i]), 0u) << i;
  }
}

TEST(ReductionTest, AutoLeavesDenseTensorsAloneAndComesBack) {
  Rng rng(5);
  Job job(&rng);
  std::vector<Profile> profiles(2);
  const Settings settings{.mode = SparseMode::kAuto};
  constexpr size_t kElements = 40'000;
  const auto run = [&](double density) {
    std::vector<DenseRank> ranks(2);
    for (DenseRank& rank : ranks) {
      rank.in.assign(kElements, 0);
      for (float& x : rank.in)
        if (rng.chance(density)) x = 1;
    }
    return check_dense(&job, &ranks, settings, 1, &profiles);
  };
  const auto count = [](const std::vector<SubOperation>& operations, Kind kind) {
    return std::count_if(operations.begin(), operations.end(),
                         [kind](const SubOperation& operation) { return operation.kind == kind; });
  };
  auto operations = run(1);
  EXPECT_EQ(operations.size(), 2u) << "a count, and the whole";
  EXPECT_EQ(count(operations, Kind::kDense), 1);
  EXPECT_EQ(run(1).size(), 1u) << "it is not counted each time";
  int counted = 0;
  for (int i = 0; i < 32; ++i) counted += static_cast<int>(count(run(1), Kind::kCount));
  EXPECT_EQ(counted, 2);
  profiles.assign(2, {});
  operations = run(0.9);  // might have been the same places on both ranks, so it is tried
  EXPECT_EQ(count(operations, Kind::kDense), 0);
  int dense = 0;
  for (int i = 0; i < 50; ++i) {
    operations = run(0.9);
    EXPECT_LE(operations.size(), 2u);
    dense += static_cast<int>(count(operations, Kind::kDense));
  }
  EXPECT_EQ(dense, 50);
  // Once it is sparse, the next count finds it out.
  int sparse = 0;
  for (int i = 0; i < 40; ++i) sparse += count(run(0.01), Kind::kIndex) > 0 ? 1 : 0;
  EXPECT_GE(sparse, 20);
  operations = run(0.01);
  EXPECT_EQ(count(operations, Kind::kCount), 0) << "what is known is not counted";
  EXPECT_GT(count(operations, Kind::kValues), 0);
  // Small tensors travel whole.
  std::vector<DenseRank> small(2);
  for (DenseRank& rank : small) rank.in.assign(1'000, 0);
  EXPECT_THAT(check_dense(&job, &small, settings, 1, &profiles), testing::SizeIs(1));
}

// The byte model of docs/sparse.md: values of the union, and an index of so many bits for each of its elements.
TEST(ReductionTest, BytesAreThoseOfTheModel) {
  constexpr size_t kElements = 4'000'000;
  const struct { double density, most_bits; } kCases[] = {{0.03, 16}, {0.01, 16}, {0.001, 32}};
  for (const auto& one : kCases) {
    Rng rng(9);
    Job job(&rng);
    std::vector<Profile> profiles(1);
    for (const bool first : {true, false}) {
      std::vector<DenseRank> ranks(1);
      ranks[0].in.assign(kElements, 0);
      size_t set = 0;
      for (float& x : ranks[0].in)
        if (rng.chance(one.density)) x = 1, ++set;
      SparseStats stats;
      check_dense(&job, &ranks, {.mode = SparseMode::kOn}, 1, &profiles, &stats);
      EXPECT_EQ(stats.sent_elements, set);
      EXPECT_LE(8 * static_cast<double>(stats.index_bytes) / static_cast<double>(set), one.most_bits)
          << one.density << (first ? ", counted" : ", known");
      EXPECT_EQ(stats.spared_bytes, kElements * 4 - set * 4 - stats.index_bytes);
    }
  }
  // A tensor that is suddenly dense costs its index, and the ranks learn it.
  Rng rng(10);
  Job job(&rng);
  std::vector<Profile> profiles(1);
  std::vector<DenseRank> ranks(1);
  for (const double density : {0.001, 1.0, 1.0}) {
    ranks[0].in.assign(kElements, 0);
    for (float& x : ranks[0].in)
      if (rng.chance(density)) x = 1;
    SparseStats stats;
    check_dense(&job, &ranks, {.mode = SparseMode::kOn}, 1, &profiles, &stats);
    EXPECT_LE(static_cast<double>(stats.index_bytes), 0.045 * kElements * 4);
    if (density == 1.0) {
      EXPECT_LE(static_cast<double>(stats.index_bytes), 0.04 * kElements * 4);
    }
  }
}

// While the values of a segment travel, the index of the next one has been asked for.
TEST(ReductionTest, SegmentsOverlap) {
  Rng rng(2);
  Job job(&rng);
  std::vector<Profile> profiles(1);
  std::vector<DenseRank> ranks = random_ranks(&rng, 1, 100'000, 0.1, 0);
  check_dense(&job, &ranks, {.mode = SparseMode::kOn, .segment_bytes = 4'000}, 1, &profiles);
  ranks = random_ranks(&rng, 1, 100'000, 0.1, 0);
  auto reductions = dense_reductions(&ranks, {.mode = SparseMode::kOn, .segment_bytes = 4'000}, 1, &profiles);
  std::vector<SubOperation> values;
  // Ends indices at once, and values never.
  while (const SubOperation* next = reductions[0].next()) {
    if (next->kind == Kind::kValues) {
      values.push_back(*next);
    } else {
      reductions[0].ended(next->number);
    }
  }
  EXPECT_EQ(values.size(), 3u) << "as many as may be in flight";
  for (const SubOperation& operation : values) reductions[0].ended(operation.number);
  EXPECT_NE(reductions[0].next(), nullptr);
}

TEST(ReductionTest, WhereARankHasEverythingNoIndexTravels) {
  Rng rng(4);
  Job job(&rng);
  std::vector<Profile> profiles(2);
  std::vector<DenseRank> ranks(2);
  const auto run = [&](size_t zeros) {
    ranks[0].in.assign(20'000, 3);
    std::fill_n(ranks[0].in.begin(), zeros, 0.0f);
    ranks[1].in.assign(20'000, 0);
    SparseStats stats;
    check_dense(&job, &ranks, {.mode = SparseMode::kOn}, 1, &profiles, &stats);
    return stats;
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run(0).index_bytes, 0u);
  EXPECT_EQ(run(0).dense, 1u);
  EXPECT_GT(run(1).index_bytes, 0u) << "all but one is not everything";
  EXPECT_EQ(run(19'000).sent_elements, 1'000u);
}

// The first segment travels alone, so small tensors have small segments; but a segment is worth its round trips.
TEST(ReductionTest, SegmentsOfSmallTensorsAreSmall) {
  constexpr size_t kElements = 400'000;
  const struct {
    double density;
    long segments;
  } kCases[] = {{0.01, 1}, {0.2, 5}, {0.99, 24}};
  for (const auto& one : kCases) {
    Rng rng(3);
    Job job(&rng);
    std::vector<Profile> profiles(1);
    std::vector<DenseRank> ranks(1);
    ranks[0].in.assign(kElements, 0);
    for (float& x : ranks[0].in)
      if (rng.chance(one.density)) x = 1;
    const auto operations = check_dense(&job, &ranks, {.mode = SparseMode::kOn}, 1, &profiles);
    EXPECT_EQ(
        std::count_if(operations.begin(), operations.end(), [](auto& o) { return o.kind == Kind::kValues; }),
        one.segments)
        << one.density;
  }
}

TEST(ReductionTest, RanksThatDifferHaveOtherParameters) {
  std::vector<float> memory(30'000, 1);
  Profile profile;
  const auto first_parameter = [&](size_t count, size_t unit, Settings settings) {
    Reduction reduction(make_dense_tensor({memory.data(), memory.data(), count}, DataType::kFloat32, unit),
                        settings, &profile);
    const uint32_t parameter = reduction.next()->parameter;
    reduction.fail({ErrorCode::kAborted, ""});
    reduction.ended(0);
    EXPECT_TRUE(reduction.done());
    return parameter;
  };
  const uint32_t same = first_parameter(30'000, 1, {.mode = SparseMode::kOn});
  EXPECT_EQ(first_parameter(30'000, 1, {.mode = SparseMode::kOn}), same);
  EXPECT_NE(first_parameter(29'999, 1, {.mode = SparseMode::kOn}), same);
  EXPECT_NE(first_parameter(30'000, 2, {.mode = SparseMode::kOn}), same);
  EXPECT_NE(first_parameter(30'000, 1, {.mode = SparseMode::kAuto}), same);
  EXPECT_NE(first_parameter(30'000, 1, {.op = ReduceOp::kMax, .mode = SparseMode::kOn}), same);
}

// A bit that is lost on the way would lose a value; one that is added, write outside of the tensor.
TEST(ReductionTest, ADamagedIndexIsAnError) {
  for (const bool add_bit : {false, true}) {
    Rng rng(4);
    Job job(&rng);
    std::vector<DenseRank> ranks(1);
    ranks[0].in.assign(100, 0);
    ranks[0].in[17] = 1;
    job.damage = [&](const SubOperation& operation, std::vector<uint8_t>* result) {
      if (operation.kind != Kind::kIndex) return;
      if (add_bit) {
        result->back() |= 0x80;
      } else {
        std::fill(result->begin(), result->end(), 0);
      }
    };
    std::vector<Profile> profiles(1);
    auto reductions = dense_reductions(&ranks, {.mode = SparseMode::kOn}, 1, &profiles);
    job.run(&reductions);
    EXPECT_EQ(reductions[0].status().code(), ErrorCode::kInternal) << add_bit;
    EXPECT_TRUE(reductions[0].is_broken());
  }
}

// --- Sparse tensors

struct CooRank {
  std::vector<int64_t> indices;
  std::vector<float> values;
  std::vector<int64_t> out_indices;
  std::vector<float> out_values;
  int calls = 0;
};

std::deque<Reduction> coo_reductions(std::vector<CooRank>* ranks, uint64_t rows, size_t row_elements,
                                     const Settings& common, std::vector<Profile>* profiles) {
  std::deque<Reduction> reductions;
  for (size_t r = 0; r < ranks->size(); ++r) {
    CooRank& rank = (*ranks)[r];
    const CooView view{.indices = rank.indices.data(),
                       .values = rank.values.data(),
                       .count = rank.indices.size(),
                       .rows = rows,
                       .row_elements = row_elements};
    Settings settings = common;
    settings.rank = static_cast<int>(r);
    settings.ranks = static_cast<int>(ranks->size());
    const auto allocate = [&rank, row_elements](size_t count) {
      ++rank.calls;
      rank.out_indices.resize(count);
      rank.out_values.resize(count * row_elements);
      return CooMemory{rank.out_indices.data(), rank.out_values.data()};
    };
    reductions.emplace_back(make_coo_tensor(view, DataType::kFloat32, allocate), settings, &(*profiles)[r],
                            &spare_parts);
  }
  return reductions;
}

TEST(ReductionTest, SparseTensorsOfAnyKind) {
  for (uint64_t seed = 1; seed <= (soak() ? 20'000 : 200); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Job job(&rng);
    std::vector<CooRank> ranks(1 + rng.below(6));
    const uint64_t rows = rng.chance(0.3) ? uint64_t{1} << rng.below(41) : rng.below(5'000);
    const size_t row_elements = rng.chance(0.5) ? 1 : 1 + rng.below(20);
    Settings settings;
    settings.combines_bits = rng.chance(0.5);
    settings.segment_bytes = static_cast<double>(500 + rng.below(20'000));
    std::vector<Profile> profiles(ranks.size());
    for (int operation = 0; operation < 3; ++operation) {
      std::map<int64_t, std::vector<float>> expected;
      const bool nobody = rng.chance(0.1);
      const uint64_t range = rng.chance(0.3) ? std::min<uint64_t>(rows, 50) : rows;
      for (CooRank& rank : ranks) {
        rank = {};
        const size_t count = nobody || rows == 0 || rng.chance(0.2) ? 0 : rng.below(300);
        for (size_t i = 0; i < count; ++i) {
          const auto index = static_cast<int64_t>(rng.below(range));
          rank.indices.push_back(index);
          auto& row = expected[index];
          row.resize(row_elements);
          for (float& sum : row) {
            rank.values.push_back(static_cast<float>(rng.below(9)) - 4);
            sum += rank.values.back();
          }
        }
      }
      auto reductions = coo_reductions(&ranks, rows, row_elements, settings, &profiles);
      job.run(&reductions);
      std::vector<int64_t> indices;
      std::vector<float> values;
      for (const auto& [index, row] : expected) {
        indices.push_back(index);
        values.insert(values.end(), row.begin(), row.end());
      }
      for (size_t r = 0; r < ranks.size(); ++r) {
        ASSERT_TRUE(reductions[r].status().ok()) << reductions[r].status().to_string();
        ASSERT_EQ(ranks[r].calls, 1);
        ASSERT_EQ(ranks[r].out_indices, indices) << "rank " << r;
        ASSERT_EQ(ranks[r].out_values, values) << "rank " << r;
      }
    }
  }
}

TEST(ReductionTest, InvalidIndicesOfOneRankAreAnErrorOnAll) {
  Rng rng(1);
  Job job(&rng);
  std::vector<CooRank> ranks(3);
  ranks[0] = {.indices = {1}, .values = {1}};
  ranks[2] = {.indices = {10}, .values = {1}};
  std::vector<Profile> profiles(3);
  auto reductions = coo_reductions(&ranks, 10, 1, {}, &profiles);
  job.run(&reductions);
  for (const Reduction& reduction : reductions) {
    EXPECT_EQ(reduction.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(reduction.is_broken());
  }
  EXPECT_THAT(reductions[0].status().message(), HasSubstr("rank 2 has invalid indices"));
  EXPECT_EQ(reductions[0].status().rank(), 2);
  EXPECT_THAT(reductions[2].status().message(), HasSubstr("index 10, number 0 of 1"));
  // The next one is as good as ever.
  ranks[2].indices = {9};
  reductions = coo_reductions(&ranks, 10, 1, {}, &profiles);
  job.run(&reductions);
  EXPECT_THAT(ranks[1].out_indices, ElementsAre(1, 9));
}

std::vector<Kind> kinds_of(const std::vector<SubOperation>& operations) {
  std::vector<Kind> kinds;
  for (const SubOperation& operation : operations) kinds.push_back(operation.kind);
  return kinds;
}

// Runs one reduction of rows with the value 1, and compares.
std::vector<Kind> kinds_of_sum(Job* job, std::vector<CooRank>* ranks, uint64_t rows, const Settings& settings,
                               std::vector<Profile>* profiles) {
  std::map<int64_t, float> expected;
  for (CooRank& rank : *ranks) {
    rank.values.assign(rank.indices.size(), 1);
    for (const int64_t index : rank.indices) ++expected[index];
  }
  auto reductions = coo_reductions(ranks, rows, 1, settings, profiles);
  const auto operations = job->run(&reductions);
  for (const CooRank& rank : *ranks) {
    std::map<int64_t, float> sums;
    for (size_t i = 0; i < rank.out_indices.size(); ++i) sums[rank.out_indices[i]] = rank.out_values[i];
    EXPECT_EQ(sums, expected);
  }
  return kinds_of(operations);
}

// Rows [begin, end).
CooRank rows_between(int64_t begin, int64_t end) {
  CooRank rank;
  for (int64_t index = begin; index < end; ++index) rank.indices.push_back(index);
  return rank;
}

TEST(ReductionTest, KnownSparseTensorsAreCountedAgainOnlyIfARankHasMuchMoreOrTheUnionIsMuchLess) {
  constexpr uint64_t kRows = 1'000;
  for (const bool combines_bits : {true, false}) {
    SCOPED_TRACE(combines_bits);
    Rng rng(1);
    Job job(&rng);
    std::vector<Profile> profiles(3);
    const std::vector<Kind> counted = {Kind::kCount, Kind::kIndex, Kind::kValues};
    const std::vector<Kind> known = {Kind::kIndex, Kind::kValues};
    const std::vector<Kind> begun_anew = {Kind::kIndex, Kind::kCount, Kind::kIndex, Kind::kValues};
    const auto run = [&](int64_t of_rank_1, int64_t of_rank_2) {
      std::vector<CooRank> ranks = {rows_between(0, 100), rows_between(50, 50 + of_rank_1),
                                    rows_between(0, of_rank_2)};
      return kinds_of_sum(&job, &ranks, kRows, {.combines_bits = combines_bits}, &profiles);
    };
    EXPECT_EQ(run(100, 0), counted);
    EXPECT_EQ(run(100, 0), known);
    EXPECT_EQ(run(208, 0), known) << "twice as many, and eight";
    EXPECT_EQ(run(209, 0), begun_anew);
    EXPECT_EQ(run(418, 8), known) << "compared with the last count";
    EXPECT_EQ(run(418, 9), begun_anew);
    EXPECT_EQ(run(900, 9), begun_anew);
    EXPECT_EQ(run(100, 0), known) << "less is found out from the union";
    EXPECT_EQ(run(100, 0), counted);
    EXPECT_EQ(run(100, 0), known);
    EXPECT_EQ(run(209, 0), begun_anew) << "what it had before is forgotten";
  }
}

TEST(ReductionTest, RanksThatHaveMuchInTurnAreSoonNotCountedAgain) {
  Rng rng(1);
  Job job(&rng);
  std::vector<Profile> profiles(3);
  for (size_t operation = 0; operation < 9; ++operation) {
    std::vector<CooRank> ranks(3, rows_between(0, 10));
    ranks[operation % 3] = rows_between(100, 400);
    const auto kinds = kinds_of_sum(&job, &ranks, 1'000, {}, &profiles);
    EXPECT_EQ(std::count(kinds.begin(), kinds.end(), Kind::kCount), operation < 3 ? 1 : 0) << operation;
  }
}

// The first level of what is known has been sent when a rank says that it does not fit.
TEST(ReductionTest, InvalidIndicesAreFoundOutWithoutACount) {
  Rng rng(1);
  Job job(&rng);
  std::vector<Profile> profiles(2);
  const auto run = [&](int64_t index) {
    std::vector<CooRank> ranks = {{.indices = {1}, .values = {1}}, {.indices = {index}, .values = {1}}};
    auto reductions = coo_reductions(&ranks, 10, 1, {}, &profiles);
    const auto kinds = kinds_of(job.run(&reductions));
    EXPECT_EQ(reductions[0].status().code(), reductions[1].status().code());
    EXPECT_FALSE(reductions[0].is_broken());
    if (!reductions[0].status().ok()) {
      EXPECT_THAT(reductions[0].status().message(), HasSubstr("rank 1 has invalid indices"));
    }
    return kinds;
  };
  run(2);
  EXPECT_THAT(run(3), ElementsAre(Kind::kIndex, Kind::kValues));
  EXPECT_THAT(run(10), ElementsAre(Kind::kIndex, Kind::kCount));
  EXPECT_THAT(run(3), ElementsAre(Kind::kIndex, Kind::kValues));
}

// A union that was a few neighbours must not choose the levels of one that is spread over a large table.
TEST(ReductionTest, TheIndexOfASurpriseIsSmall) {
  Rng rng(1);
  Job job(&rng);
  std::vector<Profile> profiles(1);
  std::vector<CooRank> ranks(1);
  for (const int64_t distance : {1, 1, 1 << 20}) {
    ranks[0] = {};
    for (int64_t i = 0; i < (distance > 1 ? 30'000 : 10); ++i) ranks[0].indices.push_back(i * distance);
    ranks[0].values.assign(ranks[0].indices.size(), 1);
    auto reductions = coo_reductions(&ranks, uint64_t{1} << 40, 1, {}, &profiles);
    job.run(&reductions);
    EXPECT_LE(reductions[0].stats().index_bytes, size_t{1} << 20) << distance;
  }
}

TEST(ReductionTest, MemoryIsForTheNextReduction) {
  std::vector<float> values(200'000, 0);
  for (size_t i = 0; i < values.size(); i += 7) values[i] = 1;
  Profile profile;
  std::vector<Reduction::Part> spare(Reduction::kMostSpareParts);
  spare.back().values.resize(2 * Reduction::kMostSpareBytes);  // is used, and not given back
  for (int round = 0; round < 2; ++round) {
    Reduction reduction(
        make_dense_tensor({values.data(), values.data(), values.size()}, DataType::kFloat32, 1),
        {.mode = SparseMode::kOn}, &profile, &spare);
    EXPECT_TRUE(spare.empty()) << "taken";
    while (const SubOperation* const next = reduction.next()) reduction.ended(next->number);
    ASSERT_TRUE(reduction.done());
    ASSERT_THAT(spare, testing::Not(testing::IsEmpty()));
    EXPECT_LE(spare.size(), Reduction::kMostSpareParts);
    for (const Reduction::Part& part : spare) EXPECT_LE(part.bytes(), Reduction::kMostSpareBytes);
    EXPECT_GT(spare.back().bytes(), 0u);
  }
}

// After a failover, a later index may be refused by an aggregator that can only add, while values are in flight.
TEST(ReductionRefusalTest, ALaterIndexThatIsRefusedFailsTheReduction) {
  constexpr size_t kCount = 4 << 20;
  std::vector<float> values(kCount, 0);
  for (size_t i = 0; i < kCount; i += 3) values[i] = 1;
  Profile profile;
  Reduction reduction(make_dense_tensor({values.data(), values.data(), kCount}, DataType::kFloat32, 1),
                      {.mode = SparseMode::kOn}, &profile);
  const Status refused(ErrorCode::kUnsupported, "only sums");
  std::vector<uint64_t> values_in_flight;
  bool was_refused = false;
  while (const SubOperation* const next = reduction.next()) {
    const uint64_t number = next->number;
    if (next->kind == Kind::kValues) {
      values_in_flight.push_back(number);
    } else if (next->kind == Kind::kIndex && !values_in_flight.empty()) {
      was_refused = true;
      EXPECT_FALSE(reduction.use_sums());
      reduction.fail(refused);
      reduction.ended(number);
    } else {
      reduction.ended(number);  // of one rank, the result is the input
    }
  }
  ASSERT_TRUE(was_refused);
  for (const uint64_t number : values_in_flight) reduction.ended(number);
  EXPECT_TRUE(reduction.done());
  EXPECT_EQ(reduction.status().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace netsum::sparse::reduction_test
