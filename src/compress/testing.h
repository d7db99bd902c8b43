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
  // Without the last bytes, if these are no whole T.
  template <typename T>
  std::vector<T> payload() const {
    std::vector<T> values(payload_.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), payload_.data(), values.size() * sizeof(T));
    return values;
  }
  const std::vector<float>& side() const { return side_; }

 private:
  std::unique_ptr<CompressedTensor> tensor_;
  std::vector<std::byte> payload_;
  std::vector<float> side_;
};

// All ranks of one tensor, summed as the network does.
class Job {
 public:
  Job(const Compression& compression, size_t count, int ranks, size_t rows = 1)
      : agreement_(compression.compressor().agreement()) {
    for (int r = 0; r < ranks; ++r) ranks_.emplace_back(compression, count, r, ranks, rows);
  }

  // What all ranks get; fails if it is not the same.
  std::vector<float> step(const std::vector<std::vector<float>>& inputs) {
    const auto n = static_cast<float>(ranks_.size());
    std::vector<float> agreed, mine(ranks_[0].tensor().agreed_values());
    for (size_t r = 0; r < ranks_.size() && !mine.empty(); ++r) {
      ranks_[r].tensor().agree(inputs[r].data(), mine.data());
      if (agreed.empty()) agreed.assign(mine.size(), agreement_ == Agreement::kMax ? -INFINITY : 0);
      for (size_t i = 0; i < mine.size(); ++i) {
        if (agreement_ == Agreement::kMean) {
          agreed[i] += mine[i] / n;
        } else if (std::isnan(mine[i]) || mine[i] > agreed[i]) {
          agreed[i] = mine[i];
        }
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].compress(inputs[r], agreed);
    std::vector<float> side(ranks_[0].side().size(), 0.0f);
    for (const Rank& rank : ranks_)
      for (size_t i = 0; i < side.size(); ++i) side[i] += rank.side()[i] / n;
    return ranks_[0].tensor().shape().type == DataType::kInt32
               ? received<int32_t>(side, static_cast<int>(ranks_.size()))
               : received<float>(side, 1);
  }
  Rank& rank(size_t r) { return ranks_[r]; }

 private:
  template <typename T>
  std::vector<float> received(const std::vector<float>& side, int contributions) {
    std::vector<T> sums(ranks_[0].tensor().shape().count, 0);
    for (const Rank& rank : ranks_) {
      const auto payload = rank.payload<T>();
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] +=
            contributions > 1 || ranks_.size() == 1 ? payload[i] : payload[i] / static_cast<T>(ranks_.size());
    }
    auto out = ranks_[0].decompress(sums.data(), side.data(), contributions);
    for (size_t r = 1; r < ranks_.size(); ++r) {
      const auto other = ranks_[r].decompress(sums.data(), side.data(), contributions);
      EXPECT_EQ(std::memcmp(other.data(), out.data(), out.size() * sizeof(float)), 0) << "rank " << r;
    }
    return out;
  }

  Agreement agreement_;
  std::vector<Rank> ranks_;
};

inline double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_TESTING_H_
