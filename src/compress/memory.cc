#include "src/compress/memory.h"

#include <algorithm>
#include <cmath>

#include "src/compress/finite.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

class NoMemory : public Memory {
 public:
  NoMemory(const CompressionOptions& /*options*/, size_t /*count*/) {}

  const float* compensate(const float* gradient, int /*ranks*/) override { return gradient; }
  float* residual() override { return nullptr; }
  std::vector<CompressionState> state() override { return {}; }
};

class Residual : public Memory {
 public:
  Residual(const CompressionOptions& options, size_t count)
      : decay_(static_cast<float>(options.decay)), residual_(count, 0.0f), copy_(count, 0.0f) {}

  const float* compensate(const float* gradient, int /*ranks*/) override {
    constexpr size_t kCopiedPiece = 4096;  // which stays in the cache after it was copied
    for (size_t begin = 0; begin < residual_.size(); begin += kCopiedPiece) {
      const size_t n = std::min(kCopiedPiece, residual_.size() - begin);
      float* const piece = residual_.data() + begin;
      std::copy_n(piece, n, copy_.data() + begin);
      kernels::accumulate(decay_, gradient + begin, n, piece);
    }
    return residual_.data();
  }
  void take_back() override { residual_ = copy_; }
  const float* decay() const override { return &decay_; }
  float* copy() override { return copy_.data(); }
  float* residual() override { return residual_.data(); }
  std::vector<CompressionState> state() override { return {{"residual", residual_}}; }

 private:
  float decay_;
  std::vector<float> residual_;
  std::vector<float> copy_;
};

class Dgc : public Memory {
 public:
  Dgc(const CompressionOptions& options, size_t count)
      : momentum_(static_cast<float>(options.momentum)),
        clip_norm_(options.clip_norm),
        velocity_(count, 0.0f),
        residual_(count, 0.0f),
        velocity_copy_(count, 0.0f),
        residual_copy_(count, 0.0f) {}

  const float* compensate(const float* gradient, int ranks) override {
    velocity_copy_ = velocity_;
    residual_copy_ = residual_;
    const float factor = clip_factor(gradient, ranks);
    for (size_t i = 0; i < residual_.size(); ++i) {
      velocity_[i] = momentum_ * velocity_[i] + factor * gradient[i];
      residual_[i] += velocity_[i];
    }
    return residual_.data();
  }
  void take_back() override {
    velocity_ = velocity_copy_;
    residual_ = residual_copy_;
  }
  float* residual() override { return residual_.data(); }
  void compressed(const float* sent) override {
    // What is not finite was sent as well, so the velocity stays finite.
    for (size_t i = 0; i < velocity_.size(); ++i)
      if (sent[i] != 0) velocity_[i] = 0;
  }
  std::vector<CompressionState> state() override {
    return {{"velocity", velocity_}, {"residual", residual_}};
  }

 private:
  float clip_factor(const float* gradient, int ranks) const {
    if (clip_norm_ == 0) return 1;
    double squares = 0;
    for (size_t i = 0; i < residual_.size(); ++i)
      squares += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
    const double limit = clip_norm_ / std::sqrt(static_cast<double>(ranks));
    // A gradient that is not finite is passed on as it is.
    const double norm = std::sqrt(squares);
    return std::isfinite(norm) && norm > limit ? static_cast<float>(limit / norm) : 1.0f;
  }

  float momentum_;
  double clip_norm_;
  std::vector<float> velocity_;
  std::vector<float> residual_;
  std::vector<float> velocity_copy_;
  std::vector<float> residual_copy_;
};

class Momentum : public Memory {
 public:
  Momentum(const CompressionOptions& options, size_t count)
      : momentum_(static_cast<float>(options.momentum)), average_(count, 0.0f), copy_(count, 0.0f) {}

  const float* compensate(const float* gradient, int /*ranks*/) override {
    copy_ = average_;
    for (size_t i = 0; i < average_.size(); ++i)
      average_[i] = momentum_ * average_[i] + (1 - momentum_) * gradient[i];
    return average_.data();
  }
  void take_back() override { average_ = copy_; }
  float* residual() override { return nullptr; }
  void compressed(const float* /*sent*/) override { clear_not_finite(average_.data(), average_.size()); }
  std::vector<CompressionState> state() override { return {{"momentum", average_}}; }

 private:
  float momentum_;
  std::vector<float> average_;
  std::vector<float> copy_;
};

constexpr Option kDecay = {
    .name = "decay",
    .range = "between 0 and 1",
    .help = "by what the residual is multiplied in every step",
    .allows = [](const CompressionOptions& o) { return o.decay >= 0 && o.decay <= 1; }};
constexpr Option kMomentum = {
    .name = "momentum",
    .range = "at least 0 and below 1",
    .help = "the momentum; the optimizer must then have none",
    .allows = [](const CompressionOptions& o) { return o.momentum >= 0 && o.momentum < 1; }};
constexpr Option kClipNorm = {
    .name = "clip_norm",
    .range = "a positive number, or 0 for none",
    .help = "each tensor's gradient is scaled down to this L2 norm, divided by √N",
    .allows = [](const CompressionOptions& o) { return o.clip_norm >= 0 && std::isfinite(o.clip_norm); }};

template <class T>
std::unique_ptr<Memory> make_memory(const CompressionOptions& options, size_t count) {
  return std::make_unique<T>(options, count);
}

constexpr std::array<MemoryForm, 4> kMemories = {
    {{.name = "none", .make = make_memory<NoMemory>},
     {.name = "residual", .make = make_memory<Residual>, .options = {&kDecay}},
     {.name = "dgc", .make = make_memory<Dgc>, .options = {&kMomentum, &kClipNorm}},
     {.name = "momentum", .make = make_memory<Momentum>, .options = {&kMomentum}}}};

}  // namespace

std::span<const MemoryForm> memories() {
  return kMemories;
}

}  // namespace netsum::compress
