// A netsum::CompressedTensor whose arguments are PyTorch's tensors.
#ifndef NETSUM_TORCH_SRC_COMPRESSED_TENSOR_H_
#define NETSUM_TORCH_SRC_COMPRESSED_TENSOR_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "netsum/compression.h"

namespace netsum::torch_backend {

using CompressionPtr = std::shared_ptr<const Compression>;

// A tensor, the compression that it needs, and the scale of the loss when its memory was written. Functions that compute need no
// lock of Python. They throw ValueError for arguments of the wrong type or size.
class Tensor {
 public:
  Tensor(CompressionPtr compression, uint64_t id, size_t count, int rank, int ranks, size_t rows)
      : compression_(std::move(compression)),
        id_(id),
        count_(count),
        rank_(rank),
        ranks_(ranks),
        rows_(rows) {}

  // Made when it is first used: a sparse gradient never needs its memory.
  CompressedTensor& get();
  const Compression& compression() const { return *compression_; }

  size_t agreed_values() { return get().agreed_values(); }
  bool agrees_on_means() const { return compression_->compressor().agreement() == Agreement::kMean; }
  void agree(const at::Tensor& gradient, const at::Tensor& mine);
  void compress(const at::Tensor& gradient, const at::Tensor& agreed, const at::Tensor& payload,
                const at::Tensor& side);
  void decompress(const at::Tensor& payload, const at::Tensor& side, int contributions,
                  const at::Tensor& out);

  std::map<std::string, at::Tensor> state();  // copies
  void restore(uint64_t step, const std::map<std::string, at::Tensor>& saved);
  uint64_t step() const { return tensor_ ? tensor_->step() : step_; }
  void set_step(uint64_t step);
  double memory_norm();
  // Of the last step, if one has begun (CompressedTensor::give_up()).
  void give_up();
  void clear_memory_from(size_t begin);  // an element

  std::optional<double> scale() const { return scale_; }
  void set_scale(std::optional<double> scale) { scale_ = scale; }
  // The loss is scaled by `scale` from now on; the memory follows. nullopt: nothing is known of a scale.
  void follow_scale(std::optional<double> scale);

 private:
  void check_payload(const at::Tensor& payload, const at::Tensor& side);
  void check_received(const at::Tensor& payload, const at::Tensor& side);

  CompressionPtr compression_;
  uint64_t id_;
  size_t count_;
  int rank_;
  int ranks_;
  size_t rows_;
  uint64_t step_ = 0;  // with which tensor_ is made
  std::unique_ptr<CompressedTensor> tensor_;
  std::optional<double> scale_;
};

// What a payload that varies says of itself; 0 of one that is too short to say it.
uint64_t used_bytes(const void* payload, size_t bytes);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_COMPRESSED_TENSOR_H_
