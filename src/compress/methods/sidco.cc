// A threshold from the moments of a distribution that is fitted in stages: sidco.
#include <algorithm>
#include <cmath>
#include <optional>

#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/sparsifier.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

enum class Fit : uint8_t { kExponential, kPareto, kGamma };

std::optional<Fit> fit_of(std::string_view name) {
  if (name == "exponential") return Fit::kExponential;
  if (name == "pareto") return Fit::kPareto;
  if (name == "gamma") return Fit::kGamma;
  return std::nullopt;
}

// The share that passes the first of several stages.
constexpr double kFirstShare = 0.25;
// The number of stages is looked at every so many steps, and changed if so far off.
constexpr uint64_t kPeriod = 5;
constexpr double kTolerance = 0.2;
// By how much the logarithm of passed over wanted elements must have grown since a search for the best number of stages has ended.
constexpr float kGrown = 0.1f;
// A distribution this near to an exponential one, or to a constant, is taken as such: the formulas divide by the distance.
constexpr double kNear = 1e-6;

// Of the magnitudes above a threshold, less the threshold.
struct Moments {
  double mean = 0;
  double variance = 0;
  double mean_log = 0;  // only if wanted
};

Moments moments_of(const float* magnitudes, size_t n, double threshold, bool with_log) {
  double sum = 0, squares = 0, logs = 0;
  for (size_t i = 0; i < n; ++i) {
    const double excess = magnitudes[i] - threshold;
    sum += excess;
    squares += excess * excess;
  }
  if (with_log)
    for (size_t i = 0; i < n; ++i) logs += std::log(magnitudes[i]);
  const auto count = static_cast<double>(n);
  const double mean = sum / count;
  return {mean, std::max(0.0, squares / count - mean * mean), logs / count};
}

