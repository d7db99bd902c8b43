// Compressed all-reduces through the public API, on several data paths: ranks are threads of this process.
#include "netsum/compression.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "netsum/sparse.h"
#include "session/placed_job_testing.h"
#include "src/base/rng.h"

namespace netsum::compression_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = PlacedJob::kRanks;
constexpr int kSteps = 3;
constexpr size_t kCount = 5000;
constexpr size_t kRows = 50;

class CompressionTest : public testing::TestWithParam<Place> {};

INSTANTIATE_TEST_SUITE_P(Places, CompressionTest,
                         testing::Values(Place::kShards, Place::kAggregator, Place::kOneHost), place_name);

std::vector<float> gradient(int rank, int step) {
  Rng rng(static_cast<uint64_t>(100 * step + rank + 1));
  std::vector<float> values(kCount);
  for (float& value : values) value = static_cast<float>(std::pow(2 * rng.unit() - 1, 5));
  return values;
}

std::shared_ptr<const Compression> made(const CompressionOptions& options) {
  auto compression = Compression::make(options);
  EXPECT_TRUE(compression.ok()) << compression.status().to_string();
  return std::move(compression).value();
}

// Of all ranks: what they have received in all steps, what they still have in their residuals, and the output of a first rank.
struct Totals {
  std::vector<double> gradients = std::vector<double>(kCount, 0);
  std::vector<double> received = std::vector<double>(kCount, 0);
  std::vector<double> residuals = std::vector<double>(kCount, 0);
  std::vector<std::vector<float>> first = std::vector<std::vector<float>>(kSteps);  // in each step
};

