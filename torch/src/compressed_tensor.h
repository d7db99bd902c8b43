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
#include "torch/src/staging.h"

namespace netsum::torch_backend {

using CompressionPtr = std::shared_ptr<const Compression>;

// A tensor, the compression that it needs, and the scale of the loss when its memory was written. Functions that compute need no
// lock of Python. They throw ValueError for arguments of the wrong type or size.
class Tensor {
 public:
  // `built_in`: the compressor is netsum's.
  Tensor(CompressionPtr compression, bool built_in, uint64_t id, size_t count, int rank, int ranks,
         size_t rows)
      : compression_(std::move(compression)),
        built_in_(built_in),
        id_(id),
        count_(count),
        rank_(rank),
        ranks_(ranks),
        rows_(rows) {}

  // Made when it is first used: a sparse gradient never needs its memory. The memory may be on an accelerator.
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

  // How a gradient is encoded on an accelerator, where a few operations of PyTorch give the bits that this class computes on the host: it
  // is rounded to 16 bits, or its largest elements are found.
  enum class OnDevice : uint8_t { kNo, kHalves, kLargest };
  OnDevice on_device() const;
  size_t largest() const;  // how many are sent
  // A step begins on the device of the gradient. Returns, of kLargest, the gradient with what was kept: the memory, which is there until
  // it is needed here. In the current stream, as all that the caller does with it before end_on_device().
  at::Tensor begin_on_device(const at::Tensor& gradient);
  void end_on_device(const c10::Device& device);
  // In place of compress(): the payload is there.
  void compressed_on_device() { get().set_step(step() + 1); }
  // Of the last step, if one has begun (CompressedTensor::give_up()).
  void give_up();
  void clear_memory_from(size_t begin);  // an element

  std::optional<double> scale() const { return scale_; }
  void set_scale(std::optional<double> scale) { scale_ = scale; }
  // The loss is scaled by `scale` from now on; the memory follows. nullopt: nothing is known of a scale.
  void follow_scale(std::optional<double> scale);

 private:
  CompressedTensor& with_memory();  // get(), with the memory on the host
  void check_payload(const at::Tensor& payload, const at::Tensor& side);
  void check_received(const at::Tensor& payload, const at::Tensor& side);

  CompressionPtr compression_;
  bool built_in_;
  uint64_t id_;
  size_t count_;
  int rank_;
  int ranks_;
  size_t rows_;
  uint64_t step_ = 0;  // with which tensor_ is made
  std::unique_ptr<CompressedTensor> tensor_;
  std::optional<double> scale_;

  // On an accelerator: what is kept, what was kept before the last step, and an event after which they are there. Undefined: all is in
  // tensor_.
  at::Tensor memory_, before_;
  EventPtr written_;
  std::optional<uint64_t> step_before_;  // of the last step, if it began there, and can be taken back
};

// What a payload that varies says of itself; 0 of one that is too short to say it.
uint64_t used_bytes(const void* payload, size_t bytes);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_COMPRESSED_TENSOR_H_
