// Operations whose input arrives piece by piece, through the public API, on every data path. Another thread than the one that
// submits writes the input, which is poison until then.
#include "netsum/watermarks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "session/placed_job_testing.h"
#include "src/base/rng.h"

namespace netsum::watermarks_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int kRanks = PlacedJob::kRanks;
constexpr auto kPoison = std::byte{0xFF};  // NaN
using Bytes = std::vector<std::byte>;

enum class Kind { kAllReduce, kTwoTensors, kIntegers, kReduce, kReduceScatter, kBroadcast, kAllGather };
constexpr Kind kKinds[] = {Kind::kAllReduce,     Kind::kTwoTensors, Kind::kIntegers, Kind::kReduce,
                           Kind::kReduceScatter, Kind::kBroadcast,  Kind::kAllGather};
constexpr int kRoot = 2;

struct Call {
  Kind kind = Kind::kAllReduce;
  size_t bytes = 0;  // of all tensors together; a multiple of 4 * kRanks

  size_t part() const { return bytes / kRanks; }
  bool contributes(int rank, size_t byte) const {
    if (kind == Kind::kBroadcast) return rank == kRoot;
    return kind != Kind::kAllGather || byte / part() == static_cast<size_t>(rank);
  }
  bool receives(int rank, size_t byte) const {
    if (kind == Kind::kReduce) return rank == kRoot;
    return kind != Kind::kReduceScatter || byte / part() == static_cast<size_t>(rank);
  }
  Work start(Communicator& communicator, const std::byte* input, std::byte* output,
             std::shared_ptr<Watermarks> watermarks, milliseconds timeout = {}) const {
    ReduceOptions reduce{.timeout = timeout, .watermarks = watermarks};
    if (kind == Kind::kIntegers) reduce.type = DataType::kInt32;
    const CollectiveOptions move{.timeout = timeout, .watermarks = watermarks};
    const auto tensor = [&](size_t begin, size_t end) {
      return TensorView{input + begin, output + begin, (end - begin) / 4};
    };
    std::vector<TensorView> tensors;
    std::vector<BufferView> buffers;
    for (size_t begin = 0; begin < bytes; begin += part()) {
      tensors.push_back(tensor(begin, begin + part()));
      buffers.push_back({input + begin, output + begin, part()});
    }
    switch (kind) {
      case Kind::kAllReduce:
      case Kind::kIntegers:
        return communicator.all_reduce(tensor(0, bytes), reduce);
      case Kind::kTwoTensors:
        tensors = {tensor(0, part()), tensor(part(), bytes)};
        return communicator.all_reduce(tensors, reduce);
      case Kind::kReduce:
        return communicator.reduce(tensors, kRoot, reduce);
      case Kind::kReduceScatter:
        return communicator.reduce_scatter(tensors, reduce);
      case Kind::kBroadcast:
        return communicator.broadcast(buffers, kRoot, move);
      case Kind::kAllGather:
        return communicator.all_gather(buffers, move);
    }
    return {};
  }
};

Bytes input_of(const Call& call, int rank, uint64_t seed) {
  Rng rng(seed * 100 + static_cast<uint64_t>(rank));
  Bytes bytes(call.bytes);
  for (size_t i = 0; i < bytes.size(); i += 4) {
    const auto number = static_cast<float>(rng.unit() - 0.5);
    const auto integer = static_cast<int32_t>(rng.below(2'000'000));
    std::memcpy(&bytes[i], call.kind == Kind::kIntegers ? static_cast<const void*>(&integer) : &number, 4);
  }
  return bytes;
}

// One call on one rank: its memory, and what it has heard.
class Piecewise {
 public:
  // `expected`: the memory of the result.
  Piecewise(const Call& call, int rank, Bytes source, Bytes expected, bool in_place)
      : call_(call),
        rank_(rank),
        source_(std::move(source)),
        expected_(std::move(expected)),
        input_(source_) {
    for (size_t i = 0; i < input_.size(); ++i)
      if (call_.contributes(rank_, i)) input_[i] = kPoison;
    if (!in_place) separate_output_.assign(call_.bytes, kPoison);
    watermarks_ = std::make_shared<Watermarks>(call_.bytes / 7, [this](size_t bytes) { hear(bytes); });
  }

