// What a sparse all-reduce costs a processor: finding the elements of a large dense tensor that are not zero, packing them, and
// storing sums at their places, and all of it, with the index, for one rank alone. The tensor does not fit a cache.
//
// bytes_per_second counts the dense tensor's bytes once.
#include <benchmark/benchmark.h>

#include <memory>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/base/rng.h"
#include "src/sparse/reduction.h"
#include "src/sparse/tensor.h"

namespace netsum::sparse {
namespace {

constexpr size_t kElements = size_t{16} << 20;
constexpr uint64_t kSegmentElements = uint64_t{1} << 20;

// A tensor of which so many of a thousand elements are not zero.
class Fixture {
 public:
  explicit Fixture(int64_t per_thousand) : data_(kElements) {
    Rng rng(1);
    for (float& x : data_)
      if (rng.below(1000) < static_cast<uint64_t>(per_thousand)) x = 1;
    tensor_ = make_dense_tensor({data_.data(), data_.data(), data_.size()}, DataType::kFloat32, 1);
    for (uint64_t begin = 0; begin < kElements; begin += kSegmentElements) {
      segments_.push_back({begin, begin + kSegmentElements});
      tensor_->find(segments_.back(), &sets_.emplace_back());
    }
  }

  void find() {
    for (const Segment& segment : segments_) tensor_->find(segment, &found_);
    benchmark::DoNotOptimize(found_.size());
  }
  void pack() {
    for (size_t i = 0; i < segments_.size(); ++i) {
      values_.resize(kSegmentElements * sizeof(float) + Tensor::kSlackBytes);
      NETSUM_ASSERT(tensor_->pack(segments_[i], sets_[i], sets_[i], values_.data()));
      benchmark::ClobberMemory();
    }
  }
  void unpack(benchmark::State& state) {
    for (size_t i = 0; i < segments_.size(); ++i) {
      state.PauseTiming();
      BitSet set = sets_[i];
      std::vector<uint8_t> values(sets_[i].count() * sizeof(float) + Tensor::kSlackBytes);
      state.ResumeTiming();
      tensor_->unpack(segments_[i], &set, &values);
      benchmark::ClobberMemory();
    }
  }
  void whole() {
    Reduction reduction(make_dense_tensor({data_.data(), data_.data(), data_.size()}, DataType::kFloat32, 1),
                        {.mode = SparseMode::kOn}, &profile_);
    while (const SubOperation* next = reduction.next()) reduction.ended(next->number);
    NETSUM_ASSERT(reduction.done() && reduction.status().ok());
  }

 private:
  Profile profile_;
  std::vector<float> data_;
  std::unique_ptr<Tensor> tensor_;
  std::vector<Segment> segments_;
  std::vector<BitSet> sets_;
  BitSet found_;
  std::vector<uint8_t> values_;
};

template <typename Run>
void measure(benchmark::State& state, const Run& run) {
  Fixture fixture(state.range(0));
  for (auto _ : state) run(fixture);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kElements * sizeof(float)));
}

void find(benchmark::State& state) {
  measure(state, [](Fixture& fixture) { fixture.find(); });
}
void whole(benchmark::State& state) {
  measure(state, [](Fixture& fixture) { fixture.whole(); });
}
void pack(benchmark::State& state) {
  measure(state, [](Fixture& fixture) { fixture.pack(); });
}
void unpack(benchmark::State& state) {
  measure(state, [&](Fixture& fixture) { fixture.unpack(state); });
}

BENCHMARK(find)->Arg(0)->Arg(1)->Arg(10)->Arg(100)->Arg(500);
BENCHMARK(pack)->Arg(1)->Arg(10)->Arg(100)->Arg(500);
BENCHMARK(whole)->Arg(0)->Arg(1)->Arg(10)->Arg(100)->Arg(500);
BENCHMARK(unpack)->Arg(1)->Arg(10)->Arg(100)->Arg(500);

}  // namespace
}  // namespace netsum::sparse

BENCHMARK_MAIN();
