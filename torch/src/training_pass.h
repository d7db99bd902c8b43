// Which tensors are compressed in one pass over a model, so that a pass that fails counts for none of them.
#ifndef NETSUM_TORCH_SRC_TRAINING_PASS_H_
#define NETSUM_TORCH_SRC_TRAINING_PASS_H_

#include <torch/csrc/utils/pybind.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "torch/src/compressed_tensor.h"

namespace netsum::torch_backend {

// A pass, such as a backward pass, is a step of each of its tensors. If any of its operations fails, its gradients are of no use, also those
// of other buckets that were summed: the steps of all its tensors are taken back before the next pass, or before their state is read.
// Thread-safe.
class TrainingPass {
 public:
  // A bucket of these tensors (TensorView::id) begins. One that has begun already begins another pass. Returns true if the last pass had
  // failed, and has been taken back.
  bool begin(const std::vector<uint64_t>& ids);
  // The next bucket begins another pass.
  void end();
  // Takes the pass back if it has failed. Waits for what is in flight.
  bool take_back_if_failed();
  // Forgets the pass: the tensors have another state now.
  void forget();

  // The step of a tensor begins.
  void add(const std::shared_ptr<Tensor>& tensor);
  void fail();
  // Operations whose end another thread reports.
  void started();
  void ended(bool ok);

  uint64_t number() const;  // of the pass
  // Whether the ranks have agreed on the steps of all tensors since the last forget().
  bool has_agreed() const;
  void set_agreed();

 private:
  bool take_back(std::unique_lock<std::mutex>* lock);
  void begin_another();

  mutable std::mutex mutex_;  // guards the following members
  std::condition_variable changed_;
  std::set<uint64_t> ids_;
  std::vector<std::shared_ptr<Tensor>> tensors_;
  uint64_t number_ = 0;
  uint64_t in_flight_ = 0;
  bool failed_ = false;
  bool agreed_ = false;
};

void bind_training_pass(pybind11::module_& module);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_TRAINING_PASS_H_
