// One all-reduce as c10d sees it.
#ifndef NETSUM_TORCH_SRC_WORK_H_
#define NETSUM_TORCH_SRC_WORK_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/status.h"

namespace netsum::torch_backend {

// Identifies the operation in error messages.
struct OperationName {
  c10d::OpType type = c10d::OpType::ALLREDUCE;
  uint64_t sequence = 0;
  int rank = 0;
  int world_size = 1;
  std::string to_string() const;  // "all_reduce #12 on rank 1 of 4"
};

// Refuses tensors with several elements at one place in memory (expand()), which cannot hold the result. Gloo refuses them,
// too.
Status check_tensors(const std::vector<at::Tensor>& tensors);

// Keeps the tensors alive until the operation has ended. A tensor that is not contiguous is reduced in a contiguous copy,
// which is copied back before the work counts as completed. If two tensors of a call overlap, all of them are copied, as
// Gloo does: each place in memory then holds the sum of what all ranks had there before the call.
//
// A work ends in two steps: end_on_engine() on the engine thread, which must be fast, then end_on_completion() on the
// completion thread, where the future's callbacks may take Python's lock.
class AllReduceWork : public c10d::Work {
 public:
  // `tensor_ids`: TensorView::id of each tensor, or empty.
  AllReduceWork(OperationName name, const char* profiling_title, std::vector<at::Tensor> tensors,
                std::vector<uint64_t> tensor_ids);

  // Views of the memory to reduce, in place.
  std::vector<TensorView> views() const;

  void end_on_engine(const Status& status);
  void end_on_completion();

  std::vector<at::Tensor> result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return name_.sequence; }

 private:
  bool has_copies() const;
  void copy_back();

  const OperationName name_;
  const std::vector<at::Tensor> tensors_;
  const std::vector<uint64_t> tensor_ids_;
  std::vector<at::Tensor> buffers_;  // tensors_, or contiguous copies of some or all of them
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::exception_ptr error_;  // written on the engine thread, read on the completion thread after it
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_WORK_H_