  Work start(Communicator& communicator) {
    return call_.start(communicator, input_.data(), output(), watermarks_);
  }
  void feed(size_t end, Rng* rng) {
    for (size_t begin = watermarks_->available(); begin < end;) {
      const size_t next = std::min(end, begin + 1 + rng->below(call_.bytes / 5));
      for (size_t i = begin; i < next; ++i)
        if (call_.contributes(rank_, i)) input_[i] = source_[i];
      watermarks_->make_available(next);
      begin = next;
      if (rng->chance(0.2)) std::this_thread::sleep_for(milliseconds(1));
    }
  }
  size_t delivered() const { return watermarks_->delivered(); }
  // After the end.
  void check() {
    EXPECT_EQ(heard_, call_.bytes);
    EXPECT_EQ(delivered(), call_.bytes);
    EXPECT_EQ(wrong_, 0u) << "bytes that counted as delivered";
  }

 private:
  std::byte* output() { return separate_output_.empty() ? input_.data() : separate_output_.data(); }
  void hear(size_t bytes) {
    wrong_ += bytes <= heard_ ? 1 : 0;
    for (; heard_ < bytes; ++heard_)
      if (call_.receives(rank_, heard_)) wrong_ += output()[heard_] != expected_[heard_] ? 1 : 0;
  }

  const Call call_;
  const int rank_;
  const Bytes source_, expected_;
  Bytes input_, separate_output_;
  std::shared_ptr<Watermarks> watermarks_;
  size_t heard_ = 0, wrong_ = 0;
};

void expect_ok(const Work& work) {
  const Status status = work.wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
}

class WatermarksTest : public ::testing::TestWithParam<Place> {};
INSTANTIATE_TEST_SUITE_P(Places, WatermarksTest,
                         testing::Values(Place::kShards, Place::kLossyShards, Place::kAggregators,
                                         Place::kHierarchy, Place::kOneHost, Place::kTwoHosts,
                                         Place::kFailover),
                         place_name);

// Ranks 0 and 1 have watermarks. All operations are in flight at once, and their input comes in another order.
TEST_P(WatermarksTest, ResultsHaveTheBitsOfInputThatIsThere) {
  PlacedJob job(GetParam());
  job.edit([](CommunicatorOptions& options) { options.engine_threads = 1 + options.rank % 2; });
  job.run([](Communicator& communicator) {
    const int rank = communicator.rank();
    Rng rng(static_cast<uint64_t>(rank));
    std::vector<std::unique_ptr<Piecewise>> piecewise;
    std::vector<Work> works;
    std::vector<Bytes> inputs, outputs;
    const size_t sizes[] = {16 * 20, 16 * 5'001, 16 * 100'003};
    uint64_t seed = 0;
    for (const size_t bytes : sizes) {
      for (const Kind kind : kKinds) {
        const Call call{kind, bytes};
        Bytes source = input_of(call, rank, ++seed), expected(bytes);
        expect_ok(call.start(communicator, source.data(), expected.data(), nullptr));
        if (rank < 2)
          piecewise.push_back(
              std::make_unique<Piecewise>(call, rank, std::move(source), std::move(expected), seed % 2 == 0));
        else
          inputs.push_back(std::move(source)), outputs.push_back(std::move(expected));
      }
    }
    seed = 0;
    for (const size_t bytes : sizes) {
      for (const Kind kind : kKinds) {
        const Call call{kind, bytes};
        const size_t i = works.size();
        works.push_back(rank < 2 ? piecewise[i]->start(communicator)
                                 : call.start(communicator, inputs[i].data(), outputs[i].data(), nullptr));
      }
    }
    std::thread feeder([&] {
      for (const double part : {0.3, 0.9, 1.0})
        for (size_t i = piecewise.size(); i-- > 0;)
          piecewise[i]->feed(static_cast<size_t>(part * static_cast<double>(sizes[i / std::size(kKinds)])),
                             &rng);
    });
    for (const Work& work : works) expect_ok(work);
    feeder.join();
    for (const auto& one : piecewise) one->check();
  });
}

