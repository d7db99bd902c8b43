// What methods have in common that send elements as they are: their payloads are as long as the tensor, and mostly zero.
#ifndef NETSUM_SRC_COMPRESS_SPARSIFIER_H_
#define NETSUM_SRC_COMPRESS_SPARSIFIER_H_

#include <cstring>

#include "netsum/compression.h"

namespace netsum::compress {

class Sparsifier : public Compressor {
 public:
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kSparse, .biased = true, .needs_memory = true};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.count = count};
  }
  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const final {
    if (!values.empty()) sparsify(context, values, residual, static_cast<float*>(payload));
  }
  // compress() of a tensor that has elements.
  virtual void sparsify(const CompressionContext& context, std::span<const float> values, float* residual,
                        float* sent) const = 0;
  // copy = memory; then of decay * memory + gradient, where the residual becomes the new memory: in fewer passes than to add them
  // first. Returns false, and changes nothing, where that is no gain.
  virtual bool compress_added(float /*decay*/, std::span<const float> /*gradient*/, float* /*memory*/,
                              float* /*copy*/, const CompressionContext& /*context*/,
                              float* /*payload*/) const {
    return false;
  }
  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const sums = static_cast<const float*>(payload);
    if (contributions == 1) {
      if (!out.empty()) std::memmove(out.data(), sums, out.size_bytes());
      return;
    }
    for (size_t i = 0; i < out.size(); ++i) out[i] = sums[i] / static_cast<float>(contributions);
  }
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_SPARSIFIER_H_
