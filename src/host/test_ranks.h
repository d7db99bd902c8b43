// What the tests of HostCore share: ranks as threads that map the same segment, without network, and what they must compute.
#ifndef NETSUM_SRC_HOST_TEST_RANKS_H_
#define NETSUM_SRC_HOST_TEST_RANKS_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/clock.h"
#include "src/base/rng.h"
#include "src/host/host_core.h"
#include "src/kernels/kernels.h"

namespace netsum {

inline constexpr uint32_t kPayload = 1440;
inline constexpr int64_t kLongUs = 60'000'000;
// Small, so that few elements are several blocks, and ranks share little memory: to map the 64 MiB of usual blocks takes longer
// than all that is summed here.
inline constexpr size_t kMostBlockBytes = size_t{128} << 10;
// The other ranks wake a rank when there is work for it: only one that they forget sleeps so long.
inline constexpr int64_t kHangUs = 20'000'000;

inline std::string fresh_name() {
  static std::atomic<int> count{0};
  return "netsum-test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

// Whether ranks read large inputs in place.
enum class Reading : uint8_t { kInPlace, kNever };

// One rank of a lone host, driven by the thread that calls it.
class Rank {
 public:
  Rank(const std::string& name, int rank, int ranks, Reading reading = Reading::kInPlace,
       uint32_t payload = kPayload, int lane_bits = 0, bool fixed_floats = false)
      : number_(rank) {
    SegmentOptions memory;
    memory.name = name;
    memory.local = static_cast<size_t>(rank);
    memory.ranks = static_cast<size_t>(ranks);
    memory.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const Placement placement = place(std::vector<std::string>(static_cast<size_t>(ranks), "here"), rank);
    memory.host_block_bytes = std::min(placement.host_block_bytes(), kMostBlockBytes);
    auto segment = Segment::open(memory);
    EXPECT_TRUE(segment.ok()) << segment.status().to_string();
    HostOptions options;
    options.placement = placement;
    options.world_size = ranks;
    options.payload_bytes = payload;
    options.encoding.lane_bits = lane_bits;
    options.encoding.floats = fixed_floats ? FloatSums::kNo : FloatSums::kAsTheyAre;
    options.encoding.fixed_floats = fixed_floats;
    options.in_place_bytes = reading == Reading::kInPlace ? size_t{64} << 10 : SIZE_MAX;
    core_ = std::make_unique<HostCore>(std::move(options), std::move(segment).value());
  }

  HostCore& core() { return *core_; }

  void submit(DataType type, ReduceOp op, std::vector<TensorView> tensors, int64_t timeout_us = kLongUs,
              const Role& role = {}, std::shared_ptr<Watermarks> watermarks = nullptr) {
    OperationSpec spec;
    if (watermarks != nullptr)
      watermarks->state().begin(1, [this] { core_->event().notify(FutexEvent::kAnything); });
    spec.watermarks = std::move(watermarks);
    spec.type = type;
    spec.op = op;
    spec.tensors = std::move(tensors);
    spec.role = role;
    spec.role.rank = number_;
    spec.one_tensor = role.collective == Collective::kReduceScatter;
    spec.deadline_us = monotonic_us() + timeout_us;
    core_->submit(next_id_++, std::move(spec));
  }

  // The operations after which ranks read in place, because all have found out whether they can.
  void submit_first() {
    for (int32_t& single : first_) submit(DataType::kInt32, ReduceOp::kSum, {{&single, &single, 1}});
  }

  // Until all that was submitted has ended; returns the first status that is not ok.
  Status finish() {
    std::vector<HostCore::Completion> ended;
    while (true) {
      const uint32_t seen = core_->event().notifications();
      const bool worked = core_->advance();
      core_->on_tick(monotonic_us());
      core_->report_delivered();
      core_->take_completions(&ended);
      if (core_->idle()) break;
      if (worked) continue;
      const int64_t slept_at_us = monotonic_us();
      core_->event().wait(seen, core_->awaited(), core_->next_tick_us() - slept_at_us);
      EXPECT_LT(monotonic_us() - slept_at_us, kHangUs) << "nobody has woken this rank";
    }
    for (const auto& completion : ended)
      if (!completion.status.ok()) return completion.status;
    return Status();
  }

 private:
  const int number_;
  std::unique_ptr<HostCore> core_;
  uint64_t next_id_ = 0;
  int32_t first_[Segment::kSlots] = {};
};

inline void run_ranks(int ranks, const std::function<void(int, Rank&)>& body,
                      Reading reading = Reading::kInPlace, bool fixed_floats = false) {
  const std::string name = fresh_name();
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(name, r, ranks, reading, kPayload, 0, fixed_floats);
      body(r, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Ranks of a single host, driven by one thread in a fixed order.
inline std::vector<std::unique_ptr<Rank>> open_ranks(int count, bool fixed_floats = false) {
  const std::string name = fresh_name();
  std::vector<std::unique_ptr<Rank>> ranks(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      ranks[static_cast<size_t>(r)] =
          std::make_unique<Rank>(name, r, count, Reading::kInPlace, kPayload, 0, fixed_floats);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

// Each rank in turn goes as far as it can. False if nobody can go on before all have finished.
inline bool drive(const std::vector<std::unique_ptr<Rank>>& ranks) {
  while (true) {
    bool idle = true, worked = false;
    for (const auto& rank : ranks) {
      while (rank->core().advance()) worked = true;
      idle &= rank->core().idle();
    }
    if (idle || !worked) return idle;
  }
}

// Floating-point sums in the order of the ranks or, if `fixed_floats`, as the network has them in fixed point, as integer sums: lane
// by lane, with the reference kernels.
template <typename T>
std::vector<T> reference_sum(DataType type, ReduceOp op, const std::vector<std::vector<T>>& inputs,
                             bool fixed_floats = false) {
  const int members = static_cast<int>(inputs.size());
  const size_t count = inputs[0].size();
  const size_t lane_bytes = static_cast<size_t>(kernels::narrow_lane_bits(type, members, 0)) / 8;
  const size_t chunk = kPayload / lane_bytes;
  std::vector<T> sum(count);
  if (is_floating(type) && !fixed_floats) {
    std::vector<const uint8_t*> in_order;
    for (const auto& input : inputs) in_order.push_back(reinterpret_cast<const uint8_t*>(input.data()));
    kernels::plain::sum_in_order(type, in_order, count, op == ReduceOp::kAvg ? members : 1, type, sum.data());
    return sum;
  }
  for (size_t begin = 0; begin < count; begin += chunk) {
    const size_t n = std::min(chunk, count - begin);
    kernels::BlockScale scale;
    for (const auto& input : inputs) {
      const auto part = kernels::plain::scan(type, &input[begin], n, members);
      scale.exponent = std::max(scale.exponent, part.exponent);
      scale.wide = std::max(scale.wide, part.wide);
    }
    const bool wide = scale.wide != 0 || type == DataType::kInt64;
    const bool half = kernels::fits_lanes16(type, members);
    std::vector<uint8_t> lanes(n * 8), more(n * 8);
    for (size_t r = 0; r < inputs.size(); ++r) {
      uint8_t* to = r == 0 ? lanes.data() : more.data();
      if (half && wide) {
        kernels::plain::to_wide_lanes32(type, &inputs[r][begin], n, scale.exponent, members, to);
        if (r > 0) kernels::plain::add_lanes32(lanes.data(), more.data(), n);
      } else if (half) {
        kernels::plain::to_lanes16(type, &inputs[r][begin], n, scale.exponent, members, to);
        if (r > 0) kernels::plain::add_lanes16(lanes.data(), more.data(), n);
      } else if (wide) {
        kernels::plain::to_lanes64(type, &inputs[r][begin], n, scale.exponent, members, to);
        if (r > 0) kernels::plain::add_lanes64(lanes.data(), more.data(), n);
      } else {
        kernels::plain::to_lanes32(type, &inputs[r][begin], n, scale.exponent, members, to);
        if (r > 0) kernels::plain::add_lanes32(lanes.data(), more.data(), n);
      }
    }
    const bool average = op == ReduceOp::kAvg;
    if (half && wide) {
      kernels::plain::from_wide_lanes32(type, lanes.data(), n, scale.exponent, members, average, &sum[begin]);
    } else if (half) {
      kernels::plain::from_lanes16(type, lanes.data(), n, scale.exponent, members, average, &sum[begin]);
    } else if (wide) {
      EXPECT_TRUE(
          kernels::plain::from_lanes64(type, lanes.data(), n, scale.exponent, members, average, &sum[begin]));
    } else {
      kernels::plain::from_lanes32(type, lanes.data(), n, scale.exponent, members, average, &sum[begin]);
    }
  }
  return sum;
}

template <typename T>
T random_element(DataType type, Rng& rng) {
  if constexpr (sizeof(T) == 2) {
    // Any bits, NaNs and infinities among them, though not everywhere.
    const auto bits = static_cast<uint16_t>(rng.next());
    return rng.chance(0.999) ? static_cast<uint16_t>(bits & 0xBBFF) : bits;
  } else if constexpr (std::is_floating_point_v<T>) {
    if (rng.chance(0.0002)) return rng.chance(0.5) ? NAN : (rng.chance(0.5) ? INFINITY : -INFINITY);
    return static_cast<T>((rng.unit() - 0.5) * std::exp2(static_cast<double>(rng.below(40)) - 20));
  } else {
    const bool large = rng.chance(0.001);
    const int bits = type == DataType::kInt64 ? (large ? 60 : 40) : (large ? 28 : 20);
    return static_cast<T>(static_cast<int64_t>(rng.below(uint64_t{1} << bits)) - (int64_t{1} << (bits - 1)));
  }
}

// The same operation on all ranks, with random inputs.
template <typename T>
void expect_reference(DataType type, ReduceOp op, int ranks, size_t count, uint64_t seed,
                      Reading reading = Reading::kNever, bool fixed_floats = false) {
  SCOPED_TRACE(std::string(data_type_name(type)) + (fixed_floats ? ", fixed, " : ", ") +
               std::to_string(ranks) + " ranks, " + std::to_string(count) + " elements, seed " +
               std::to_string(seed));
  std::vector<std::vector<T>> inputs(static_cast<size_t>(ranks), std::vector<T>(count));
  Rng rng(seed);
  for (auto& input : inputs)
    for (T& x : input) x = random_element<T>(type, rng);
  const std::vector<T> expected = reference_sum(type, op, inputs, fixed_floats);
  run_ranks(
      ranks,
      [&](int r, Rank& rank) {
        std::vector<T> data = inputs[static_cast<size_t>(r)];  // in place
        if (reading == Reading::kInPlace) rank.submit_first();
        rank.submit(type, op, {{data.data(), data.data(), count}});
        const Status status = rank.finish();
        ASSERT_TRUE(status.ok()) << status.to_string();
        EXPECT_EQ(std::memcmp(data.data(), expected.data(), count * sizeof(T)), 0) << "rank " << r;
        EXPECT_EQ(rank.core().counters().bytes_read_in_place.get() > 0,
                  reading == Reading::kInPlace && ranks > 1);
      },
      reading, fixed_floats);
}

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_TEST_RANKS_H_
