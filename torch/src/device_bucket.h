// A compressed bucket of an accelerator, between there and the host.
#ifndef NETSUM_TORCH_SRC_DEVICE_BUCKET_H_
#define NETSUM_TORCH_SRC_DEVICE_BUCKET_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "torch/src/bucket_plan.h"
#include "torch/src/buffers.h"

namespace netsum::torch_backend {

// One step of a bucket. Gradients whose compression is a few operations of PyTorch (Tensor::on_device()) are encoded on the device, and what
// arrives is decoded there: only that crosses the bus. All others cross it as they are. For one thread at a time.
class DeviceBucket {
 public:
  // `gradients`: parts of `buffer`, whatever their strides. With `whole`, none is encoded on the device.
  DeviceBucket(const at::Tensor& buffer, const std::vector<at::Tensor>& gradients,
               const std::vector<BucketPlan::Item>& items, int ranks, bool whole);

  // Fills the buffers, in the current stream. The items' tensors that it changes become those of the pass.
  void encode(TrainingPass& pass);
  // To be staged after encode(); copying them back ends the step, for which they need `this`.
  Buffers& buffers() { return buffers_; }
  // On the host, flat, one for each item; undefined where only a payload is there.
  std::vector<at::Tensor> gradients() const;

  // Writes the payload of an item. Returns false if it is to be made of gradient(), on the host, which takes longer.
  bool take_payload(size_t item, const at::Tensor& payload);
  at::Tensor gradient(size_t item) const;
  // The mean of the payloads, which stays as it is until the buffers have been copied back.
  void give_mean(size_t item, const at::Tensor& mean);

 private:
  struct Part {
    at::Tensor gradient;  // on the device, flat
    std::shared_ptr<Tensor> tensor;
    Tensor::OnDevice how = Tensor::OnDevice::kNo;
    // Of the buffers. kLargest: the indices, behind which the values are, and those of the mean.
    size_t sent = 0, received = 0;
    at::Tensor halves, indices, values;  // on the device; of kLargest, of the mean
    at::Tensor dense;                    // on the host: a mean with more elements than `values`
  };

  void encode_largest(Part* part, TrainingPass& pass);
  void decode() const;

  const at::Tensor buffer_;
  const int ranks_;
  std::vector<Part> parts_;
  bool whole_ = true;  // the buffer is staged as one tensor
  Buffers buffers_;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_DEVICE_BUCKET_H_