// What the ranks have received and what they still keep is all that they have had: nothing gets lost or is added.
TEST_P(CompressionTest, WhatIsReceivedAndWhatRemainsIsTheSumOfAllGradients) {
  PlacedJob job(GetParam());
  const CompressionOptions methods[] = {
      {.method = "none"},
      {.method = "topk", .ratio = 0.02},
      {.method = "topk", .path = "gather", .ratio = 0.02},
      {.method = "sidco", .ratio = 0.02},
      {.method = "sidco", .path = "gather", .ratio = 0.02},
      {.method = "randomk", .ratio = 0.05},
      {.method = "threshold", .threshold = 0.25},
      {.method = "fp16", .memory = "residual"},
      {.method = "bf16", .memory = "residual", .path = "gather"},
      {.method = "efsign"},
      {.method = "onebit"},
      {.method = "int8"},
      {.method = "int4", .rotated = true},
      {.method = "thc", .block = 512},
      {.method = "blocktopk", .ratio = 0.05, .block = 64},
      {.method = "powersgd"},
      {.method = "natural", .memory = "residual"},
      {.method = "u8bit"},
      {.method = "fp8_e4m3"},
      {.method = "fp8_e5m2", .block = 32},
      {.method = "inceptionn"},
      {.method = "sketch"},
      {.method = "adaq"},
      {.method = "chunktopk", .k = 10},
      {.method = "dcttopk", .k = 4, .block = 64},
      {.method = "dcttopk", .path = "gather", .k = 4, .block = 64},
  };
  std::vector<std::shared_ptr<const Compression>> compressions;
  for (const CompressionOptions& options : methods) compressions.push_back(made(options));
  std::mutex mutex;
  std::vector<Totals> totals(compressions.size());
  job.run([&](Communicator& communicator) {
    const int rank = communicator.rank();
    for (size_t method = 0; method < compressions.size(); ++method) {
      const auto& compression = compressions[method];
      SCOPED_TRACE(compression->describe());
      Totals& total = totals[method];
      const auto tensor = compression->tensor(7, kCount, rank, kRanks, kRows);
      CompressionBuffers buffers;
      for (int step = 0; step < kSteps; ++step) {
        const auto input = gradient(rank, step);
        std::vector<float> output(kCount, -1);
        const Status status =
            compressed_all_reduce(communicator, *compression, *tensor, input.data(), output.data(), buffers);
        ASSERT_TRUE(status.ok()) << status.to_string();
        const std::lock_guard lock(mutex);
        for (size_t i = 0; i < kCount; ++i) total.gradients[i] += input[i];
        if (rank == 0)
          for (size_t i = 0; i < kCount; ++i) total.received[i] += kRanks * static_cast<double>(output[i]);
        auto& same = total.first[static_cast<size_t>(step)];
        if (same.empty()) same = output;
        EXPECT_EQ(output, same) << "step " << step << ", rank " << rank;
      }
      const std::lock_guard lock(mutex);
      for (const CompressionState& part : tensor->state())
        for (size_t i = 0; part.is_memory && i < kCount; ++i) total.residuals[i] += part.values[i];
    }
  });
  for (size_t method = 0; method < compressions.size(); ++method) {
    SCOPED_TRACE(compressions[method]->describe());
    const Totals& total = totals[method];
    for (size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(total.received[i] + total.residuals[i], total.gradients[i],
                  1e-2 * (methods[method].memory.empty() ? 1e-3 : 1))
          << i;
  }
}

TEST_P(CompressionTest, AValueThatIsNotFiniteReachesAllRanks) {
  PlacedJob job(GetParam());
  std::map<std::string, double> values = {{"threshold", 0.5}};
  std::vector<std::shared_ptr<const Compression>> compressions;
  for (const std::string_view method : compression_methods()) {
    CompressionOptions options{.method = std::string(method)};
    if (method == "threshold") options.threshold = values["threshold"];
    compressions.push_back(made(options));
  }
  job.run([&](Communicator& communicator) {
    for (const auto& compression : compressions) {
      SCOPED_TRACE(compression->describe());
      const auto tensor = compression->tensor(1, kCount, communicator.rank(), kRanks);
      CompressionBuffers buffers;
      for (int step = 0; step < kSteps; ++step) {
        auto data = gradient(communicator.rank(), step);
        if (step == 1 && communicator.rank() == 2) data[4321] = std::numeric_limits<float>::quiet_NaN();
        const Status status =
            compressed_all_reduce(communicator, *compression, *tensor, data.data(), data.data(), buffers);
        ASSERT_TRUE(status.ok()) << status.to_string();
        const bool finite =
            std::all_of(data.begin(), data.end(), [](float value) { return std::isfinite(value); });
        // In the step behind it, nothing of it is left in any memory.
        EXPECT_EQ(finite, step != 1) << step;
      }
    }
  });
}

TEST_P(CompressionTest, LevelsOfACommonScale) {
  PlacedJob job(GetParam());
  const auto compression = made({.method = "qsgd", .levels = 7});
  job.run([&](Communicator& communicator) {
    const auto tensor = compression->tensor(1, kCount, communicator.rank(), kRanks);
    CompressionBuffers buffers;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<double> mean(kCount, 0);
      double largest = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto values = gradient(rank, step);
        for (size_t i = 0; i < kCount; ++i) {
          mean[i] += static_cast<double>(values[i]) / kRanks;
          largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
        }
      }
      auto data = gradient(communicator.rank(), step);
      const Status status =
          compressed_all_reduce(communicator, *compression, *tensor, data.data(), data.data(), buffers);
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_NEAR(data[i], mean[i], largest / 7);
        const double levels = static_cast<double>(data[i]) * kRanks * 7 / largest;
        ASSERT_NEAR(levels, std::round(levels), 1e-3);
      }
    }
  });
}

