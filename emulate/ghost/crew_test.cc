#include "emulate/ghost/crew.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>
#include <tuple>

#include "emulate/ghost/operation.h"
#include "netsum/communicator.h"
#include "session/job_testing.h"
#include "src/program/values.h"

namespace netsum::ghost::crew_test {
namespace {

using program::Instruction;
using testing::HasSubstr;

constexpr std::chrono::seconds kPatience{60};  // only a hang makes it this long
constexpr int kRanks = 4;
constexpr size_t kCount = 3'000;

CommunicatorOptions options_for(const Aggregator& aggregator) {
  CommunicatorOptions options;
  options.world_size = kRanks;
  options.job = "ghosts";
  options.aggregators = {aggregator.control_address()};
  options.shared_memory = false;
  options.connect_timeout = options.timeout = kPatience;
  options.liveness_timeout = kPatience;  // a busy machine is no loss
  return options;
}

// Submits the operations one by one.
program::Step step_of(std::vector<program::Operation> operations) {
  program::Step step;
  step.threads.resize(1);
  for (uint64_t i = 0; i < operations.size(); ++i) {
    step.threads[0].push_back({Instruction::Kind::kSubmit, i});
    step.threads[0].push_back({Instruction::Kind::kWait, i});
  }
  step.operations = std::move(operations);
  return step;
}

Result<std::unique_ptr<Crew>> join(const CommunicatorOptions& options, const program::Step& step,
                                   int rack_size = 1) {
  CrewOptions crew;
  crew.rack_size = rack_size;
  crew.communicator = options;
  for (int rank = 1; rank < kRanks; ++rank)
    crew.ghosts.push_back({.rank = rank, .steps = {&step, &step}, .knobs = {}});
  crew.in_place_of = [](int, const std::function<Status()>& open) { return open(); };
  return Crew::join(std::move(crew));
}

// How floats are added, and of how many ghosts a rack is.
class CrewTest : public testing::TestWithParam<std::tuple<Numerics, int>> {};

TEST(Pause, IsForMembersWithManyPacketsOnTheirWay) {
  const auto of = [](std::vector<Flight> members) { return pause_us(members); };
  EXPECT_GT(of({{.packets = 192, .round_trip_us = 23'000}, {.packets = 100, .round_trip_us = 23'000}}), 0);
  EXPECT_GT(of({{.packets = 192, .round_trip_us = 23'000}, {.packets = 0, .round_trip_us = 20}}), 0);
  EXPECT_EQ(of({{.packets = 192, .round_trip_us = 23'000}, {.packets = 3, .round_trip_us = 23'000}}), 0)
      << "the last packets";
  EXPECT_EQ(of({{.packets = 192, .round_trip_us = 200}}), 0) << "a fast link";
  EXPECT_EQ(of({{.packets = 0, .round_trip_us = 23'000}}), 0);
  EXPECT_EQ(of({}), 0);
}

// The real rank gets what it has sent, and cannot tell ghosts from ranks.
TEST_P(CrewTest, GhostsTakePartInEachCollective) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  CommunicatorOptions options = options_for(*aggregator);
  const auto [numerics, rack_size] = GetParam();
  options.numerics = numerics;
  using program::Collective;
  const program::Step step = step_of({
      {.collective = Collective::kAllReduce, .count = kCount},
      {.collective = Collective::kAllReduce, .count = 10, .parts = {4, 6}, .op = ReduceOp::kAvg, .tag = 3},
      {.collective = Collective::kAllReduce, .type = DataType::kInt64, .count = 5},
      {.collective = Collective::kAllReduce, .type = DataType::kInt32, .count = kCount, .op = ReduceOp::kMin},
      {.collective = Collective::kReduce, .count = kCount, .root = 0},
      {.collective = Collective::kReduceScatter, .count = 4 * kCount},
      {.collective = Collective::kBroadcast, .count = kCount, .root = 0, .tag = 7},
      {.collective = Collective::kAllGather, .count = 4 * kCount, .tag = 7},
      {.collective = Collective::kBarrier},
  });
  Status ran = {ErrorCode::kInternal, "not run"};
  std::vector<uint64_t> sent;
  std::thread ghosts([&, of = rack_size] {
    auto crew = join(options, step, of);
    ran = crew.ok() ? (*crew)->run() : crew.status();
    for (size_t i = 0; crew.ok() && i < 3; ++i)
      if ((*crew)->bytes_sent(i) > 0) sent.push_back((*crew)->bytes_sent(i));
  });
  auto communicator = Communicator::connect(options);
  if (!communicator.ok()) ghosts.join();
  ASSERT_TRUE(communicator.ok()) << communicator.status().to_string();
  Communicator& real = **communicator;
  std::vector<float> in(4 * kCount), out(4 * kCount);
  std::iota(in.begin(), in.end(), 1.0f);
  std::vector<int32_t> integers(kCount, -5), least(kCount);
  std::vector<int64_t> longs = {1, -2, 3, -4, 5}, sums(5);
  const auto ends = [](const Work& work) {
    const Status status = work.wait(kPatience);
    EXPECT_TRUE(status.ok()) << status.to_string();
  };
  const auto parts = [&](size_t inputs, auto size) {
    std::vector<std::remove_cvref_t<decltype(size(nullptr, nullptr))>> views;
    for (size_t r = 0; r < kRanks; ++r)
      views.push_back(size(r < inputs ? in.data() + r * kCount : nullptr, out.data() + r * kCount));
    return views;
  };
  for (int round = 0; round < 2; ++round) {
    const TensorView whole{in.data(), out.data(), kCount};
    ends(real.all_reduce({&whole, 1}, {}));
    // In fixed point, a packet of larger numbers has a coarser grid: numerics.md.
    for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(out[i], in[i], 1e-3f) << i;
    const std::vector<TensorView> two = {{in.data(), out.data(), 4}, {in.data() + 4, out.data() + 4, 6}};
    ends(real.all_reduce(two, {.op = ReduceOp::kAvg, .tag = 3}));
    EXPECT_FLOAT_EQ(out[9], 10.0f / kRanks);
    const TensorView of_longs{longs.data(), sums.data(), 5};
    ends(real.all_reduce({&of_longs, 1}, {.type = DataType::kInt64}));
    EXPECT_EQ(sums, longs);
    const TensorView of_integers{integers.data(), least.data(), kCount};
    ends(real.all_reduce({&of_integers, 1}, {.type = DataType::kInt32, .op = ReduceOp::kMin}));
    EXPECT_EQ(least, integers);
    ends(real.reduce({&whole, 1}, 0, {}));
    EXPECT_NEAR(out[kCount - 1], in[kCount - 1], 1e-3f);
    ends(real.reduce_scatter(parts(kRanks,
                                   [](float* from, float* to) {
                                     return TensorView{from, to, kCount};
                                   }),
                             {}));
    EXPECT_NEAR(out[7], in[7], 1e-3f);
    const BufferView buffer{in.data(), nullptr, kCount * sizeof(float)};
    ends(real.broadcast({&buffer, 1}, 0, {.tag = 7}));
    ends(real.all_gather(parts(1,
                               [](float* from, float* to) {
                                 return BufferView{from, to, kCount * sizeof(float)};
                               }),
                         {.tag = 7}));
    EXPECT_EQ(out[kCount - 1], in[kCount - 1]);
    EXPECT_EQ(out[kCount], 0.0f) << "of a ghost";
    ends(real.start_barrier(kPatience));
  }
  ghosts.join();
  EXPECT_TRUE(ran.ok()) << ran.to_string();
  ASSERT_EQ(sent.size(), rack_size == 1 ? 3u : 2u) << "a rack sends one stream";
  // Ghosts have no data to send in broadcasts and all-gathers of one rank, but send their own parts.
  const uint64_t of_sums = uint64_t{2} * sizeof(float) * kCount * 7;
  for (const uint64_t bytes : sent) EXPECT_GT(bytes, of_sums) << "lanes were left out";
}

INSTANTIATE_TEST_SUITE_P(NumericsAndRacks, CrewTest,
                         testing::Combine(testing::Values(Numerics::kAuto, Numerics::kFixed),
                                          testing::Values(1, 2)));

TEST(Crew, ARackTakesPartForEachOfItsRanks) {
  using program::Collective;
  const auto there = [](const program::Operation& operation) {
    std::string text;
    for (const TensorView& tensor : spec_of(operation, 1, 4, 2).tensors)
      text += std::string(tensor.input != nullptr ? "i" : "-") + (tensor.output != nullptr ? "o" : "-");
    return text;
  };
  EXPECT_EQ(there({.collective = Collective::kAllReduce, .count = 8}), "io");
  EXPECT_EQ(there({.collective = Collective::kAllGather, .count = 8}), "-oioio-o");
  EXPECT_EQ(there({.collective = Collective::kReduceScatter, .count = 8}), "i-ioioi-");
  EXPECT_EQ(there({.collective = Collective::kBroadcast, .count = 8, .root = 2}), "io");
  EXPECT_EQ(there({.collective = Collective::kBroadcast, .count = 8, .root = 3}), "-o");
  EXPECT_EQ(there({.collective = Collective::kScatter, .count = 8, .root = 2}), "i-ioioi-");
  EXPECT_EQ(there({.collective = Collective::kGather, .count = 8, .root = 0}), "--i-i---");
}

TEST(Crew, ARackSendsWhenTheLastOfItHasSubmitted) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  const CommunicatorOptions options = options_for(*aggregator);
  const program::Step step = step_of({{.count = kCount}});
  Status ran;
  int64_t last_ns = 0, done_ns = 0;
  std::thread ghosts([&] {
    CrewOptions crew;
    crew.communicator = options;
    crew.rack_size = 3;
    for (int rank = 1; rank < kRanks; ++rank)
      crew.ghosts.push_back({.rank = rank, .steps = {&step}, .knobs = {}});
    crew.ghosts[1].knobs.pauses_ns[0] = 100'000'000;
    crew.in_place_of = [](int, const std::function<Status()>& open) { return open(); };
    auto joined = Crew::join(std::move(crew));
    ran = joined.ok() ? (*joined)->run() : joined.status();
    if (!ran.ok()) return;
    last_ns = (*joined)->player(1).submitted_ns()[0];
    done_ns = (*joined)->player(0).done_ns()[0];
  });
  auto real = Communicator::connect(options);
  std::vector<float> values(kCount, 1);
  const TensorView view{values.data(), values.data(), values.size()};
  const Status status = real.ok() ? (*real)->all_reduce({&view, 1}, {}).wait(kPatience) : real.status();
  ghosts.join();
  EXPECT_TRUE(status.ok()) << status.to_string();
  ASSERT_TRUE(ran.ok()) << ran.to_string();
  EXPECT_GT(done_ns, last_ns);
}

// Ranks 0 and 1 are a group, and so are 2 and 3, of which no rank is real.
TEST(Crew, GhostsTakePartInTheirGroups) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  const CommunicatorOptions options = options_for(*aggregator);
  const program::Step step = step_of({{.count = kCount}, {.count = kCount, .group = 1}, {.count = kCount}});
  Status ran;
  std::vector<int64_t> submitted, done;
  std::thread ghosts([&] {
    CrewOptions crew;
    crew.communicator = options;
    for (int rank = 1; rank < kRanks; ++rank)
      crew.ghosts.push_back({.rank = rank,
                             .groups = {{.id = 0, .ranks = {0, 1, 2, 3}, .job = options.job},
                                        rank == 1 ? GroupJob{.id = 1, .ranks = {0, 1}, .job = "a pair"}
                                                  : GroupJob{.id = 1, .ranks = {2, 3}, .job = "of ghosts"}},
                             .steps = {&step},
                             .knobs = {}});
    crew.in_place_of = [](int, const std::function<Status()>& open) { return open(); };
    auto joined = Crew::join(std::move(crew));
    ran = joined.ok() ? (*joined)->run() : joined.status();
    if (joined.ok()) {
      submitted = (*joined)->player(2).submitted_ns();
      done = (*joined)->player(2).done_ns();
    }
  });
  auto all = Communicator::connect(options);
  std::vector<float> in(kCount, 3), out(kCount);
  const TensorView view{in.data(), out.data(), kCount};
  const auto sum = [&](Communicator& in_group) {
    const Status status = in_group.all_reduce({&view, 1}, {}).wait(kPatience);
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(out[kCount - 1], 3);
  };
  // The script makes the group after the first sum: ghosts do not wait for it before.
  if (all.ok()) sum(**all);
  CommunicatorOptions of_pair = options;
  of_pair.job = "a pair";
  of_pair.world_size = 2;
  auto pair = Communicator::connect(of_pair);
  if (pair.ok()) sum(**pair);
  if (all.ok()) sum(**all);
  ghosts.join();
  EXPECT_TRUE(all.ok() && pair.ok()) << pair.status().to_string();
  EXPECT_TRUE(ran.ok()) << ran.to_string();
  ASSERT_EQ(submitted.size(), 3u);
  EXPECT_TRUE(std::is_sorted(submitted.begin(), submitted.end()));
  EXPECT_LT(done[1], INT64_MAX) << "among the ghosts";
}

// The ghosts wait for a group that the real rank of it never makes, until it has left.
TEST(Crew, AGroupThatIsNeverMadeIsAnErrorThatNamesIt) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  const CommunicatorOptions options = options_for(*aggregator);
  const program::Step step = step_of({{.count = kCount}, {.count = kCount, .group = 1}});
  Status ran;
  bool has_all_groups = true;
  std::thread ghosts([&] {
    CrewOptions crew;
    crew.communicator = options;
    crew.communicator.timeout = std::chrono::seconds(4);  // until the joins of the group end
    for (int rank = 1; rank < kRanks; ++rank)
      crew.ghosts.push_back({.rank = rank,
                             .groups = {{.id = 0, .ranks = {0, 1, 2, 3}, .job = options.job},
                                        {.id = 1, .ranks = {0, 1, 2, 3}, .job = "never made"}},
                             .steps = {&step},
                             .knobs = {}});
    crew.in_place_of = [](int, const std::function<Status()>& open) { return open(); };
    auto joined = Crew::join(std::move(crew));
    ran = joined.ok() ? (*joined)->run() : joined.status();
    if (joined.ok()) has_all_groups = (*joined)->has_all_groups();
  });
  {
    auto all = Communicator::connect(options);
    std::vector<float> values(kCount, 3);
    const TensorView view{values.data(), values.data(), kCount};
    EXPECT_TRUE(all.ok() && (*all)->all_reduce({&view, 1}, {}).wait(kPatience).ok());
  }
  ghosts.join();
  EXPECT_FALSE(has_all_groups);
  EXPECT_EQ(ran.code(), ErrorCode::kMismatch) << ran.to_string();
  EXPECT_THAT(ran.message(), HasSubstr("ghost 1 has a call of the group of ranks 0, 1, 2, 3 in step 0 of its "
                                       "record, but the script has ended without making that group"));
}

// What the real rank gets with noise is what the ghosts have added, of the recorded magnitude; and it is there.
TEST(Crew, GhostsContributeNoise) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  for (const Numerics numerics : {Numerics::kAuto, Numerics::kFixed}) {
    CommunicatorOptions options = options_for(*aggregator);
    options.numerics = numerics;
    const std::vector<uint8_t> scales((kCount + 359) / 360, 128);  // 2 to 4
    const program::Step step = step_of({{.count = kCount, .scales = scales}});
    Status ran;
    std::thread ghosts([&] {
      CrewOptions crew;
      crew.communicator = options;
      crew.contributions = Contributions::kNoise;
      for (int rank = 1; rank < kRanks; ++rank)
        crew.ghosts.push_back({.rank = rank, .steps = {&step}, .knobs = {}});
      crew.in_place_of = [](int, const std::function<Status()>& open) { return open(); };
      auto joined = Crew::join(std::move(crew));
      ran = joined.ok() ? (*joined)->run() : joined.status();
    });
    auto real = Communicator::connect(options);
    std::vector<float> values(kCount, 100);
    const TensorView view{values.data(), values.data(), kCount};
    const Status status = real.ok() ? (*real)->all_reduce({&view, 1}, {}).wait(kPatience) : real.status();
    ghosts.join();
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(ran.ok()) << ran.to_string();
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    EXPECT_TRUE(*least > 100 - 3 * 4 && *least < 100 - 4) << *least;
    EXPECT_TRUE(*most < 100 + 3 * 4 && *most > 100 + 4) << *most;
    // Of independent noise 0.1 %, of the same one of all ghosts 6 %.
    const auto far = std::count_if(values.begin(), values.end(), [](float value) { return value > 110.5f; });
    EXPECT_LT(far, static_cast<std::ptrdiff_t>(kCount / 50));
  }
}

// What the ghosts have sent in the run that was recorded: rank r has r + 1 everywhere, but 10 more in its last element.
TEST(Crew, GhostsContributeRecordedValues) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  using program::Collective;
  const program::Step step = step_of({
      {.collective = Collective::kAllReduce, .count = kCount},
      {.collective = Collective::kAllReduce, .count = 5},
      {.collective = Collective::kAllReduce, .type = DataType::kInt64, .count = 5},
      {.collective = Collective::kAllReduce, .type = DataType::kInt32, .count = kCount, .op = ReduceOp::kMax},
      {.collective = Collective::kReduceScatter, .count = kRanks * kCount},
      {.collective = Collective::kAllGather, .count = kRanks * kCount},
  });
  const auto bytes_of = [](const program::Operation& operation, int rank) {
    std::vector<uint8_t> bytes;
    const auto count = program::contributed_by(operation, rank, kRanks).count;
    for (uint64_t i = 0; i < count; ++i) {
      const int value = rank + 1 + (i + 1 == count ? 10 : 0);
      const auto put = [&](auto as) {
        const auto* const first = reinterpret_cast<const uint8_t*>(&as);
        bytes.insert(bytes.end(), first, first + sizeof as);
      };
      if (operation.type == DataType::kInt64) put(static_cast<int64_t>(value));
      if (operation.type == DataType::kInt32) put(static_cast<int32_t>(value));
      if (operation.type == DataType::kFloat32) put(static_cast<float>(value));
    }
    return bytes;
  };
  for (const Numerics numerics : {Numerics::kAuto, Numerics::kFixed}) {
    SCOPED_TRACE(static_cast<int>(numerics));
    CommunicatorOptions options = options_for(*aggregator);
    options.numerics = numerics;
    std::vector<program::Step> steps(kRanks, step);  // of each rank its own
    std::vector<std::vector<uint8_t>> values;
    values.reserve(kRanks * step.operations.size());
    CrewOptions crew;
    crew.communicator = options;
    crew.contributions = Contributions::kRecorded;
    crew.in_place_of = [](int, const std::function<Status()>& open) { return open(); };
    for (int rank = 1; rank < kRanks; ++rank) {
      const program::Step& own = steps[static_cast<size_t>(rank)];
      crew.ghosts.push_back({.rank = rank, .steps = {&own}, .knobs = {}});
      for (const program::Operation& operation : own.operations) {
        values.push_back(bytes_of(operation, rank));
        crew.values[&operation] = values.back();
      }
    }
    Status ran;
    std::thread ghosts([&] {
      auto joined = Crew::join(std::move(crew));
      ran = joined.ok() ? (*joined)->run() : joined.status();
    });
    auto real = Communicator::connect(options);
    std::vector<Work> works;
    std::vector<std::vector<uint8_t>> in, out;
    for (const program::Operation& operation : step.operations) {
      in.push_back(bytes_of(operation, 0));
      out.emplace_back(operation.count * size_of(operation.type));
    }
    const auto sum = [&](size_t i) {
      const TensorView view{in[i].data(), out[i].data(), step.operations[i].count};
      return (*real)->all_reduce({&view, 1}, {.type = step.operations[i].type, .op = step.operations[i].op});
    };
    if (real.ok()) {
      for (size_t i = 0; i < 4; ++i) works.push_back(sum(i));
      std::vector<TensorView> parts;
      std::vector<BufferView> buffers;
      for (size_t rank = 0; rank < kRanks; ++rank) {
        const size_t begin = rank * kCount * sizeof(float);
        parts.push_back({in[4].data() + begin, rank == 0 ? out[4].data() : nullptr, kCount});
        buffers.push_back(
            {rank == 0 ? in[5].data() : nullptr, out[5].data() + begin, kCount * sizeof(float)});
      }
      works.push_back((*real)->reduce_scatter(parts, {}));
      works.push_back((*real)->all_gather(buffers, {}));
    }
    for (const Work& work : works) EXPECT_TRUE(work.wait(kPatience).ok());
    ghosts.join();
    ASSERT_TRUE(real.ok()) << real.status().to_string();
    EXPECT_TRUE(ran.ok()) << ran.to_string();
    const auto at = [&](size_t operation, size_t i, auto as) {
      std::memcpy(&as, out[operation].data() + i * sizeof as, sizeof as);
      return as;
    };
    EXPECT_FLOAT_EQ(at(0, 0, 0.0f), 1 + 2 + 3 + 4);
    EXPECT_FLOAT_EQ(at(0, kCount - 1, 0.0f), 1 + 2 + 3 + 4 + 4 * 10);
    EXPECT_FLOAT_EQ(at(1, 3, 0.0f), 1 + 2 + 3 + 4);
    EXPECT_EQ(at(2, 4, int64_t{}), 1 + 2 + 3 + 4 + 4 * 10);
    EXPECT_EQ(at(3, 7, int32_t{}), 4);
    EXPECT_EQ(at(3, kCount - 1, int32_t{}), 14);
    EXPECT_FLOAT_EQ(at(4, kCount - 1, 0.0f), 1 + 2 + 3 + 4);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(at(5, rank * kCount, 0.0f), static_cast<float>(rank + 1)) << rank;
      EXPECT_EQ(at(5, (rank + 1) * kCount - 1, 0.0f), static_cast<float>(rank + 11)) << rank;
    }
  }
}

// In a third of the chunks, the exponent that the ranks agree on changes from step to step, and that because of a ghost.
TEST(Crew, PredictsScalesAsOftenAsRealRanks) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  constexpr size_t kChunks = 60, kSteps = 10, kElements = program::kScaleElements;
  CommunicatorOptions options = options_for(*aggregator);
  options.numerics = Numerics::kFixed;
  std::vector<std::vector<std::vector<float>>> data(kRanks);  // [rank][step]
  std::vector<std::vector<program::Step>> steps(kRanks);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t k = 0; k < kSteps; ++k) {
      std::vector<uint8_t> scales;
      std::vector<float>& values = data[rank].emplace_back();
      for (size_t chunk = 0; chunk < kChunks; ++chunk) {
        const float value = rank == 1 && chunk % 3 == 0 ? (k % 2 == 0 ? 4.0f : 16.0f) : 1.0f;
        values.resize(values.size() + kElements, value);
        scales.push_back(static_cast<uint8_t>(std::bit_cast<uint32_t>(value) >> 23));
      }
      steps[rank].push_back(step_of({{.count = kChunks * kElements, .scales = scales}}));
    }
  }
  const auto train = [&](Communicator* communicator, size_t rank) {
    std::vector<float> out(kChunks * kElements);
    for (size_t k = 0; k < kSteps; ++k) {
      const TensorView view{data[rank][k].data(), out.data(), out.size()};
      EXPECT_TRUE(communicator->all_reduce({&view, 1}, {}).wait(kPatience).ok());
    }
  };
  // The share of chunks that rank 0 sends at once, and rightly.
  const auto predicted = [&](const std::optional<Contributions>& of_ghosts) {
    std::vector<std::thread> others;
    if (of_ghosts) {
      others.emplace_back([&] {
        CrewOptions crew;
        crew.communicator = options;
        crew.contributions = *of_ghosts;
        crew.in_place_of = [](int, const std::function<Status()>& open) { return open(); };
        for (int rank = 1; rank < kRanks; ++rank) {
          crew.ghosts.push_back({.rank = rank, .steps = {}, .knobs = {}});
          for (const program::Step& step : steps[static_cast<size_t>(rank)])
            crew.ghosts.back().steps.push_back(&step);
        }
        auto joined = Crew::join(std::move(crew));
        EXPECT_TRUE(joined.ok() && (*joined)->run().ok());
      });
    } else {
      for (int rank = 1; rank < kRanks; ++rank)
        others.emplace_back([&, rank] {
          CommunicatorOptions own = options;
          own.rank = rank;
          auto communicator = Communicator::connect(own);
          ASSERT_TRUE(communicator.ok()) << communicator.status().to_string();
          train(communicator->get(), static_cast<size_t>(rank));
        });
    }
    auto communicator = Communicator::connect(options);
    EXPECT_TRUE(communicator.ok());
    if (communicator.ok()) train(communicator->get(), 0);
    for (std::thread& other : others) other.join();
    const CommunicatorStats stats = communicator.ok() ? (*communicator)->stats() : CommunicatorStats();
    return static_cast<double>(stats.scales_predicted - stats.scales_mispredicted) / (kChunks * kSteps);
  };
  const double real = predicted(std::nullopt);
  EXPECT_GT(real, 0.3);
  EXPECT_NEAR(predicted(Contributions::kScales), real, 0.05);
  EXPECT_GT(predicted(Contributions::kZeros), real + 0.05) << "the data of rank 0 alone changes nothing";
}

