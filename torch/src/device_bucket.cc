#include "torch/src/device_bucket.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

namespace netsum::torch_backend {
namespace {

using OnDevice = Tensor::OnDevice;

constexpr int64_t kMagnitude = 0x7FFFFFFF;  // of the bits of a float
constexpr int64_t kIndex = 0xFFFFFFFF;

at::ScalarType halves_of(const Tensor& tensor) {
  return tensor.compression().compressor().name() == "bf16" ? at::kBFloat16 : at::kHalf;
}

// The places of the k largest magnitudes, the largest first; of equal ones, those in front. They are the same on every device: no two of the
// numbers that are compared are equal.
at::Tensor places_of_largest(const at::Tensor& values, int64_t k) {
  const int64_t last = values.numel() - 1;
  at::Tensor keys = values.view(at::kInt).to(at::kLong);
  keys.bitwise_and_(kMagnitude).mul_(kIndex + 1).add_(at::arange(last, -1, -1, keys.options()));
  at::Tensor places = std::get<0>(at::topk(keys, k));
  return places.bitwise_and_(kIndex).mul_(-1).add_(last);
}

}  // namespace

DeviceBucket::DeviceBucket(const at::Tensor& buffer, const std::vector<at::Tensor>& gradients,
                           const std::vector<BucketPlan::Item>& items, int ranks, bool whole)
    : buffer_(buffer), ranks_(ranks) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    const int64_t begin = gradients[i].storage_offset() - buffer.storage_offset();
    Part part{.gradient = buffer.narrow(0, begin, gradients[i].numel()), .tensor = items[i].tensor};
    if (!whole && part.tensor != nullptr) part.how = part.tensor->on_device();
    whole_ = whole_ && part.how == OnDevice::kNo;
    parts_.push_back(std::move(part));
  }
}

// --- On the device ----------------------------------------------------------------------------------------------

void DeviceBucket::encode(TrainingPass& pass) {
  const at::NoGradGuard no_grad;
  if (whole_) {
    buffers_.add_in_place(buffer_);
    return;
  }
  for (Part& part : parts_) {
    switch (part.how) {
      case OnDevice::kNo:
        part.sent = part.received = buffers_.add_in_place(part.gradient);
        break;
      case OnDevice::kHalves:
        part.tensor->begin_on_device(part.gradient);
        pass.add(part.tensor);
        part.halves = part.gradient.to(at::kFloat).to(halves_of(*part.tensor));
        part.sent = part.received = buffers_.add_in_place(part.halves);
        break;
      case OnDevice::kLargest:
        encode_largest(&part, pass);
        break;
    }
  }
  buffers_.set_last_step([this] { decode(); });
}

void DeviceBucket::encode_largest(Part* part, TrainingPass& pass) {
  const auto k = static_cast<int64_t>(part->tensor->largest());
  const at::Tensor memory = part->tensor->begin_on_device(part->gradient);
  pass.add(part->tensor);
  const at::Tensor places = places_of_largest(memory, k);
  const at::Tensor values = memory.gather(0, places);
  // What is sent leaves nothing. Zeros are not sent, and keep their sign.
  at::Tensor rest = values.clone();
  rest.view(at::kInt).mul_(values.eq(0).to(at::kInt));
  memory.scatter_(0, places, rest);
  part->tensor->end_on_device(memory.device());
  part->sent = buffers_.add_input(places.to(at::kInt));
  buffers_.add_input(values);
  const int64_t most = std::min(k * ranks_, memory.numel());
  part->indices = at::empty({most}, places.options().dtype(at::kInt));
  part->values = at::empty({most}, values.options());
  part->received = buffers_.add_output(part->indices);
  buffers_.add_output(part->values);
}

void DeviceBucket::decode() const {
  const at::NoGradGuard no_grad;
  const Lane& lane = *buffers_.lane();
  const c10::StreamGuard out_stream(lane.out);
  lane.guard.recordDataPtrOnStream(buffer_.storage().data_ptr(), lane.out);
  for (const Part& part : parts_) {
    if (part.how == OnDevice::kHalves) {
      part.gradient.copy_(part.halves);
    } else if (part.dense.defined()) {
      part.gradient.copy_(part.dense);
    } else if (part.how == OnDevice::kLargest) {
      part.gradient.zero_();
      part.gradient.scatter_(0, part.indices.to(at::kLong), part.values.to(part.gradient.scalar_type()));
    }
  }
}

// --- On the host ------------------------------------------------------------------------------------------------

std::vector<at::Tensor> DeviceBucket::gradients() const {
  std::vector<at::Tensor> flat;
  for (const Part& part : parts_) {
    if (whole_)
      flat.push_back(buffers_.memory(0).narrow(0, part.gradient.storage_offset() - buffer_.storage_offset(),
                                               part.gradient.numel()));
    else
      flat.push_back(part.how == OnDevice::kNo ? buffers_.memory(part.sent) : at::Tensor());
  }
  return flat;
}

at::Tensor DeviceBucket::gradient(size_t item) const {
  return parts_[item].gradient.to(at::kCPU).to(at::kFloat);
}

bool DeviceBucket::take_payload(size_t item, const at::Tensor& payload) {
  Part& part = parts_[item];
  if (part.how == OnDevice::kHalves) {
    payload.copy_(buffers_.memory(part.sent));
  } else {
    const at::Tensor places = buffers_.memory(part.sent), values = buffers_.memory(part.sent + 1);
    const auto* const place = places.const_data_ptr<int>();
    const auto* const value = values.const_data_ptr<float>();
    const int64_t k = values.numel(), count = payload.numel();
    // There may be more that is not finite, all of which is sent.
    if (!std::isfinite(value[k - 1])) {
      part.tensor->give_up();
      return false;
    }
    payload.zero_();
    auto* const sent = payload.mutable_data_ptr<float>();
    for (int64_t i = 0; i < k && value[i] != 0; ++i) {
      TORCH_INTERNAL_ASSERT(place[i] >= 0 && place[i] < count);
      sent[place[i]] = value[i];
    }
  }
  part.tensor->compressed_on_device();
  return true;
}

void DeviceBucket::give_mean(size_t item, const at::Tensor& mean) {
  Part& part = parts_[item];
  if (part.how == OnDevice::kHalves) {
    buffers_.memory(part.received).copy_(mean);
    return;
  }
  const at::Tensor indices = buffers_.memory(part.received), values = buffers_.memory(part.received + 1);
  auto* const index = indices.mutable_data_ptr<int>();
  auto* const value = values.mutable_data_ptr<float>();
  const int64_t most = values.numel();
  const auto* const from = mean.const_data_ptr<float>();
  int64_t used = 0;
  for (int64_t i = 0; i < mean.numel(); ++i) {
    if (std::bit_cast<uint32_t>(from[i]) == 0) continue;
    if (used == most) {
      part.dense = mean;
      break;
    }
    index[used] = static_cast<int>(i);
    value[used++] = from[i];
  }
  if (used == 0) {
    index[0] = 0;
    value[0] = 0;
    used = 1;
  }
  std::fill(index + used, index + most, index[0]);
  std::fill(value + used, value + most, value[0]);
}

}  // namespace netsum::torch_backend
