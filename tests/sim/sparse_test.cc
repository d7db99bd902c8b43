// Sparse all-reduces in virtual time: the sub-operations of src/sparse over the production protocol, under every fault of the
// network, stopped and dying ranks, and aggregators that die.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "emulate/simulation.h"
#include "src/base/rng.h"
#include "src/base/soak.h"
#include "src/sparse/reduction.h"

namespace netsum::emulate::sparse_test {
namespace {

// What one rank contributes to one all-reduce, and what it got.
struct Input {
  std::vector<int32_t> elements;  // of the whole table, zeros included
  std::vector<int64_t> indices;   // of the rows that are stored
  std::vector<int32_t> rows;      // their elements
  std::vector<int64_t> union_indices;
  std::vector<int32_t> union_rows;
};

struct Call {
  bool coo = false;
  size_t row_elements = 1;  // of a dense tensor: the unit of its index
  SparseMode mode = SparseMode::kOn;
  uint64_t rows = 0;
  std::vector<Input> inputs;                       // [rank]
  std::vector<int32_t> sum;                        // of a dense tensor
  std::map<int64_t, std::vector<int32_t>> united;  // of a sparse one: the rows that any rank has stored

  std::unique_ptr<sparse::Tensor> tensor_of(Input* input) const {
    if (!coo) {
      const TensorView view{input->elements.data(), input->elements.data(), input->elements.size()};
      return sparse::make_dense_tensor(view, DataType::kInt32, row_elements);
    }
    const CooView view{.indices = input->indices.data(),
                       .values = input->rows.data(),
                       .count = input->indices.size(),
                       .rows = rows,
                       .row_elements = row_elements};
    return sparse::make_coo_tensor(view, DataType::kInt32, [this, input](size_t count) {
      input->union_indices.resize(count);
      input->union_rows.resize(count * row_elements);
      return CooMemory{input->union_indices.data(), input->union_rows.data()};
    });
  }
};

void random_shape(Rng* rng, Call* call) {
  constexpr SparseMode kModes[] = {SparseMode::kOn, SparseMode::kOn, SparseMode::kAuto, SparseMode::kOff};
  call->coo = rng->chance(0.4);
  call->row_elements = rng->chance(0.5) ? 1 : 1 + rng->below(9);
  call->rows = rng->below(rng->chance(0.2) ? 30 : 3'000);
  if (!call->coo) call->mode = kModes[rng->below(4)];
  // Smaller ones would be sent as they are.
  if (call->mode == SparseMode::kAuto && !call->coo) call->rows = 17'000 / call->row_elements;
}

// `last`: the call before it, which may be for the same tensor. Null: there is none.
Call random_call(Rng* rng, int ranks, const Call* last) {
  Call call;
  if (last != nullptr && rng->chance(0.5)) {
    call.coo = last->coo;
    call.row_elements = last->row_elements;
    call.mode = last->mode;
    call.rows = last->rows;
  } else {
    random_shape(rng, &call);
  }
  const double density = rng->chance(0.15) ? 0 : rng->chance(0.1) ? 0.9 : rng->unit() * 0.1;
  call.inputs.resize(static_cast<size_t>(ranks));
  call.sum.resize(call.rows * call.row_elements);
  for (Input& input : call.inputs) {
    if (!call.coo) input.elements.resize(call.sum.size());
    const bool has_none = rng->chance(0.1);
    for (uint64_t row = 0; row < call.rows; ++row) {
      if (has_none || !rng->chance(density)) continue;
      std::vector<int32_t>& united = call.united[static_cast<int64_t>(row)];
      united.resize(call.row_elements);
      input.indices.push_back(static_cast<int64_t>(row));
      for (size_t i = 0; i < call.row_elements; ++i) {
        const auto value = static_cast<int32_t>(rng->below(2'001)) - 1'000;  // zeros among them
        united[i] += value;
        call.sum[row * call.row_elements + i] += value;
        input.rows.push_back(value);
        if (!call.coo) input.elements[row * call.row_elements + i] = value;
      }
    }
  }
  return call;
}

// A rank that makes one call after the other.
class SparseRank final : public Program {
 public:
  SparseRank(int rank, int ranks, bool combines_bits, std::vector<Call>* calls)
      : rank_(rank), ranks_(ranks), combines_bits_(combines_bits), calls_(calls) {
    begin();
  }

  std::optional<OperationSpec> next() override {
    while (reduction_ != nullptr) {
      if (const sparse::SubOperation* next = reduction_->next()) {
        ++issued_;
        OperationSpec spec;
        spec.type = next->type;
        spec.op = next->op;
        spec.tensors = {next->view};
        spec.role.parameter = next->parameter;
        spec.role.rank = rank_;
        return spec;
      }
      if (!reduction_->done()) break;
      status_ = reduction_->status();
      first_ += std::exchange(issued_, 0);
      ++current_;
      begin();
    }
    return std::nullopt;
  }
  void ended(uint64_t number, const Status& status) override {
    if (!status.ok()) reduction_->fail(status);
    reduction_->ended(number - first_);
  }
  bool done() const override { return reduction_ == nullptr; }

  const Status& status() const { return status_; }
  // "" if the results of all calls are right.
  std::string wrong() const {
    for (size_t i = 0; i < calls_->size(); ++i) {
      const Call& call = (*calls_)[i];
      const Input& input = call.inputs[static_cast<size_t>(rank_)];
      const std::string which =
          "call " + std::to_string(i) + " on rank " + std::to_string(rank_) + ": wrong ";
      if (!call.coo && input.elements != call.sum) return which + "elements";
      if (!call.coo) continue;
      std::vector<int64_t> indices;
      std::vector<int32_t> rows;
      for (const auto& [index, row] : call.united) {
        indices.push_back(index);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      if (input.union_indices != indices) return which + "indices";
      if (input.union_rows != rows) return which + "rows";
    }
    return "";
  }

 private:
  void begin() {
    reduction_ = nullptr;
    if (current_ == calls_->size() || !status_.ok()) return;
    Call& call = (*calls_)[current_];
    const sparse::Settings settings{.mode = call.mode,
                                    .rank = rank_,
                                    .ranks = ranks_,
                                    .combines_bits = combines_bits_,
                                    .segment_bytes = 600};
    reduction_ = std::make_unique<sparse::Reduction>(
        call.tensor_of(&call.inputs[static_cast<size_t>(rank_)]), settings,
        &profiles_[{call.coo, call.row_elements, call.mode, call.rows}]);
  }

  const int rank_, ranks_;
  const bool combines_bits_;
  std::vector<Call>* const calls_;
  // Of each tensor, by what a communicator knows of it.
  std::map<std::tuple<bool, size_t, SparseMode, uint64_t>, sparse::Profile> profiles_;
  size_t current_ = 0;
  uint64_t first_ = 0, issued_ = 0;  // sub-operations of earlier calls, and of this one
  std::unique_ptr<sparse::Reduction> reduction_;
  Status status_;
};

// A job of ranks that make random calls, on a network with faults.
struct Job {
  explicit Job(uint64_t seed) : rng(seed), ranks(2 + static_cast<int>(rng.below(5))) {
    scenario = quiet_scenario(ranks, DataType::kInt32, 1, 0);
    scenario.seed = seed;
    scenario.aggregators = 1 + static_cast<int>(rng.below(3));
    scenario.racks = rng.chance(0.3) ? 2 : 0;
    scenario.jobs[0].sums_values = rng.chance(0.5);
    for (LinkOptions* link :
         {&scenario.worker_up, &scenario.worker_down, &scenario.aggregator_up, &scenario.aggregator_down}) {
      link->loss = rng.chance(0.5) ? rng.unit() * 0.05 : 0;
      link->duplicate = rng.chance(0.5) ? rng.unit() * 0.05 : 0;
      link->corrupt = rng.chance(0.5) ? rng.unit() * 0.02 : 0;
      link->truncate = rng.chance(0.5) ? rng.unit() * 0.02 : 0;
      link->late = rng.chance(0.3) ? rng.unit() * 0.02 : 0;
      link->late_us = 5'000;
      link->jitter_us = rng.chance(0.5) ? static_cast<int64_t>(rng.below(500)) : 0;
    }
    for (int i = 0; i < 3; ++i) {
      constexpr FaultEvent::Kind kKinds[] = {FaultEvent::Kind::kPause, FaultEvent::Kind::kPartition};
      scenario.events.push_back({.kind = kKinds[rng.below(2)],
                                 .at_event = 200 + rng.below(10'000),
                                 .duration_us = 20'000,
                                 .rank = random_rank()});
    }
    for (uint64_t i = 1 + rng.below(4); i > 0; --i)
      calls.push_back(random_call(&rng, ranks, calls.empty() ? nullptr : &calls.back()));
  }

  int random_rank() { return static_cast<int>(rng.below(static_cast<uint64_t>(ranks))); }

  Report run() {
    Simulation simulation(scenario);
    const bool combines_bits = rng.chance(0.7);
    for (int rank = 0; rank < ranks; ++rank) {
      programs.push_back(std::make_unique<SparseRank>(rank, ranks, combines_bits, &calls));
      simulation.set_program(0, rank, programs.back().get());
    }
    return simulation.run();
  }

  Rng rng;
  int ranks;
  Scenario scenario;
  std::vector<Call> calls;
  std::vector<std::unique_ptr<SparseRank>> programs;
};

std::string first_of(const std::vector<std::string>& violations) {
  return violations.empty() ? "" : violations.front();
}

TEST(SparseSimulation, SumsAndIndicesAreRightUnderAllFaults) {
  for (uint64_t seed = 1; seed <= (soak() ? 3'000 : 60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Job job(seed);
    const Report report = job.run();
    ASSERT_EQ(first_of(report.violations), "");
    for (const auto& program : job.programs) {
      ASSERT_TRUE(program->done());
      ASSERT_TRUE(program->status().ok()) << program->status().to_string();
      ASSERT_EQ(program->wrong(), "");
    }
  }
}

// Whatever phase it is in, each survivor ends: with its results, or with the error of somebody gone.
TEST(SparseSimulation, ADeathEndsTheCallsOfAllRanks) {
  int failed = 0, right = 0;
  for (uint64_t seed = 1; seed <= (soak() ? 3'000 : 60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Job job(seed);
    FaultEvent crash{.kind = FaultEvent::Kind::kCrash,
                     .at_event = job.rng.below(6'000),
                     .duration_us = kNever,
                     .reported_after_us = 10'000};
    const bool aggregator_dies = job.rng.chance(0.3);
    crash.rank = aggregator_dies ? kNoRank : job.random_rank();
    job.scenario.events.push_back(crash);
    const Report report = job.run();
    ASSERT_EQ(first_of(report.violations), "");
    for (int rank = 0; rank < job.ranks; ++rank) {
      if (rank == crash.rank) continue;
      const SparseRank& program = *job.programs[static_cast<size_t>(rank)];
      ASSERT_TRUE(program.done());
      if (program.status().ok()) {
        ASSERT_EQ(program.wrong(), "");
        ++right;
        continue;
      }
      const ErrorCode code = program.status().code();
      ASSERT_TRUE(code == ErrorCode::kPeerLost || code == ErrorCode::kAggregatorLost)
          << program.status().to_string();
      ++failed;
    }
  }
  EXPECT_GT(failed, 20);
  EXPECT_GT(right, 5) << "some crashes come when all is done";
}

}  // namespace
}  // namespace netsum::emulate::sparse_test