TEST(Crew, RefusesWhatGhostsCannotDo) {
  CrewOptions options;
  options.ghosts.resize(1);
  EXPECT_THAT(Crew::join(options).status().message(), HasSubstr("need an aggregator"));
  options.communicator.aggregators = {"127.0.0.1:1"};
  options.communicator.verify = Verify::kBoth;
  EXPECT_THAT(Crew::join(options).status().message(), HasSubstr("NETSUM_VERIFY"));
  options.communicator.verify = Verify::kPacket;
  program::Step step = step_of({{.collective = program::Collective::kSend, .root = 1}});
  step.number = 8;
  options.ghosts[0].steps = {&step};
  const Status status = Crew::join(options).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("step 8: send is between single ranks"));
  options.rack_size = 2;
  options.ghosts[0].groups.resize(2);
  EXPECT_THAT(Crew::join(options).status().message(),
              HasSubstr("ghost racks take part in the group of all ranks"));
  options.ghosts[0].groups.clear();
  step = step_of({{.collective = program::Collective::kAllReduce, .on_hosts = true}});
  EXPECT_THAT(Crew::join(options).status().message(), HasSubstr("ran on the hosts"));
}

// Ranks that submit something else get an error that names it, as among real ranks.
TEST(Crew, AnotherProgramIsAMismatch) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  const CommunicatorOptions options = options_for(*aggregator);
  const program::Step step = step_of({{.count = kCount}});
  Status ran;
  std::thread ghosts([&] {
    auto crew = join(options, step);
    ran = crew.ok() ? (*crew)->run() : crew.status();
  });
  auto communicator = Communicator::connect(options);
  if (!communicator.ok()) ghosts.join();
  ASSERT_TRUE(communicator.ok()) << communicator.status().to_string();
  std::vector<float> values(kCount + 1);
  const TensorView view{values.data(), values.data(), values.size()};
  const Status status = (*communicator)->all_reduce({&view, 1}, {}).wait(kPatience);
  EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
  ghosts.join();
  EXPECT_FALSE(ran.ok());
}

}  // namespace
}  // namespace netsum::ghost::crew_test
