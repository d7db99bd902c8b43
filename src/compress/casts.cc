// Methods that send every element: none, fp16, bf16.
#include <algorithm>
#include <array>
#include <cstring>

#include "src/compress/methods.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

class Identity : public Compressor {
 public:
  std::string_view name() const override { return "none"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kLinear, .biased = false, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.count = count};
  }

  void compress(const CompressionContext& /*context*/, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    if (values.empty()) return;
    std::memcpy(payload, values.data(), values.size_bytes());
    if (residual != nullptr) std::fill_n(residual, values.size(), 0.0f);
  }
  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const sums = static_cast<const float*>(payload);
    const auto divisor = static_cast<float>(contributions);
    for (size_t i = 0; i < out.size(); ++i) out[i] = sums[i] / divisor;
  }
};

// In pieces, so that residuals and averages need no memory of their own.
constexpr size_t kPiece = 1024;

class Half : public Compressor {
 public:
  explicit Half(DataType type) : type_(type) {}

  std::string_view name() const override { return type_ == DataType::kFloat16 ? "fp16" : "bf16"; }
  // Rounding to nearest has a bias, but one that changes its sign with the values.
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kLinear, .biased = true, .needs_memory = false};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.type = type_, .count = count};
  }

  void compress(const CompressionContext& /*context*/, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    auto* const halves = static_cast<uint16_t*>(payload);
    kernels::to_halves(type_, values.data(), values.size(), halves);
    if (residual == nullptr) return;
    std::array<float, kPiece> sent;
    for (size_t begin = 0; begin < values.size(); begin += kPiece) {
      const size_t n = std::min(kPiece, values.size() - begin);
      kernels::from_halves(type_, halves + begin, n, sent.data());
      for (size_t i = 0; i < n; ++i) residual[begin + i] = values[begin + i] - sent[i];
    }
    clear_not_finite(residual, values.size());
  }
  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    kernels::from_halves(type_, static_cast<const uint16_t*>(payload), out.size(), out.data());
    if (contributions == 1) return;
    for (float& value : out) value /= static_cast<float>(contributions);
  }

 private:
  DataType type_;
};

}  // namespace

MadeCompressor make_identity() {
  return std::shared_ptr<const Compressor>(std::make_shared<Identity>());
}

MadeCompressor make_half(DataType type) {
  return std::shared_ptr<const Compressor>(std::make_shared<Half>(type));
}

}  // namespace netsum::compress