// As many counts as coefficients travel, and small coefficients stay exact, but in a packet that has both.
TEST_P(CompressionTest, SumsAreDividedByTheNumberOfSenders) {
  constexpr size_t kBlock = 64, kLong = 1000 * kBlock;
  PlacedJob job(GetParam());
  const auto compression = made({.method = "dcttopk", .k = 4, .block = kBlock, .count_senders = true});
  const auto input = [](int rank) {
    Rng rng(static_cast<uint64_t>(rank + 1));
    std::vector<float> values(kLong);
    for (float& value : values) value = 1e-5f * static_cast<float>(std::pow(2 * rng.unit() - 1, 5));
    return values;
  };
  std::vector<float> sums(2 * kLong, 0.0f), payload(2 * kLong), expected(kLong);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto tensor = compression->tensor(1, kLong, rank, kRanks);
    tensor->compress(input(rank).data(), nullptr, payload.data(), nullptr);
    for (size_t i = 0; i < payload.size(); ++i) sums[i] += payload[i];
    if (rank == kRanks - 1) tensor->decompress(sums.data(), nullptr, kRanks, expected.data());
  }
  const auto sent = static_cast<size_t>(
      std::count_if(sums.begin() + kLong, sums.end(), [](float count) { return count > 0; }));
  job.run([&](Communicator& communicator) {
    const auto tensor = compression->tensor(1, kLong, communicator.rank(), kRanks);
    CompressionBuffers buffers;
    auto data = input(communicator.rank());
    const Status status =
        compressed_all_reduce(communicator, *compression, *tensor, data.data(), data.data(), buffers);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(sparse_stats(communicator).sent_elements, 2 * sent);
    size_t coarse = 0;
    for (size_t i = 0; i < kLong; ++i) {
      ASSERT_NEAR(data[i], expected[i], 1e-7);
      coarse += std::fabs(data[i] - expected[i]) > 1e-11f ? 1 : 0;
    }
    EXPECT_LT(coarse, kLong / 10);
  });
}

// Of a step of one rank: what it had, and what it still has.
struct Balance {
  std::vector<double> had = std::vector<double>(kCount, 0);

  void before(CompressedTensor& tensor, const std::vector<float>& gradient) {
    for (size_t i = 0; i < kCount; ++i) had[i] += static_cast<double>(gradient[i]);
    add(tensor, 1);
  }
  void after(CompressedTensor& tensor) { add(tensor, -1); }

 private:
  void add(CompressedTensor& tensor, double factor) {
    for (const CompressionState& part : tensor.state())
      for (size_t i = 0; part.name == "residual" && i < kCount; ++i)
        had[i] += factor * static_cast<double>(part.values[i]);
  }
};

// A step of all ranks of `communicator`: what they have received must be what they have sent. Where ranks add up different elements,
// it is not.
void step_and_check(Communicator& communicator, const Compression& compression, CompressedTensor& tensor,
                    const std::vector<float>& gradient) {
  Balance balance;
  balance.before(tensor, gradient);
  std::vector<float> output(kCount, -1);
  CompressionBuffers buffers;
  const Status status =
      compressed_all_reduce(communicator, compression, tensor, gradient.data(), output.data(), buffers);
  ASSERT_TRUE(status.ok()) << status.to_string();
  balance.after(tensor);
  // In float64, by gathering.
  std::vector<double> all(kCount * static_cast<size_t>(communicator.world_size()));
  std::vector<BufferView> parts;
  for (int r = 0; r < communicator.world_size(); ++r) {
    double* const part = all.data() + static_cast<size_t>(r) * kCount;
    parts.push_back({.input = r == communicator.rank() ? balance.had.data() : nullptr,
                     .output = part,
                     .bytes = kCount * sizeof(double)});
  }
  ASSERT_TRUE(communicator.all_gather(parts, {}).wait().ok());
  for (size_t i = 0; i < kCount; ++i) {
    double sent = 0;
    for (size_t r = 0; r < parts.size(); ++r) sent += all[r * kCount + i];
    ASSERT_NEAR(output[i], sent / communicator.world_size(), 1e-4) << i;
  }
}

// Those whose ranks share random numbers.
const CompressionOptions kOfSharedRandomNumbers[] = {
    {.method = "randomk", .ratio = 0.1},   {.method = "countsketch", .ratio = 0.01},
    {.method = "int8", .rotated = true},   {.method = "int4", .rotated = true},
    {.method = "lanes8", .rotated = true}, {.method = "thc"},
};

CommunicatorOptions options_at(const Aggregator& aggregator) {
  CommunicatorOptions options;
  options.job = "compression";
  options.aggregators = {aggregator.control_address()};
  options.timeout = options.connect_timeout = options.liveness_timeout = std::chrono::seconds(60);
  return options;
}

class StepsTest : public testing::TestWithParam<std::string> {};

