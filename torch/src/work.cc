#include "torch/src/work.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <utility>

#include "torch/src/error.h"

namespace netsum::torch_backend {
namespace {

// The memory of a lazily negated tensor does not hold its values.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg();
}

// Whether the memory ranges of any two tensors, from first to last element, intersect. Interleaved tensors count, too.
bool any_overlap(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() < 2) return false;
  std::vector<std::pair<uintptr_t, uintptr_t>> regions;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    regions.emplace_back(begin, begin + static_cast<uintptr_t>(last + 1) * tensor.element_size());
  }
  std::sort(regions.begin(), regions.end());
  for (size_t i = 1; i < regions.size(); ++i)
    if (regions[i].first < regions[i - 1].second) return true;
  return false;
}

}  // namespace

Status check_tensors(const std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (at::has_internal_overlap(tensors[i]) != at::MemOverlap::Yes) continue;
    std::ostringstream text;
    text << "tensor " << i << ", of sizes " << tensors[i].sizes() << " and strides " << tensors[i].strides()
         << ", has several elements at one place in memory, where only one result fits: pass tensor.clone()";
    return {ErrorCode::kInvalidArgument, text.str()};
  }
  return {};
}

std::string OperationName::to_string() const {
  const char* what = type == c10d::OpType::ALLREDUCE_COALESCED ? "all_reduce_coalesced" : "all_reduce";
  return std::string(what) + " #" + std::to_string(sequence) + " on rank " + std::to_string(rank) + " of " +
         std::to_string(world_size);
}

AllReduceWork::AllReduceWork(OperationName name, const char* profiling_title, std::vector<at::Tensor> tensors,
                             std::vector<uint64_t> tensor_ids)
    : Work(name.rank, name.type, profiling_title, tensors),
      name_(name),
      tensors_(std::move(tensors)),
      tensor_ids_(std::move(tensor_ids)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  const bool overlap = any_overlap(tensors_);
  for (const auto& tensor : tensors_) {
    if (is_plain(tensor) && !overlap) {
      buffers_.push_back(tensor);
    } else {
      buffers_.push_back(at::empty_like(tensor, at::MemoryFormat::Contiguous).copy_(tensor));
    }
  }
}

std::vector<TensorView> AllReduceWork::views() const {
  std::vector<TensorView> views;
  views.reserve(buffers_.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    views.push_back({.input = buffers_[i].const_data_ptr(),
                     .output = buffers_[i].data_ptr(),
                     .count = static_cast<size_t>(buffers_[i].numel()),
                     .id = tensor_ids_.empty() ? 0 : tensor_ids_[i]});
  }
  return views;
}

bool AllReduceWork::has_copies() const {
  return !std::equal(tensors_.begin(), tensors_.end(), buffers_.begin(),
                     [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
}

void AllReduceWork::end_on_engine(const Status& status) {
  if (!status.ok()) error_ = std::make_exception_ptr(BackendError(name_.to_string(), status));
  // Waking the waiter here instead of on the completion thread saves a thread switch.
  if (error_ || !has_copies()) finish(error_);
}

void AllReduceWork::end_on_completion() {
  if (!error_ && has_copies()) {
    try {
      copy_back();
    } catch (...) {
      error_ = std::current_exception();
    }
    finish(error_);
  }
  buffers_.clear();
  if (error_) {
    future_->setError(error_);
  } else {
    future_->markCompleted(c10::IValue(tensors_));
  }
}

void AllReduceWork::copy_back() {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].is_same(buffers_[i])) tensors_[i].copy_(buffers_[i]);
  }
}

}  // namespace netsum::torch_backend