// By how much a share of the distribution exceeds the threshold of its stage, with the moments as those of the sample.
double exponential_quantile(const Moments& moments, double share) {
  return -moments.mean * std::log(share);
}
double pareto_quantile(const Moments& moments, double share) {
  const double squares = moments.mean * moments.mean;
  if (moments.variance <= kNear * squares) return moments.mean;
  const double ratio = squares / moments.variance;
  const double shape = (ratio - 1) / 2;
  if (std::fabs(shape) < kNear) return exponential_quantile(moments, share);
  return moments.mean * (ratio + 1) / 2 * (1 - std::pow(share, shape)) / shape;
}
// With the approximations of the shape and of the tail that the paper uses.
double gamma_quantile(const Moments& moments, double share) {
  const double s = std::log(moments.mean) - moments.mean_log;
  if (s <= kNear) return moments.mean;
  const double shape = (3 - s + std::sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
  return -moments.mean / shape * (std::log(share) + std::lgamma(shape));
}

// A stage takes the magnitudes above the threshold of the stage before as distributed exponentially, or by a generalised Pareto or a
// gamma distribution, and finds the threshold that a share of them exceeds. The first of M stages passes 25 %, and each other one
// (4 k / n)^(1 / (M - 1)). M is log10(n / k) at first, rounded, and changes every 5 steps if on average the number that was sent is off
// by more than 20 %. Zeros are not part of the sample.
class Sidco : public Sparsifier {
 public:
  explicit Sidco(const CompressionOptions& options)
      : k_(options.k), ratio_(options.ratio), fit_(fit_of(options.fit).value_or(Fit::kExponential)) {}

  std::string_view name() const override { return "sidco"; }
  size_t state_values(const CompressionContext& /*context*/, size_t /*count*/) const override {
    return sizeof(Stages) / sizeof(float);
  }

  void sparsify(const CompressionContext& context, std::span<const float> values, float* residual,
                float* sent) const override {
    const size_t n = values.size();
    // Zeros have nothing to send, and what is not finite is sent anyway. `sent` is the scratch memory.
    size_t usable = 0;
    float largest = 0;
    for (const float value : values) {
      const float magnitude = std::fabs(value);
      const bool is_usable = magnitude > 0 && std::isfinite(magnitude);
      sent[usable] = magnitude;
      usable += is_usable ? 1 : 0;
      if (is_usable && magnitude > largest) largest = magnitude;
      if (usable == n) break;
    }
    const size_t k = std::min(elements_to_send(n, k_, ratio_), usable);
    const bool is_fitted = k > 0 && k < usable;
    const double share = is_fitted ? static_cast<double>(k) / static_cast<double>(usable) : 1;
    Stages stages = load(context, share);
    const double threshold = is_fitted ? fitted(sent, usable, share, stages) : 0;
    // At least the largest is sent: otherwise nothing ever might be.
    const double bounded = std::clamp(threshold, 0.0, static_cast<double>(largest));
    const uint32_t bits = std::max(1u, kernels::magnitude_bits(static_cast<float>(bounded)));
    const size_t passed = kernels::select(values.data(), n, bits, sent, residual);
    if (is_fitted) {
      adapt(context.step, static_cast<double>(passed) / static_cast<double>(k), most_stages(share), stages);
      store(context, stages);
    }
  }

 private:
  // What is kept of a tensor.
  struct Stages {
    float count = 0;  // 0: as at first
    // Of the search: 1 or -1; twice that where the other one is known to be worse; 0 where the search has ended.
    float direction = 0;
    float sum = 0;             // of passed over wanted elements, in this period
    float previous_error = 0;  // before the last change of `count`; 0: there was none
  };
  // One stage for each factor of 10, which is about right for normal, exponential and heavier tails.
  static Stages first_stages(double share) {
    return {std::max(1.0f, static_cast<float>(std::round(-std::log10(share)))), 1, 0, 0};
  }
  static Stages load(const CompressionContext& context, double share) {
    const auto& state = context.state;
    return state[0] < 1 ? first_stages(share) : Stages{state[0], state[1], state[2], state[3]};
  }
  static void store(const CompressionContext& context, const Stages& stages) {
    context.state[0] = stages.count;
    context.state[1] = stages.direction;
    context.state[2] = stages.sum;
    context.state[3] = stages.previous_error;
  }

  static float most_stages(double share) {
    return share >= kFirstShare ? 1.0f : static_cast<float>(std::ceil(-std::log2(share)));
  }

  // More stages pass more of some distributions and less of others. So a search tries one more stage, then one less if that was worse; it goes on
  // while the error shrinks, and ends at the best number. A new one begins when the error has grown.
  static void adapt(uint64_t step, double passed_over_wanted, float most, Stages& stages) {
    stages.sum += static_cast<float>(passed_over_wanted);
    if ((step + 1) % kPeriod != 0) return;
    const double average = static_cast<double>(stages.sum) / kPeriod;
    stages.sum = 0;
    const auto error = static_cast<float>(std::fabs(std::log(std::max(average, 1e-3))));
    if (std::fabs(average - 1) <= kTolerance) {
      stages.direction = 0;
      stages.previous_error = error;
      return;
    }
    if (stages.direction == 0) {
      if (error <= stages.previous_error + kGrown) return;
      stages.direction = 1;
    } else if (stages.previous_error > 0) {
      const bool was_last = std::fabs(stages.direction) > 1;
      const float sign = std::copysign(1.0f, stages.direction);
      if (error > stages.previous_error) {  // back, and to the other side if that has not been tried
        stages.count -= sign;
        stages.direction = was_last ? 0 : -2 * sign;
        move(most, stages);
        return;
      }
      stages.direction = 2 * sign;
    }
    stages.previous_error = error;
    move(most, stages);
  }
  static void move(float most, Stages& stages) {
    const auto fits = [&] {
      const float next = stages.count + std::copysign(1.0f, stages.direction);
      return next >= 1 && next <= most;
    };
    if (stages.direction == 1 && !fits()) stages.direction = -2;
    if (stages.direction == 0) return;
    if (fits()) {
      stages.count += std::copysign(1.0f, stages.direction);
    } else {
      stages.direction = 0;
    }
  }

  // The threshold of the last stage. Overwrites the magnitudes.
  double fitted(float* magnitudes, size_t n, double share, const Stages& stages) const {
    const int count = static_cast<int>(std::min(stages.count, most_stages(share)));
    const double later = count > 1 ? std::pow(share / kFirstShare, 1.0 / (count - 1)) : 0;
    double threshold = 0;
    for (int stage = 0; stage < count; ++stage) {
      const double of_stage = count == 1 ? share : stage == 0 ? kFirstShare : later;
      const bool is_gamma = fit_ == Fit::kGamma && stage == 0;
      const Moments moments = moments_of(magnitudes, n, threshold, is_gamma);
      threshold += is_gamma                    ? gamma_quantile(moments, of_stage)
                   : fit_ == Fit::kExponential ? exponential_quantile(moments, of_stage)
                                               : pareto_quantile(moments, of_stage);
      if (stage + 1 == count) break;
      size_t above = 0;
      for (size_t i = 0; i < n; ++i) {
        magnitudes[above] = magnitudes[i];
        above += magnitudes[i] > threshold ? 1 : 0;
      }
      if (above == 0) break;
      n = above;
    }
    return threshold;
  }

  uint64_t k_;
  double ratio_;
  Fit fit_;
};

}  // namespace

namespace methods {

constexpr Option kFit = {.name = "fit",
                         .range = "'exponential', 'pareto' or 'gamma'",
                         .help = "the assumed distribution of magnitudes",
                         .allows = [](const CompressionOptions& o) { return fit_of(o.fit).has_value(); }};

extern constexpr Method kSidco = {
    .name = "sidco",
    .memory = "residual",
    .options = {&kRatio, &kK, &kFit},
    .make = make_compressor<Sidco>,
    .sends = "about k elements, above a threshold fitted to their distribution",
    .bytes = "4 u + index",
    .when = "for comparison: `topk` with `sampled` meets k more closely, at less cost",
    .formula = "x where |x| reaches a fitted quantile (Abdelmoniem et al., MLSys 2021)",
    .bound = "d ≥ 1 / n: at least the largest element is sent"};

}  // namespace methods

}  // namespace netsum::compress
