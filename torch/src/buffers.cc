#include "torch/src/buffers.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "netsum/late_join.h"

namespace netsum::torch_backend {
namespace {

Status check_result(const at::Tensor& tensor) {
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return {};
  std::ostringstream text;
  text << "a tensor of sizes " << tensor.sizes() << " and strides " << tensor.strides()
       << " has several elements at one place in memory, where only one result fits: pass tensor.clone()";
  return {ErrorCode::kInvalidArgument, text.str()};
}

void multiply(at::Tensor* tensor, int64_t numerator, int64_t denominator) {
  if (tensor->is_floating_point())
    tensor->mul_(static_cast<double>(numerator) / static_cast<double>(denominator));
  else
    tensor->mul_(numerator).div_(denominator, "trunc");
}

}  // namespace

bool is_plain(const at::Tensor& tensor) {
  // The memory of a lazily negated or conjugated tensor does not hold its values.
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

// The memory of a tensor is the range from its first to its last element, so interleaved tensors overlap, too.
bool Buffers::results_overlap(bool with_inputs) const {
  struct Region {
    uintptr_t begin, end;
    bool written;
  };
  if (items_.size() < 2) return false;
  std::vector<Region> regions;
  regions.reserve(items_.size());
  for (const auto& [tensor, reads, writes, overwritten, buffer] : items_) {
    if (tensor.numel() == 0) continue;
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    regions.push_back({begin, begin + static_cast<uintptr_t>(last + 1) * tensor.element_size(), writes});
  }
  std::sort(regions.begin(), regions.end(),
            [](const Region& a, const Region& b) { return a.begin < b.begin; });
  uintptr_t read_end = 0, written_end = 0;  // of the regions that begin before
  for (const Region& region : regions) {
    if (region.begin < written_end && (with_inputs || region.written)) return true;
    if (region.written && with_inputs && region.begin < read_end) return true;
    uintptr_t& end = region.written ? written_end : read_end;
    end = std::max(end, region.end);
  }
  return false;
}

Status Buffers::check_devices() {
  for (const Item& item : items_) {
    const c10::Device here = item.tensor.device(), first = items_.front().tensor.device();
    if (here != first)
      return {ErrorCode::kInvalidArgument,
              "tensors on " + first.str() + " and " + here.str() +
                  " in one call: move them to one device, such as with tensor.to(\"" + first.str() + "\")"};
    if (is_accelerator(here)) device_ = here;
  }
  return {};
}

Status Buffers::prepare(std::optional<double> factor) {
  for (const Item& item : items_) {
    if (!item.writes) continue;
    if (Status status = check_result(item.tensor); !status.ok()) return status;
  }
  if (Status status = check_devices(); !status.ok()) return status;
  if (device_) {
    factor_ = factor;
    for (const Item& item : items_) must_copy_back_ |= item.writes;
    return {};
  }
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  const bool overlap = results_overlap(/*with_inputs=*/true);
  for (Item& item : items_) {
    const bool scaled = item.reads && factor.has_value();
    if (!scaled && is_plain(item.tensor) && !item.overwritten && !(item.writes && overlap)) {
      item.buffer = item.tensor;
      continue;
    }
    item.buffer = at::empty_like(item.tensor, at::MemoryFormat::Contiguous);
    if (item.reads) item.buffer.copy_(item.tensor);
    if (scaled) item.buffer.mul_(*factor);
    must_copy_back_ |= item.writes;
  }
  return {};
}

uint64_t Buffers::total_bytes() const {
  uint64_t bytes = 0;
  for (const Item& item : items_) bytes += item.tensor.nbytes();
  return bytes;
}

void Buffers::leave_device(LanePtr lane) {
  lane_ = std::move(lane);
  caller_ = lane_->guard.getStream(*device_);
  ready_ = record_event(*caller_);
  // The copies back are still to come when the caller and this call have let go of the results.
  for (const Item& item : items_)
    if (item.writes && item.tensor.has_storage() && item.tensor.nbytes() > 0)
      lane_->guard.recordDataPtrOnStream(item.tensor.storage().data_ptr(), lane_->out);
}

size_t Buffers::staged_bytes() const {
  size_t read = 0, written = 0;
  for (const Item& item : items_) {
    if (item.reads) read += item.tensor.nbytes();
    if (item.writes) written += item.tensor.nbytes();
  }
  return std::max(read, written);
}

Status Buffers::stage_in(const Patience& patience, StagingPool& pool) {
  constexpr size_t kAlignment = 64;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  size_t bytes = 0;
  for (const Item& item : items_) bytes += (item.tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  if (Status status = pool.take(bytes, patience, &block_); !status.ok()) return status;
  int64_t begin = 0;
  for (Item& item : items_) {
    const auto size = static_cast<int64_t>(item.tensor.nbytes());
    item.buffer =
        block_->memory().narrow(0, begin, size).view(item.tensor.scalar_type()).view(item.tensor.sizes());
    begin += (size + static_cast<int64_t>(kAlignment) - 1) / static_cast<int64_t>(kAlignment) *
             static_cast<int64_t>(kAlignment);
  }
  // A smaller operation may wait for its input while it is submitted (watermarks.h). Results that overlap are written in order.
  const bool by_segments =
      segments_allowed_ && lane_->segment > 0 && staged_bytes() > std::max(lane_->segment, kLateBytes) &&
      std::all_of(items_.begin(), items_.end(), [](const Item& item) { return is_plain(item.tensor); }) &&
      !results_overlap(/*with_inputs=*/false);
  if (by_segments) {
    std::vector<Segments::Staged> tensors;
    for (const Item& item : items_) {
      const int64_t elements = item.tensor.numel();
      if (elements == 0) continue;  // it has no address
      tensors.push_back({.there = item.tensor.detach().view({elements}),
                         .here = item.buffer.view({elements}),
                         .reads = item.reads});
    }
    segments_ = std::make_shared<Segments>(lane_, block_, ready_, std::move(tensors), factor_,
                                           /*reads_first=*/results_overlap(/*with_inputs=*/true));
    return segments_->bring_first(patience);
  }
  const c10::StreamGuard in_stream(lane_->in);
  ready_->block(lane_->in);
  for (Item& item : items_)
    if (item.reads) item.buffer.copy_(item.tensor, /*non_blocking=*/true);
  const EventPtr copied = record_event(lane_->in);
  block_->used_until(copied);
  if (Status status = wait_for(*copied, *device_, patience); !status.ok()) return status;
  if (!factor_) return {};
  for (Item& item : items_)
    if (item.reads) item.buffer.mul_(*factor_);
  return {};
}

std::shared_ptr<Watermarks> Buffers::watermarks(std::vector<BufferView> parts,
                                                Watermarks::OnDelivered on_delivered) {
  // What changes the results on the host comes after the end.
  returns_segments_ = numerator_ == denominator_ && divisor_ == 1 && first_steps_.empty();
  return segments_->begin(std::move(parts),
                          returns_segments_ ? std::move(on_delivered) : Watermarks::OnDelivered());
}

void Buffers::copy_back(size_t delivered) {
  if (returns_segments_) segments_->return_results(delivered);
}

void Buffers::copy_back() {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const auto& step : first_steps_) step();
  if (returns_segments_) {
    segments_->return_all();
  } else {
    const c10::OptionalStreamGuard out_stream(lane_ ? std::optional(lane_->out) : std::nullopt);
    for (Item& item : items_) {
      if (!item.writes) continue;
      if (numerator_ != denominator_) multiply(&item.buffer, numerator_, denominator_);
      if (divisor_ != 1) item.buffer.div_(divisor_, "trunc");
      if (!item.tensor.is_same(item.buffer))
        item.tensor.copy_(item.buffer, /*non_blocking=*/lane_ != nullptr);
    }
  }
  if (lane_) note_arrival();
  if (last_step_) last_step_();
}

void Buffers::return_sparse(const at::Tensor& tensor, const at::Tensor& indices,
                            const at::Tensor& values) const {
  const c10::StreamGuard out_stream(lane_->out);
  const auto on_device = [&](const at::Tensor& part) {
    at::Tensor copy = at::empty_like(part, part.options().device(*device_), at::MemoryFormat::Contiguous);
    copy.copy_(part, /*non_blocking=*/true);
    // It was allocated for the stream of the copies, and the caller frees it in another one.
    if (copy.nbytes() > 0) lane_->guard.recordDataPtrOnStream(copy.storage().data_ptr(), *caller_);
    return copy;
  };
  at::SparseTensorImpl* const impl = at::sparse::get_sparse_impl(tensor);
  impl->set_indices_and_values_unsafe(on_device(indices), on_device(values));
  impl->set_coalesced(true);
}

void Buffers::give_up() {
  if (returns_segments_ && segments_) note_arrival();
}

void Buffers::note_arrival() {
  const EventPtr copied = record_event(lane_->out);
  block_->used_until(copied);
  arrival_ = Arrival(lane_, copied);
}

}  // namespace netsum::torch_backend
