// Methods that send signs, which the network counts: efsign, onebit, signsgd.
#include <cmath>
#include <limits>

#include "src/compress/fields.h"
#include "src/compress/methods.h"

namespace netsum::compress {
namespace {

// Of efsign and onebit, whose residual takes back what a zero has sent. A sign is a vote: 1 for +, also for +0, and 0 for -.
class Signs : public Compressor {
 public:
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    return {.type = DataType::kInt32, .count = fields(context.ranks).lanes(count), .side_values = 1};
  }

 protected:
  static Fields fields(int ranks) { return Fields::of_unsigned(1, ranks); }
  static void pack(std::span<const float> values, int ranks, void* payload) {
    fields(ranks).pack(values.size(), static_cast<int32_t*>(payload),
                       [&](size_t begin, size_t n, int32_t* votes) {
                         for (size_t i = 0; i < n; ++i) votes[i] = std::signbit(values[begin + i]) ? 0 : 1;
                       });
  }
  // take(i, difference): how many more of `contributions` have voted + than -.
  template <class Take>
  static void unpack(size_t count, int ranks, int contributions, const void* payload, const Take& take) {
    fields(ranks).unpack(count, static_cast<const int32_t*>(payload),
                         [&](size_t begin, size_t n, const int32_t* votes) {
                           for (size_t i = 0; i < n; ++i) take(begin + i, 2 * votes[i] - contributions);
                         });
  }
};

class EfSign : public Signs {
 public:
  std::string_view name() const override { return "efsign"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kInteger, .biased = true, .needs_memory = true, .late_residual = true};
  }
  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* side) const override {
    pack(values, context.ranks, payload);
    double sum = 0;
    for (const float value : values) sum += std::fabs(value);
    // Not finite if any value is not, and then so is the mean of the ranks.
    *side = values.empty() ? 0 : static_cast<float>(sum / static_cast<double>(values.size()));
    if (residual == nullptr || residual == values.data()) return;
    for (size_t i = 0; i < values.size(); ++i) residual[i] = values[i];
  }
  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* side, int contributions, std::span<float> out,
                  float* residual) const override {
    const float scale = *side;
    const float unit = scale / static_cast<float>(contributions);
    unpack(out.size(), context.ranks, contributions, payload,
           [&](size_t i, int difference) { out[i] = unit * static_cast<float>(difference); });
    if (residual == nullptr) return;
    if (!std::isfinite(scale)) {  // nothing useful has been sent: all of it remains
      clear_not_finite(residual, out.size());
      return;
    }
    for (size_t i = 0; i < out.size(); ++i) residual[i] -= std::copysign(scale, residual[i]);
  }
};

class OneBit : public Signs {
 public:
  std::string_view name() const override { return "onebit"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kInteger, .biased = true, .needs_memory = true, .late_residual = true};
  }
  // The sum of what is not negative, that of the rest, and how many there are of each, divided by the number of elements: their
  // means over the ranks give the scales of all elements together. (1 minus the one share has nothing left of a small other one
  // where the mean is rounded.)
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    PayloadShape shape = Signs::shape(context, count);
    shape.side_values = 4;
    return shape;
  }
  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* side) const override {
    pack(values, context.ranks, payload);
    double positive = 0, negative = 0, count = 0;
    for (const float value : values) {
      const bool is_negative = std::signbit(value);
      positive += is_negative ? 0 : value;
      negative += is_negative ? value : 0;
      count += is_negative ? 0 : 1;
    }
    const double n = values.empty() ? 1 : static_cast<double>(values.size());
    side[0] = static_cast<float>(positive / n);
    side[1] = static_cast<float>(negative / n);
    side[2] = static_cast<float>(count / n);
    side[3] = static_cast<float>((static_cast<double>(values.size()) - count) / n);
    if (residual == nullptr || residual == values.data()) return;
    for (size_t i = 0; i < values.size(); ++i) residual[i] = values[i];
  }
  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* side, int contributions, std::span<float> out,
                  float* residual) const override {
    const float plus = quotient(side[0], side[2]), minus = quotient(side[1], side[3]);
    const float middle = (plus + minus) / 2;
    const float unit = (plus - minus) / 2 / static_cast<float>(contributions);
    unpack(out.size(), context.ranks, contributions, payload,
           [&](size_t i, int difference) { out[i] = middle + unit * static_cast<float>(difference); });
    if (residual == nullptr) return;
    if (!std::isfinite(plus) || !std::isfinite(minus)) {  // nothing useful has been sent: all of it remains
      clear_not_finite(residual, out.size());
      return;
    }
    for (size_t i = 0; i < out.size(); ++i) residual[i] -= std::signbit(residual[i]) ? minus : plus;
  }

 private:
  // 0 of nothing.
  static float quotient(float sum, float share) { return sum == 0 || share <= 0 ? sum : sum / share; }
};

// A vote is 1, 0 or -1: zeros must not move what has no gradient, since no memory corrects it.
class SignVote : public Compressor {
 public:
  std::string_view name() const override { return "signsgd"; }
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    return {.type = DataType::kInt32, .count = fields(context).lanes(count), .side_values = 1};
  }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kInteger, .biased = true, .needs_memory = false, .mean = false};
  }
  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* /*residual*/, void* payload,
                float* side) const override {
    fields(context).pack(values.size(), static_cast<int32_t*>(payload),
                         [&](size_t begin, size_t n, int32_t* votes) {
                           for (size_t i = 0; i < n; ++i) votes[i] = sign_of(values[begin + i]);
                         });
    // Signs cannot tell it.
    *side = all_finite(values) ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* side, int /*contributions*/, std::span<float> out,
                  float* /*residual*/) const override {
    fields(context).unpack(out.size(), static_cast<const int32_t*>(payload),
                           [&](size_t begin, size_t n, const int32_t* votes) {
                             for (size_t i = 0; i < n; ++i)
                               out[begin + i] = static_cast<float>(sign_of(votes[i])) + *side;
                           });
  }

 private:
  static Fields fields(const CompressionContext& context) { return Fields::of_signed(1, context.ranks); }
  template <typename T>
  static int sign_of(T value) {
    return (value > 0 ? 1 : 0) - (value < 0 ? 1 : 0);
  }
};

}  // namespace

MadeCompressor make_ef_sign() {
  return std::shared_ptr<const Compressor>(std::make_shared<EfSign>());
}

MadeCompressor make_one_bit() {
  return std::shared_ptr<const Compressor>(std::make_shared<OneBit>());
}

MadeCompressor make_sign_vote() {
  return std::shared_ptr<const Compressor>(std::make_shared<SignVote>());
}

}  // namespace netsum::compress