constexpr Call kLarge{Kind::kAllReduce, 16 * 50'000};

// Which is not told apart from a rank that is late, but here.
TEST_P(WatermarksTest, InputThatNeverComesEndsAtTheDeadlineAndSaysSo) {
  PlacedJob job(GetParam());
  job.run([](Communicator& communicator) {
    const int rank = communicator.rank();
    Bytes memory = input_of(kLarge, rank, 1);
    auto watermarks = std::make_shared<Watermarks>();
    if (rank != 1) watermarks->make_available(SIZE_MAX);
    const milliseconds timeout(rank == 1 ? 300 : 20'000);
    const Work work = kLarge.start(communicator, memory.data(), memory.data(), watermarks, timeout);
    watermarks->make_available(100'000);
    const Status status = work.wait();
    EXPECT_FALSE(status.ok());
    if (rank != 1) return;
    EXPECT_EQ(status.code(), ErrorCode::kTimeout);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_THAT(status.message(),
                HasSubstr("this rank has made available 100000 of 800000 bytes of the input"));
  });
}

TEST_P(WatermarksTest, TheCallerFailsAnOperationAndAllRanksHearOfIt) {
  PlacedJob job(GetParam());
  job.run([](Communicator& communicator) {
    const int rank = communicator.rank();
    Bytes memory = input_of(kLarge, rank, 1);
    std::atomic<int> calls{0};
    auto watermarks = std::make_shared<Watermarks>(1 << 20, [&](size_t) { ++calls; });
    if (rank != 1) watermarks->make_available(SIZE_MAX);
    const Work work = kLarge.start(communicator, memory.data(), memory.data(), watermarks);
    if (rank == 1) watermarks->fail({ErrorCode::kInternal, "the device has failed"});
    const Status status = work.wait();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("the device has failed"));
    EXPECT_EQ(calls, 0);
    if (rank == 1) {
      EXPECT_EQ(status.code(), ErrorCode::kInternal);
      EXPECT_FALSE(communicator.status().ok());
    }
    watermarks->make_available(SIZE_MAX);  // of no effect
  });
}

// The other aggregator repeats the operations, also of input that came before, and of which the caller has had results.
TEST(WatermarksFailover, GoesOnWithWhatIsAvailable) {
  PlacedJob job(Place::kFailover);
  std::barrier half(kRanks);
  job.run([&](Communicator& communicator) {
    const int rank = communicator.rank();
    Rng rng(static_cast<uint64_t>(rank));
    std::vector<std::unique_ptr<Piecewise>> piecewise;
    std::vector<Work> works;
    for (const bool in_place : {true, false}) {
      const uint64_t seed = in_place ? 1 : 2;
      Bytes source = input_of(kLarge, rank, seed), expected(kLarge.bytes);
      expect_ok(kLarge.start(communicator, source.data(), expected.data(), nullptr));
      piecewise.push_back(
          std::make_unique<Piecewise>(kLarge, rank, std::move(source), std::move(expected), in_place));
    }
    for (const auto& one : piecewise) works.push_back(one->start(communicator));
    piecewise[0]->feed(kLarge.bytes * 3 / 4, &rng);
    piecewise[1]->feed(kLarge.bytes / 4, &rng);
    while (piecewise[0]->delivered() < kLarge.bytes / 4) std::this_thread::sleep_for(milliseconds(1));
    half.arrive_and_wait();
    if (rank == 0) job.end_aggregator();
    half.arrive_and_wait();
    for (const auto& one : piecewise) one->feed(kLarge.bytes, &rng);
    for (const Work& work : works) expect_ok(work);
    for (const auto& one : piecewise) one->check();
    EXPECT_EQ(communicator.stats().failovers, 1u);
  });
}

TEST(WatermarksOfOneOperation, AreRefusedForASecondOne) {
  PlacedJob job(Place::kShards);
  job.run([](Communicator& communicator) {
    Bytes memory = input_of(kLarge, communicator.rank(), 1);
    const auto watermarks = std::make_shared<Watermarks>();
    watermarks->make_available(SIZE_MAX);
    expect_ok(kLarge.start(communicator, memory.data(), memory.data(), watermarks));
    const Status status = kLarge.start(communicator, memory.data(), memory.data(), watermarks).wait();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("all_reduce: its watermarks are those of an earlier operation"));
    EXPECT_TRUE(communicator.status().ok());
  });
}

}  // namespace
}  // namespace netsum::watermarks_test
