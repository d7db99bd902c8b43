// The compressed buckets of DistributedDataParallel.
#ifndef NETSUM_TORCH_SRC_COMPRESSED_BUCKETS_H_
#define NETSUM_TORCH_SRC_COMPRESSED_BUCKETS_H_

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/src/bucket_plan.h"
#include "torch/src/device_bucket.h"

namespace netsum::torch_backend {

// Averages the buckets of one model, compressed. Compresses on the thread of the backward pass and decompresses on a thread that runs
// callbacks of futures, both without Python's lock. Python has a part in a step where it must: it tells the scale of a loss, agrees on
// the steps of the tensors once, chooses the levels of "auto", and has the compressors that users have written.
class CompressedBuckets {
 public:
  using Future = c10::ivalue::Future;

  struct OfPython {
    pybind11::object scaler;          // a GradScaler, or None
    pybind11::object agree_on_steps;  // a function
    pybind11::object levels;          // _compress._LevelsOfSteps, or None
  };

  CompressedBuckets(c10::intrusive_ptr<ProcessGroupNetsum> group, std::shared_ptr<TrainingPass> pass,
                    std::shared_ptr<BucketStats> stats, OfPython of_python, bool has_python_compressors);
  ~CompressedBuckets();
  CompressedBuckets(const CompressedBuckets&) = delete;
  CompressedBuckets& operator=(const CompressedBuckets&) = delete;

  // A parameter of the model. It is not kept alive.
  void add(const at::Tensor& parameter, BucketPlan::Item item);

  // A future of the bucket's buffer, whose parts are the gradients of these parameters. A sparse buffer has no parts. The caller must
  // not hold Python's lock.
  c10::intrusive_ptr<Future> reduce(const at::Tensor& buffer, const std::vector<at::Tensor>& gradients,
                                    const std::vector<at::Tensor>& parameters);

 private:
  class Record;
  struct Decompressing;
  using WeakParameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Known {
    WeakParameter parameter;  // so that no other one gets its address
    BucketPlan::Item item;
  };
  // Type of the gradients, and what is in the bucket: ids and tensors, which are those of the plan.
  using Key = std::pair<at::ScalarType, std::vector<std::pair<uint64_t, const Tensor*>>>;

  const BucketPlan::Item& known(const at::Tensor& parameter) const;
  void begin(const std::vector<BucketPlan::Item>& items);
  std::shared_ptr<Record> enter(const std::vector<at::Tensor>& gradients, std::optional<double> scale,
                                std::vector<BucketPlan::Item>* items);
  // `staged`: null: the buffer is one of the CPU.
  c10::intrusive_ptr<Future> future_of(const BucketPlan::Works& works, const at::Tensor& buffer,
                                       std::shared_ptr<DeviceBucket> staged, std::function<void()> finish);
  std::shared_ptr<DeviceBucket> stage(const at::Tensor& buffer, const std::vector<at::Tensor>& gradients,
                                      const std::vector<BucketPlan::Item>& items);
  std::shared_ptr<BucketPlan> plan_of(const std::vector<BucketPlan::Item>& items, at::ScalarType type);
  std::optional<double> scale() const;

  const c10::intrusive_ptr<ProcessGroupNetsum> group_;
  const std::shared_ptr<TrainingPass> pass_;
  const std::shared_ptr<BucketStats> stats_;
  OfPython of_python_;
  const std::shared_ptr<Decompressing> decompressing_;  // null: no compressor is written in Python
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  std::map<Key, std::shared_ptr<BucketPlan>> plans_;
};

void bind_compressed_buckets(pybind11::module_& module);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_COMPRESSED_BUCKETS_H_
