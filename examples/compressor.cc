// A compressor of your own: sends every other element, in turn, and leaves the rest to the residual. Start it as all_reduce_cc.
#include <netsum/communicator.h>
#include <netsum/compression.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"

namespace {

class Alternate : public netsum::Compressor {
 public:
  std::string_view name() const override { return "alternate"; }

  // Payloads are numbers, which the network may add. What is not sent must be kept.
  netsum::CompressorTraits traits() const override {
    return {.additivity = netsum::Additivity::kLinear, .biased = true, .needs_memory = true};
  }
  netsum::PayloadShape shape(const netsum::CompressionContext& /*context*/, size_t count) const override {
    return {.type = netsum::DataType::kFloat32, .count = (count + 1) / 2};
  }

  void compress(const netsum::CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    auto* const sent = static_cast<float*>(payload);
    std::fill_n(sent, (values.size() + 1) / 2, 0.0f);
    for (size_t i = context.step % 2; i < values.size(); i += 2) sent[i / 2] = values[i];
    for (size_t i = 0; i < values.size(); ++i) {
      // What is not finite has to arrive in every step, and must not stay.
      const bool is_finite = std::isfinite(values[i]);
      if (!is_finite) sent[i / 2] = NAN;
      if (residual != nullptr) residual[i] = i % 2 == context.step % 2 || !is_finite ? 0 : values[i];
    }
  }

  // `payload` is the sum over `contributions` ranks, or the mean, with 1.
  void decompress(const netsum::CompressionContext& context, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const sums = static_cast<const float*>(payload);
    for (size_t i = 0; i < out.size(); ++i) {
      const float mean = sums[i / 2] / static_cast<float>(contributions);
      out[i] = i % 2 == context.step % 2 || !std::isfinite(mean) ? mean : 0;
    }
  }
};

int fail(const netsum::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s RANK WORLD_SIZE root|aggregator HOST:PORT\n", argv[0]);
    return 2;
  }
  // Whether it has its traits, on random numbers: once, while you write it.
  if (netsum::Status status = netsum::check_compressor(Alternate(), 1); !status.ok()) return fail(status);

  auto compression = netsum::Compression::make(std::make_shared<Alternate>(), {});
  if (!compression.ok()) return fail(compression.status());

  netsum::CommunicatorOptions options;
  int by_root = 0;
  if (read_arguments(argv, INT_MAX, &options.rank, &options.world_size, &by_root) == 0) return 2;
  options.job = "example";
  if (by_root != 0) {
    options.root = argv[4];
  } else {
    options.aggregators = {argv[4]};
  }
  auto connected = netsum::Communicator::connect(options);
  if (!connected.ok()) return fail(connected.status());
  netsum::Communicator& communicator = *connected.value();
  netsum::Status status = netsum::check_same_on_all_ranks(communicator, (*compression)->describe());
  if (!status.ok()) return fail(status);

  constexpr size_t kCount = 100'001;
  constexpr int kSteps = 4;
  const auto tensor = (*compression)->tensor(1, kCount, communicator.rank(), communicator.world_size());
  netsum::CompressionBuffers buffers;
  std::vector<float> gradient(kCount);
  std::vector<double> arrived(kCount, 0);
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < kCount; ++i) gradient[i] = static_cast<float>((options.rank + 1) * (i % 1000));
    // The mean over all ranks of what they have sent, in place.
    status = netsum::compressed_all_reduce(communicator, **compression, *tensor, gradient.data(),
                                           gradient.data(), buffers);
    if (!status.ok()) return fail(status);
    for (size_t i = 0; i < kCount; ++i) arrived[i] += gradient[i];
  }

  // In an even number of steps, all has arrived but the last step's gradient of the elements whose turn is next.
  const double mean_of_ranks = (options.world_size + 1) / 2.0;
  for (size_t i = 0; i < kCount; ++i) {
    const int steps = i % 2 == 0 ? kSteps - 1 : kSteps;
    const double expected = steps * mean_of_ranks * static_cast<double>(i % 1000);
    if (std::fabs(arrived[i] - expected) > 1e-1) {
      std::fprintf(stderr, "element %zu is %g, expected %g\n", i, arrived[i], expected);
      return 1;
    }
  }
  std::printf("rank %d: %s: all %zu sums are right\n", options.rank, (*compression)->describe().c_str(),
              kCount);

  // Nobody leaves before everybody has its sums.
  status = communicator.barrier(options.timeout);
  return status.ok() ? 0 : fail(status);
}