// Every method, on each path.
TEST_P(StepsTest, RanksInDifferentStepsGetAMismatch) {
  for (const std::string_view method : compression_methods()) {
    CompressionOptions options{.method = std::string(method), .path = GetParam()};
    if (method == "threshold") options.threshold = 0.5;
    const auto compression = Compression::make(options);
    if (!compression.ok()) continue;  // not this path
    SCOPED_TRACE((*compression)->describe());
    PlacedJob job(Place::kOneHost);
    job.run([&](Communicator& communicator) {
      const auto tensor = (*compression)->tensor(7, kCount, communicator.rank(), kRanks, kRows);
      tensor->set_step(communicator.rank() == 1 ? 4 : 5);
      CompressionBuffers buffers;
      const auto input = gradient(communicator.rank(), 1);
      std::vector<float> output(kCount, -1);
      const Status status =
          compressed_all_reduce(communicator, **compression, *tensor, input.data(), output.data(), buffers);
      EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
      EXPECT_EQ(output, std::vector<float>(kCount, -1));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, StepsTest, testing::Values("dense", "union", "gather"),
                         [](const auto& path) { return path.param; });

// A new process of a rank begins with step 0.
TEST(CompressionLifeTest, ARankThatIsReadmittedIsInTheStepOfTheOthers) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions at = options_at(*aggregator);
  std::barrier ended(3);
  run_ranks(3, at, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    std::vector<std::unique_ptr<CompressedTensor>> tensors;
    std::vector<std::shared_ptr<const Compression>> compressions;
    const auto make = [&] {
      tensors.clear();
      for (const auto& compression : compressions)
        tensors.push_back(compression->tensor(tensors.size(), kCount, rank, 3, kRows));
    };
    for (const CompressionOptions& options : kOfSharedRandomNumbers) compressions.push_back(made(options));
    make();
    for (int step = 0; step < 2; ++step)
      for (size_t t = 0; t < tensors.size(); ++t)
        step_and_check(*communicator, *compressions[t], *tensors[t], gradient(rank, step));
    ended.arrive_and_wait();
    if (rank == 1) communicator->abort("dies");
    EXPECT_FALSE(communicator->barrier(std::chrono::seconds(20)).ok());
    ended.arrive_and_wait();
    if (rank != 1) {
      ASSERT_TRUE(communicator->regroup({.who = RegroupOptions::Who::kAll}).ok());
    } else {
      communicator.reset();
      CommunicatorOptions again = at;
      again.rank = 1;
      again.world_size = 3;
      auto connected = Communicator::connect(again);
      ASSERT_TRUE(connected.ok()) << connected.status().to_string();
      communicator = std::move(connected).value();
      make();
    }
    std::vector<CompressedTensor*> all;
    for (const auto& tensor : tensors) all.push_back(tensor.get());
    const Status agreed = agree_on_steps(*communicator, all);
    ASSERT_TRUE(agreed.ok()) << agreed.to_string();
    for (size_t t = 0; t < tensors.size(); ++t) {
      SCOPED_TRACE(compressions[t]->describe());
      EXPECT_EQ(tensors[t]->step(), 2u);
      step_and_check(*communicator, *compressions[t], *tensors[t], gradient(rank, 2));
    }
  });
}

// An operation may end with success on one rank and with an error on others, which repeat the step.
TEST(CompressionLifeTest, SurvivorsOfALossAreInTheSameStep) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  std::barrier ended(4);
  run_ranks(4, options_at(*aggregator), [&](int rank, std::unique_ptr<Communicator>& communicator) {
    std::vector<std::unique_ptr<CompressedTensor>> tensors;
    std::vector<CompressedTensor*> all;
    std::vector<std::shared_ptr<const Compression>> compressions;
    for (const CompressionOptions& options : kOfSharedRandomNumbers) {
      compressions.push_back(made(options));
      tensors.push_back(compressions.back()->tensor(tensors.size(), kCount, rank, 4, kRows));
      all.push_back(tensors.back().get());
    }
    for (size_t t = 0; t < tensors.size(); ++t)
      step_and_check(*communicator, *compressions[t], *tensors[t], gradient(rank, 0));
    if (rank > 0)
      for (CompressedTensor* const tensor : all) tensor->give_up();
    ended.arrive_and_wait();
    if (rank == 1) communicator->abort("dies");
    EXPECT_FALSE(communicator->barrier(std::chrono::seconds(20)).ok());
    ended.arrive_and_wait();
    if (rank == 1) return;
    ASSERT_TRUE(communicator->regroup({.min_members = 3}).ok());
    const Status agreed = agree_on_steps(*communicator, all);
    ASSERT_TRUE(agreed.ok()) << agreed.to_string();
    for (size_t t = 0; t < tensors.size(); ++t) {
      SCOPED_TRACE(compressions[t]->describe());
      EXPECT_EQ(tensors[t]->step(), 1u);
      step_and_check(*communicator, *compressions[t], *tensors[t], gradient(rank, 1));
    }
    // Other lists of tensors are not taken for each other.
    all.resize(communicator->rank() == 0 ? 2 : 3);
    EXPECT_EQ(agree_on_steps(*communicator, all).code(), ErrorCode::kMismatch);
  });
}

