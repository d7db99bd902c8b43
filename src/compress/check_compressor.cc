// Whether a compressor has its traits, on random numbers.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "netsum/compression.h"
#include "src/compress/random.h"
#include "src/kernels/half.h"

namespace netsum {
namespace compress {
namespace {

constexpr int kRanks = 3;
struct Size {
  size_t count;
  size_t rows;
};
constexpr std::array<Size, 4> kSizes = {{{1, 1}, {7, 1}, {64, 8}, {1000, 25}}};
constexpr uint64_t kTensor = 5;
// An unbiased method is averaged over so many steps. The average may be off by so many standard deviations, and by a share of the
// largest number that was sent, because rare large numbers may be missing (the empirical Bernstein bound, for e^-18).
constexpr int kSteps = 2000;
constexpr double kDeviations = 6;
constexpr double kRareShare = 7.0 * 18 / (3 * kSteps);

using Values = std::vector<float>;

struct Payload {
  PayloadShape shape;
  std::vector<std::byte> bytes;
  Values side;

  float at(size_t i) const {
    const std::byte* const from = bytes.data() + i * size_of(shape.type);
    uint16_t half = 0;
    float value = 0;
    if (size_of(shape.type) == 2) std::memcpy(&half, from, sizeof half);
    if (shape.type == DataType::kFloat16) return kernels::float16_to_float(half);
    if (shape.type == DataType::kBFloat16) return kernels::bfloat16_to_float(half);
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  void set(size_t i, float value) {
    std::byte* const to = bytes.data() + i * size_of(shape.type);
    const uint16_t half = shape.type == DataType::kFloat16 ? kernels::float_to_float16(value)
                                                           : kernels::float_to_bfloat16(value);
    if (size_of(shape.type) == 2) {
      std::memcpy(to, &half, sizeof half);
    } else {
      std::memcpy(to, &value, sizeof value);
    }
  }
};

// The ranks of one step.
class Step {
 public:
  Step(const Compressor& compressor, const std::vector<Values>& inputs, size_t rows, uint64_t step)
      : compressor_(compressor), rows_(rows), step_(step), ranks_(static_cast<int>(inputs.size())) {
    const size_t count = inputs[0].size();
    states_.resize(inputs.size());
    for (Values& state : states_) state.assign(compressor.state_values(context(0), count), 0.0f);
    agreed_.assign(compressor.agreed_values(context(0), count), 0.0f);
    Values mine(agreed_.size());
    const bool is_mean = compressor.agreement() == Agreement::kMean;
    for (int rank = 0; rank < ranks_; ++rank) {
      compressor.agree(context(rank), inputs[static_cast<size_t>(rank)], mine.data());
      for (size_t i = 0; i < mine.size(); ++i) {
        if (is_mean) {
          agreed_[i] += mine[i] / static_cast<float>(ranks_);
          continue;
        }
        const bool is_larger = std::isnan(mine[i]) || mine[i] > agreed_[i];  // NaN stays: nothing is larger
        if (rank == 0 || is_larger) agreed_[i] = mine[i];
      }
    }
    for (int rank = 0; rank < ranks_; ++rank) compress(inputs[static_cast<size_t>(rank)], rank);
  }

  const Payload& payload(int rank) const { return payloads_[static_cast<size_t>(rank)]; }
  Values& residual(int rank) { return residuals_[static_cast<size_t>(rank)]; }

  // What one payload means, with the side values given.
  Values decompressed(const Payload& payload, const Values& side, int contributions, float* residual) const {
    Values out(residuals_.front().size(), -1);
    compressor_.decompress(context(0), agreed_, payload.bytes.data(), side.data(), contributions, out,
                           residual);
    return out;
  }
  Values mean_side() const {
    Values mean(payloads_.front().side.size(), 0.0f);
    for (const Payload& payload : payloads_)
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += payload.side[i] / static_cast<float>(ranks_);
    return mean;
  }
  // The mean that the ranks get.
  Values result() const {
    if (compressor_.traits().additivity == Additivity::kNone) return mean_of_decompressed();
    Payload sum = payloads_.front();
    if (sum.shape.type == DataType::kInt32) {
      for (size_t i = 0; i < sum.shape.count; ++i) {
        int32_t total = 0;
        for (const Payload& payload : payloads_) {
          int32_t part = 0;
          std::memcpy(&part, payload.bytes.data() + i * 4, sizeof part);
          total += part;
        }
        std::memcpy(sum.bytes.data() + i * 4, &total, sizeof total);
      }
      return decompressed(sum, mean_side(), ranks_, nullptr);
    }
    for (size_t i = 0; i < sum.shape.count; ++i) {
      double total = 0;
      for (const Payload& payload : payloads_) total += payload.at(i);
      sum.set(i, static_cast<float>(total / ranks_));
    }
    return decompressed(sum, mean_side(), 1, nullptr);
  }

