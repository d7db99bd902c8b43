// Signs of which the majority counts: signsgd, signum.
#include <limits>

#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/fields.h"

namespace netsum::compress {
namespace {

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

namespace methods {

extern constexpr Method kSignSgd = {.name = "signsgd",
                                    .takes_momentum = true,
                                    .make = make_compressor<SignVote>,
                                    .sends = "signs, and 0 for 0; the result is the majority's",
                                    .bytes = "4 n / 8 at N = 4; 5.3 n / 8 at 8",
                                    .when = "a baseline; the learning rate is the size of a step",
                                    .formula = "sign of Σ sign(x) (Bernstein et al., ICML 2018)",
                                    .bound = "none"};

extern constexpr Method kSignum = {.name = "signum",
                                   .memory = "momentum",
                                   .takes_momentum = true,
                                   .make = make_compressor<SignVote>,
                                   .canonical = [](CompressionOptions& o) { o.method = "signsgd"; },
                                   .sends = "as `signsgd`, of a momentum",
                                   .bytes = "as `signsgd`",
                                   .when = "as `signsgd`; the optimizer must be SGD without momentum"};

}  // namespace methods

}  // namespace netsum::compress