// Whatever part of a step fails, the tensor is as before it.
TEST(CompressionLifeTest, AStepThatFailsIsRepeatedAfterARegroup) {
  std::vector<CompressionOptions> methods;
  for (const std::string_view method : compression_methods()) {
    methods.push_back({.method = std::string(method)});
    if (method == "threshold") methods.back().threshold = 0.5;
  }
  methods.push_back({.method = "powersgd", .path = "gather"});
  methods.push_back({.method = "topk", .path = "gather"});
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  std::barrier ended(4);
  run_ranks(4, options_at(*aggregator), [&](int rank, std::unique_ptr<Communicator>& communicator) {
    struct Own {
      std::shared_ptr<const Compression> compression;
      std::unique_ptr<CompressedTensor> tensor;
      std::vector<std::vector<float>> state;
    };
    std::vector<Own> all;
    const auto state_of = [](CompressedTensor& tensor) {
      std::vector<std::vector<float>> parts;
      for (const CompressionState& part : tensor.state())
        parts.emplace_back(part.values.begin(), part.values.end());
      return parts;
    };
    for (const CompressionOptions& options : methods) {
      auto compression = made(options);
      auto tensor = compression->tensor(all.size(), kCount, rank, 4, kRows);
      all.push_back({std::move(compression), std::move(tensor), {}});
    }
    CompressionBuffers buffers;
    for (Own& own : all) {
      auto values = gradient(rank, 0);
      ASSERT_TRUE(compressed_all_reduce(*communicator, *own.compression, *own.tensor, values.data(),
                                        values.data(), buffers)
                      .ok());
      own.state = state_of(*own.tensor);
    }
    ended.arrive_and_wait();
    if (rank == 1) communicator->abort("dies");
    EXPECT_FALSE(communicator->barrier(std::chrono::seconds(20)).ok());
    ended.arrive_and_wait();
    if (rank == 1) return;
    std::vector<CompressedTensor*> tensors;
    for (Own& own : all) {
      SCOPED_TRACE(own.compression->describe());
      const auto input = gradient(rank, 1);
      for (int attempt = 0; attempt < 2; ++attempt) {
        auto values = input;
        const Status status = compressed_all_reduce(*communicator, *own.compression, *own.tensor,
                                                    values.data(), values.data(), buffers);
        EXPECT_EQ(status.code(), ErrorCode::kAborted) << status.to_string();
        EXPECT_EQ(values, input);
        EXPECT_EQ(state_of(*own.tensor), own.state);
        EXPECT_EQ(own.tensor->step(), 1u);
      }
      tensors.push_back(own.tensor.get());
    }
    ASSERT_TRUE(communicator->regroup({.min_members = 3}).ok());
    ASSERT_TRUE(agree_on_steps(*communicator, tensors).ok());
    for (Own& own : all) {
      SCOPED_TRACE(own.compression->describe());
      const std::string& memory = own.compression->options().memory;
      if (memory == "residual" && own.compression->compressor().traits().mean) {
        step_and_check(*communicator, *own.compression, *own.tensor, gradient(rank, 1));
      } else {
        auto values = gradient(rank, 1);
        EXPECT_TRUE(compressed_all_reduce(*communicator, *own.compression, *own.tensor, values.data(),
                                          values.data(), buffers)
                        .ok());
      }
      EXPECT_EQ(own.tensor->step(), 2u);
    }
  });
}