 private:
  Values mean_of_decompressed() const {
    Values mean(residuals_.front().size(), 0.0f);
    for (const Payload& payload : payloads_) {
      const Values part = decompressed(payload, payload.side, 1, nullptr);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += part[i] / static_cast<float>(ranks_);
    }
    return mean;
  }
  CompressionContext context(int rank) const {
    return {.tensor = kTensor,
            .step = step_,
            .rank = rank,
            .ranks = ranks_,
            .rows = rows_,
            .state = states_[static_cast<size_t>(rank)]};
  }
  void compress(const Values& input, int rank) {
    Payload payload;
    payload.shape = compressor_.shape(context(rank), input.size());
    payload.bytes.resize(payload.shape.count * size_of(payload.shape.type));
    payload.side.resize(payload.shape.side_values);
    Values residual(input.size(), -1);
    compressor_.compress(context(rank), input, agreed_, residual.data(), payload.bytes.data(),
                         payload.side.data());
    payloads_.push_back(std::move(payload));
    residuals_.push_back(std::move(residual));
  }

  const Compressor& compressor_;
  size_t rows_;
  uint64_t step_;
  int ranks_;
  mutable std::vector<Values> states_;
  Values agreed_;
  std::vector<Payload> payloads_;
  std::vector<Values> residuals_;
};

Values random_values(const Random& random, size_t n, uint64_t rank) {
  Values values(n);
  for (size_t i = 0; i < n; ++i) {
    const float unit = 2 * random.unit(2 * (rank * n + i)) - 1;
    values[i] =
        unit * unit * unit * std::ldexp(1.0f, static_cast<int>(random.below(2 * (rank * n + i) + 1, 8)));
  }
  return values;
}

double norm(const Values& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

// The distance of two tensors, in units of `scale`.
double distance(const Values& a, const Values& b, double scale) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i)
    squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  const double found = std::sqrt(squares);
  return found == 0 ? 0 : found / scale;
}

bool is_finite(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

class Check {
 public:
  Check(const Compressor& compressor, uint64_t seed)
      : compressor_(compressor), traits_(compressor.traits()), random_({seed}) {}

  Status run() const {
    for (const auto [n, rows] : kSizes) {
      std::vector<Values> inputs;
      for (uint64_t rank = 0; rank < kRanks; ++rank) inputs.push_back(random_values(random_, n, rank));
      for (const Status& status : {lengths(inputs, rows), repeatable(inputs, rows), residuals(inputs, rows),
                                   sums(inputs, rows), not_finite(inputs, rows)})
        if (!status.ok()) return status;
    }
    return traits_.biased ? Status() : unbiased(random_values(random_, 64, 0));
  }

 private:
  Status broken(const std::string& trait, size_t n) const {
    return {ErrorCode::kInvalidArgument, "the compressor '" + std::string(compressor_.name()) +
                                             "' does not have its traits: " + trait + " (tensors of " +
                                             std::to_string(n) + " elements)"};
  }

  Status lengths(const std::vector<Values>& inputs, size_t rows) const {
    const Step step(compressor_, inputs, rows, 1);
    for (int rank = 0; rank < kRanks; ++rank) {
      const Payload& payload = step.payload(rank);
      if (traits_.additivity == Additivity::kSparse &&
          (payload.shape.type != DataType::kFloat32 ||
           (traits_.mean && payload.shape.count != inputs[0].size())))
        return broken("additivity is sparse, but payloads are not float32 tensors of the same length",
                      inputs[0].size());
      if (!payload.shape.varies) continue;
      if (traits_.additivity != Additivity::kNone || payload.shape.type != DataType::kByte)
        return broken("payloads vary in length, so they cannot be summed, but additivity is " +
                          std::string(additivity_name(traits_.additivity)),
                      inputs[0].size());
      uint64_t length = 0;
      if (payload.bytes.size() >= sizeof length) std::memcpy(&length, payload.bytes.data(), sizeof length);
      if (length < sizeof length || length > payload.bytes.size())
        return broken("payloads vary in length, but do not begin with it", inputs[0].size());
    }
    return {};
  }

  Status repeatable(const std::vector<Values>& inputs, size_t rows) const {
    const Step one(compressor_, inputs, rows, 1), other(compressor_, inputs, rows, 1);
    for (int rank = 0; rank < kRanks; ++rank)
      if (one.payload(rank).bytes != other.payload(rank).bytes ||
          one.payload(rank).side != other.payload(rank).side)
        return broken("the same context gives another payload", inputs[0].size());
    return {};
  }

  Status residuals(const std::vector<Values>& inputs, size_t rows) const {
    // Otherwise nothing keeps them.
    if ((!traits_.mean && !traits_.late_residual && !traits_.needs_memory) || !traits_.biased) return {};
    const Values& input = inputs[0];
    Step step(compressor_, {input}, rows, 1);
    Values& residual = step.residual(0);
    Values sum = step.decompressed(step.payload(0), step.payload(0).side, 1,
                                   traits_.late_residual ? residual.data() : nullptr);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += residual[i];
    if (distance(sum, input, norm(input)) > 1e-6)
      return broken("what is sent and what remains are not together the tensor", input.size());
    return {};
  }

  Status sums(const std::vector<Values>& inputs, size_t rows) const {
    if (traits_.additivity == Additivity::kNone || !traits_.mean) return {};
    const Step step(compressor_, inputs, rows, 1);
    const Values side = step.mean_side();
    Values mean(inputs[0].size(), 0.0f);
    double scale = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const Values part = step.decompressed(step.payload(rank), side, 1, nullptr);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += part[i] / kRanks;
      scale = std::max(scale, norm(part));
    }
    const PayloadShape shape = step.payload(0).shape;
    const double tolerance =
        size_of(shape.type) == 2 ? 0x1p-8 : 1e-6;  // the mean is rounded to the type again
    if (distance(step.result(), mean, scale) > tolerance)
      return broken("additivity is " + std::string(additivity_name(traits_.additivity)) +
                        ", but the sum of payloads does not decompress to the mean",
                    mean.size());
    return {};
  }

  Status not_finite(const std::vector<Values>& inputs, size_t rows) const {
    for (const float special :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      std::vector<Values> bad = inputs;
      bad[1].back() = special;
      Step step(compressor_, bad, rows, 1);
      if (is_finite(step.result())) return broken("a value that is not finite gets lost", inputs[0].size());
      if ((traits_.mean || traits_.needs_memory) && traits_.biased && !traits_.late_residual &&
          !is_finite(step.residual(1)))
        return broken("a residual is not finite", inputs[0].size());
    }
    return {};
  }

  Status unbiased(const Values& input) const {
    const size_t n = input.size();
    std::vector<double> sum(n, 0), squares(n, 0);
    double largest = 0;
    for (int s = 0; s < kSteps; ++s) {
      const Step step(compressor_, {input}, 1, static_cast<uint64_t>(s));
      const Values value = step.result();
      for (size_t i = 0; i < n; ++i) {
        sum[i] += value[i];
        largest = std::max(largest, std::fabs(static_cast<double>(value[i])));
        squares[i] += static_cast<double>(value[i]) * static_cast<double>(value[i]);
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const double mean = sum[i] / kSteps;
      const double variance = std::max(0.0, squares[i] / kSteps - mean * mean);
      const double bound = kDeviations * std::sqrt(variance / kSteps) + kRareShare * largest;
      if (std::fabs(mean - input[i]) > bound) return broken("it is biased", n);
    }
    return {};
  }

  const Compressor& compressor_;
  CompressorTraits traits_;
  Random random_;
};

}  // namespace
}  // namespace compress

Status check_compressor(const Compressor& compressor, uint64_t seed) {
  return compress::Check(compressor, seed).run();
}

}  // namespace netsum
