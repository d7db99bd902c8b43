// The tensors of one call as memory that the library can use.
#ifndef NETSUM_TORCH_SRC_BUFFERS_H_
#define NETSUM_TORCH_SRC_BUFFERS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "netsum/status.h"
#include "torch/src/segments.h"
#include "torch/src/staging.h"

namespace netsum::torch_backend {

// Whether the memory of the tensor holds its elements in order.
bool is_plain(const at::Tensor& tensor);

// A tensor that is not contiguous is replaced by a contiguous copy; copy_back() writes the results to the tensor. If the
// memory of a result overlaps that of another tensor, all results are copies, as in Gloo: the operation then reads what was
// there before the call, and overlapping results are written in the order in which they were added.
//
// Tensors of an accelerator get memory of the host, which stage_in() fills in a stream of its own; copy_back() then copies the
// results to the device, in another one. Large ones are staged by segments where the call allows it.
class Buffers {
 public:
  // Adds a tensor that this rank reads, writes, or does both with, and returns its index.
  size_t add_input(const at::Tensor& tensor) { return add({.tensor = tensor, .reads = true}); }
  size_t add_output(const at::Tensor& tensor) { return add({.tensor = tensor, .writes = true}); }
  size_t add_in_place(const at::Tensor& tensor) {
    return add({.tensor = tensor, .reads = true, .writes = true});
  }
  // A tensor that this rank reads, in a copy that others may overwrite.
  size_t add_scratch(const at::Tensor& tensor) {
    return add({.tensor = tensor, .reads = true, .overwritten = true});
  }

  // Something that copy_back() does besides, at the end.
  void set_last_step(std::function<void()> step) {
    last_step_ = std::move(step);
    must_copy_back_ = true;
  }

  // Something that copy_back() does first, with the buffers.
  void add_first_step(std::function<void()> step) {
    first_steps_.push_back(std::move(step));
    must_copy_back_ = true;
  }

  // copy_back() multiplies the results by `numerator` / `denominator`. Integers lose the fractions.
  void set_ratio(int64_t numerator, int64_t denominator) {
    numerator_ = numerator;
    denominator_ = denominator;
    must_copy_back_ = true;
  }
  // copy_back() divides the results, of an integer type, and drops the fractions.
  void set_divisor(int64_t divisor) {
    divisor_ = divisor;
    must_copy_back_ = true;
  }

  // The call is one operation of the library, which can have watermarks.
  void allow_segments() { segments_allowed_ = true; }

  // Makes the copies of tensors on the host. To be called once, when all tensors have been added. All inputs are multiplied by
  // `factor`, in copies. kInvalidArgument: a result has several elements at one place in memory (expand()), where only one fits,
  // or the tensors are on different devices.
  Status prepare(std::optional<double> factor = {});

  // The accelerator that the tensors are on, if any.
  std::optional<c10::Device> device() const { return device_; }
  // device(). The input is what is there when all has been done that is in the current stream now. To be called after prepare().
  void leave_device(LanePtr lane);
  // device(). Makes the buffers. Waits until the input is there, or the first segment of it.
  Status stage_in(const Patience& patience) { return stage_in(patience, *lane_->pool); }
  // The same in memory of `pool`.
  Status stage_in(const Patience& patience, StagingPool& pool);
  const LanePtr& lane() const { return lane_; }  // after leave_device()
  // After stage_in(), until clear(); null: the buffers are not staged by segments.
  const std::shared_ptr<Segments>& segments() const { return segments_; }
  // segments(). For the operation that uses `parts`: copy_back() need not wait for its end if on_delivered() is called.
  std::shared_ptr<Watermarks> watermarks(std::vector<BufferView> parts, Watermarks::OnDelivered on_delivered);

  const std::byte* input(size_t index) const {
    return static_cast<const std::byte*>(items_[index].buffer.const_data_ptr());
  }
  std::byte* output(size_t index) const {
    return static_cast<std::byte*>(items_[index].buffer.mutable_data_ptr());
  }
  size_t count(size_t index) const { return static_cast<size_t>(items_[index].tensor.numel()); }
  size_t bytes(size_t index) const { return items_[index].tensor.nbytes(); }

  size_t size() const { return items_.size(); }
  const at::Tensor& tensor(size_t index) const { return items_[index].tensor; }
  // Contiguous, with the sizes of the tensor, and without its gradient.
  at::Tensor memory(size_t index) const { return items_[index].buffer.detach(); }
  uint64_t total_bytes() const;
  // The first tensor, undefined if there is none.
  at::Tensor first() const { return items_.empty() ? at::Tensor() : items_.front().tensor; }

  // device(). Makes `tensor`, a sparse one on the device, of these indices and values on the host. To be called in a step of
  // copy_back(), or before it.
  void return_sparse(const at::Tensor& tensor, const at::Tensor& indices, const at::Tensor& values) const;

  bool must_copy_back() const { return must_copy_back_; }
  void copy_back();
  // Copies the results below `delivered` back, of an operation that has watermarks().
  void copy_back(size_t delivered);
  // In place of copy_back(): the operation has failed, perhaps after some results have been copied back.
  void give_up();
  // After copy_back() or give_up(). Kept by clear().
  const Arrival& arrival() const { return arrival_; }
  // Forgets all tensors.
  void clear() {
    items_.clear();
    block_.reset();
    segments_.reset();
    first_steps_.clear();
    last_step_ = nullptr;
  }

 private:
  struct Item {
    at::Tensor tensor;
    bool reads = false;
    bool writes = false;
    bool overwritten = false;  // the buffer, which is a copy
    at::Tensor buffer;         // `tensor` or a copy
  };

  size_t add(Item item) {
    items_.push_back(std::move(item));
    return items_.size() - 1;
  }
  bool results_overlap(bool with_inputs) const;  // or only with each other
  // The bytes that each of the operation's two directions has at least.
  size_t staged_bytes() const;
  void note_arrival();

  std::vector<Item> items_;
  Status check_devices();

  int64_t numerator_ = 1, denominator_ = 1, divisor_ = 1;
  std::vector<std::function<void()>> first_steps_;
  std::function<void()> last_step_;
  bool must_copy_back_ = false;

  // Of tensors on an accelerator.
  std::optional<c10::Device> device_;
  std::optional<double> factor_;
  LanePtr lane_;
  std::optional<c10::Stream> caller_;  // the current stream at leave_device()
  EventPtr ready_;
  std::shared_ptr<StagingPool::Block> block_;
  bool segments_allowed_ = false;
  bool returns_segments_ = false;  // copy_back(size_t) is called
  std::shared_ptr<Segments> segments_;
  Arrival arrival_;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_BUFFERS_H_