// A compressor of the program, whose payload says that it is longer than what travels.
class Boaster : public Compressor {
 public:
  std::string_view name() const override { return "boaster"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kNone, .biased = true, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t /*count*/) const override {
    return {.type = DataType::kByte, .count = 64, .varies = true};
  }
  void compress(const CompressionContext& context, std::span<const float> /*values*/,
                std::span<const float> /*agreed*/, float* /*residual*/, void* payload,
                float* /*side*/) const override {
    const uint64_t length = context.rank == 2 ? lie_ : 16;
    std::memcpy(payload, &length, sizeof length);
  }
  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* /*payload*/, const float* /*side*/, int /*contributions*/, std::span<float> out,
                  float* /*residual*/) const override {
    std::fill(out.begin(), out.end(), 0.0f);
  }
  explicit Boaster(uint64_t lie) : lie_(lie) {}

 private:
  uint64_t lie_;
};

void expect_no_payload_of_rank_2(Communicator& communicator, const Compression& compression,
                                 CompressedTensor& tensor) {
  CompressionBuffers buffers;
  std::vector<float> values(10, 1);
  const Status status =
      compressed_all_reduce(communicator, compression, tensor, values.data(), values.data(), buffers);
  EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
  EXPECT_EQ(status.rank(), 2);
}

TEST(CompressionSettingsTest, WhatIsNoPayloadIsAMismatch) {
  for (const uint64_t lie : {uint64_t{0}, uint64_t{7}, uint64_t{65}, uint64_t{80}}) {
    PlacedJob job(Place::kOneHost);
    const auto compression = Compression::make(std::make_shared<Boaster>(lie), {.memory = "none"});
    ASSERT_TRUE(compression.ok()) << compression.status().to_string();
    job.run([&](Communicator& communicator) {
      const auto tensor = (*compression)->tensor(7, 10, communicator.rank(), kRanks);
      expect_no_payload_of_rank_2(communicator, **compression, *tensor);
    });
  }
}

// Rank 2 is another version, whose payload is longer than what it has sent.
TEST(CompressionSettingsTest, APayloadLongerThanWhatCameIsAMismatch) {
  PlacedJob job(Place::kOneHost);
  const auto compression = Compression::make(std::make_shared<Boaster>(16), {.memory = "none"});
  ASSERT_TRUE(compression.ok()) << compression.status().to_string();
  job.run([&](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto tensor = (*compression)->tensor(7, 10, rank, kRanks);
    if (rank == 2) {
      constexpr size_t kSent = 16;
      std::vector<uint64_t> sizes(kRanks, 0), payloads(kRanks * kSent / 8, 0);
      sizes[2] = kSent;
      payloads[2 * kSent / 8] = kSent + 1;
      for (auto& [words, bytes] : {std::pair{&sizes, sizeof(uint64_t)}, std::pair{&payloads, kSent}}) {
        std::vector<BufferView> parts;
        for (size_t r = 0; r < kRanks; ++r) {
          uint64_t* const part = words->data() + r * bytes / 8;
          parts.push_back({.input = r == 2 ? part : nullptr, .output = part, .bytes = bytes});
        }
        const Status status = communicator.all_gather(parts, {.tag = tensor->tag()}).wait();
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
      return;
    }
    expect_no_payload_of_rank_2(communicator, **compression, *tensor);
  });
}

TEST(CompressionSettingsTest, RanksThatDifferAreToldOnAllRanks) {
  PlacedJob job(Place::kOneHost);
  job.run([](Communicator& communicator) {
    CompressionOptions options{.method = "topk", .ratio = communicator.rank() == 2 ? 0.1 : 0.01};
    const auto compression = made(options);
    const Status status = check_same_on_all_ranks(communicator, compression->describe());
    EXPECT_EQ(status.code(), ErrorCode::kMismatch);
    EXPECT_EQ(status.rank(), 2);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("rank 2"), HasSubstr("ratio=0.1"), HasSubstr("ratio=0.01")));
    const Status same = check_same_on_all_ranks(communicator, "efsign");
    EXPECT_TRUE(same.ok()) << same.to_string();
  });
}

}  // namespace
}  // namespace netsum::compression_test
