// What the tests of compression share.
#ifndef NETSUM_SRC_COMPRESS_TESTING_H_
#define NETSUM_SRC_COMPRESS_TESTING_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "netsum/compression.h"
#include "src/base/rng.h"

namespace netsum::compress {

inline std::shared_ptr<const Compression> made(const CompressionOptions& options) {
  auto compression = Compression::make(options);
  EXPECT_TRUE(compression.ok()) << compression.status().to_string();
  return std::move(compression).value();
}

// Numbers of several magnitudes, as gradients have.
inline std::vector<float> numbers(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(std::pow(2 * rng.unit() - 1, 5));
  return values;
}

// One tensor of one rank, with memory for its payload.
class Rank {
 public:
  Rank(const Compression& compression, size_t count, int rank = 0, int ranks = 1, size_t rows = 1)
      : tensor_(compression.tensor(1, count, rank, ranks, rows)) {
    const PayloadShape shape = tensor_->shape();
    payload_.resize(shape.count * size_of(shape.type));
    side_.resize(shape.side_values);
  }

  void compress(const std::vector<float>& gradient) {
    std::vector<float> agreed(tensor_->agreed_values());
    if (!agreed.empty()) tensor_->agree(gradient.data(), agreed.data());
    compress(gradient, agreed);
  }
  // With what several ranks have agreed on.
  void compress(const std::vector<float>& gradient, const std::vector<float>& agreed) {
    tensor_->compress(gradient.data(), agreed.data(), payload_.data(), side_.data());
  }
  // Of the payload of this rank alone, or of a sum.
  std::vector<float> decompress() { return decompress(payload_.data(), side_.data(), 1); }
  std::vector<float> decompress(const void* payload, const float* side, int contributions) {
    std::vector<float> out(tensor_->count(), -1);
    tensor_->decompress(payload, side, contributions, out.data());
    return out;
  }
  std::vector<float> state(std::string_view name) {
    for (const CompressionState& part : tensor_->state())
      if (part.name == name) return {part.values.begin(), part.values.end()};
    ADD_FAILURE() << "there is no " << name;
    return {};
  }

  CompressedTensor& tensor() { return *tensor_; }
  template <typename T>
  std::vector<T> payload() const {
    std::vector<T> values(payload_.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), payload_.data(), payload_.size());
    return values;
  }
  const std::vector<float>& side() const { return side_; }

 private:
  std::unique_ptr<CompressedTensor> tensor_;
  std::vector<std::byte> payload_;
  std::vector<float> side_;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_TESTING_H_
