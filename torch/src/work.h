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

// Who is asking, for error messages.
struct OperationName {
  c10d::OpType type = c10d::OpType::ALLREDUCE;
  uint64_t sequence = 0;
  int rank = 0;
  int world_size = 1;
  std::string to_string() const;  // "all_reduce #12 on rank 1 of 4"
};

// What no all-reduce can give a result, as Gloo's cannot: a tensor with several elements at one place in memory
// (expand()). Refused before anything is sent.
Status check_tensors(const std::vector<at::Tensor>& tensors);

// Keeps the tensors alive until the operation has ended. A tensor that is not contiguous is reduced in a
// contiguous copy, which is copied back before the work counts as completed. So are all tensors of a call in which
// two overlap, as Gloo does: each place in memory then holds the sum of what all ranks had there before the call.
//
// Ends in two steps: end_on_engine() on the engine thread, which must stay quick, then end_on_completion() on
// the completion thread, where future callbacks may take Python's lock.
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
