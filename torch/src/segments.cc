#include "torch/src/segments.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace netsum::torch_backend {
namespace {

// Segments that are being copied to the host: the bus does not wait while one thread waits for the first of them.
constexpr size_t kAhead = 4;

const std::byte* begin_of(const Segments::Staged& tensor) {
  return static_cast<const std::byte*>(tensor.here.const_data_ptr());
}

const std::byte* end_of(const Segments::Staged& tensor) {
  return begin_of(tensor) + tensor.here.nbytes();
}

at::Tensor slice(const at::Tensor& flat, size_t begin, size_t count) {
  return flat.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(count));
}

}  // namespace

Segments::Segments(LanePtr lane, std::shared_ptr<StagingPool::Block> block, EventPtr ready,
                   std::vector<Segments::Staged> tensors, std::optional<double> factor, bool reads_first)
    : lane_(std::move(lane)),
      block_(std::move(block)),
      ready_(std::move(ready)),
      tensors_(std::move(tensors)),
      factor_(factor),
      all_read_(!reads_first) {}

Segments::~Segments() {
  if (!in_flight_.empty()) block_->used_until(in_flight_.back().event);
}

// --- To the host ------------------------------------------------------------------------------------------------

void Segments::enqueue_segment() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::StreamGuard in_stream(lane_->in);
  if (tensor_ == 0 && element_ == 0) ready_->block(lane_->in);
  const std::byte* end = begin_of(tensors_.front());
  for (size_t left = lane_->segment; left > 0 && tensor_ < tensors_.size();) {
    const Segments::Staged& tensor = tensors_[tensor_];
    const size_t itemsize = tensor.here.itemsize(), elements = static_cast<size_t>(tensor.here.numel());
    const size_t count = std::min(elements - element_, (left + itemsize - 1) / itemsize);
    if (tensor.reads && count > 0) {
      slice(tensor.here, element_, count).copy_(slice(tensor.there, element_, count), /*non_blocking=*/true);
      left -= std::min(left, count * itemsize);
      element_ += count;
      end = begin_of(tensor) + element_ * itemsize;
    }
    if (!tensor.reads || element_ == elements) {
      ++tensor_;
      element_ = 0;
    }
  }
  if (tensor_ == tensors_.size()) end = end_of(tensors_.back());
  in_flight_.push_back({record_event(lane_->in), end});
}

// All segments, or one if the operation has not begun.
Status Segments::bring(const Patience& patience) {
  while (tensor_ < tensors_.size() || !in_flight_.empty()) {
    while (tensor_ < tensors_.size() && in_flight_.size() < kAhead) enqueue_segment();
    if (Status status = wait_for(*in_flight_.front().event, lane_->device, patience); !status.ok())
      return status;
    if (factor_) scale(in_flight_.front().end);
    there_until_ = in_flight_.front().end;
    in_flight_.pop_front();
    if (!watermarks_) return {};
    raise_available();
  }
  all_read_ = true;
  return {};
}

void Segments::scale(const std::byte* end) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (; scaled_tensor_ < tensors_.size(); ++scaled_tensor_, scaled_ = 0) {
    const Segments::Staged& tensor = tensors_[scaled_tensor_];
    const size_t there = std::clamp(end, begin_of(tensor), end_of(tensor)) - begin_of(tensor);
    const size_t elements = there / tensor.here.itemsize();
    if (tensor.reads && elements > scaled_) slice(tensor.here, scaled_, elements - scaled_).mul_(*factor_);
    scaled_ = elements;
    if (end < end_of(tensor)) return;
  }
}

void Segments::raise_available() {
  size_t available = input_begin_;
  for (; input_part_ < parts_.size(); ++input_part_) {
    const BufferView& part = parts_[input_part_];
    const auto* const input = static_cast<const std::byte*>(part.input);
    if (input != nullptr && input + part.bytes > there_until_) {
      if (input < there_until_) available += static_cast<size_t>(there_until_ - input);
      break;
    }
    available = input_begin_ += part.bytes;
  }
  watermarks_->make_available(available);
}

std::shared_ptr<Watermarks> Segments::begin(std::vector<BufferView> parts,
                                            Watermarks::OnDelivered on_delivered) {
  parts_ = std::move(parts);
  for (const BufferView& part : parts_) total_ += part.bytes;
  on_delivered_ = std::move(on_delivered);
  if (on_delivered_) {
    watermarks_ = std::make_shared<Watermarks>(lane_->segment, [weak = weak_from_this()](size_t delivered) {
      if (const auto segments = weak.lock()) segments->on_delivered_(delivered);
    });
  } else {
    watermarks_ = std::make_shared<Watermarks>();
  }
  raise_available();
  return watermarks_;
}

void Segments::bring_rest(const Patience& patience) {
  if (!watermarks_) return;
  Status status;
  try {
    status = bring(patience);
  } catch (const std::exception&) {
    status = status_of_device(lane_->device);
  }
  if (!status.ok()) watermarks_->fail(status);
}

// --- To the device ----------------------------------------------------------------------------------------------

void Segments::return_memory(const std::byte* from, size_t bytes) {
  const auto after = std::upper_bound(
      tensors_.begin(), tensors_.end(), from,
      [](const std::byte* address, const Segments::Staged& tensor) { return address < begin_of(tensor); });
  const Segments::Staged& tensor = *std::prev(after);
  const size_t begin = static_cast<size_t>(from - begin_of(tensor)) / tensor.here.itemsize();
  const size_t count = bytes / tensor.here.itemsize();
  slice(tensor.there, begin, count).copy_(slice(tensor.here, begin, count), /*non_blocking=*/true);
}

void Segments::return_results(size_t delivered) {
  if (!all_read_) return;
  constexpr size_t kWhole = 16;  // bytes: a multiple of the size of every element
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::StreamGuard out_stream(lane_->out);
  for (; output_part_ < parts_.size() && output_begin_ < delivered; ++output_part_) {
    const BufferView& part = parts_[output_part_];
    size_t end = std::min(part.bytes, delivered - output_begin_);
    if (end < part.bytes) end -= end % kWhole;
    if (part.output != nullptr && end > output_offset_)
      return_memory(static_cast<const std::byte*>(part.output) + output_offset_, end - output_offset_);
    output_offset_ = std::max(output_offset_, end);
    if (end < part.bytes) return;
    output_begin_ += part.bytes;
    output_offset_ = 0;
  }
}

}  // namespace netsum::torch_backend
