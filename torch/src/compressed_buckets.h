// Compression as a hook of DistributedDataParallel's reducer.
#ifndef NETSUM_TORCH_SRC_COMPRESSED_BUCKETS_H_
#define NETSUM_TORCH_SRC_COMPRESSED_BUCKETS_H_

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/src/bucket_plan.h"

namespace netsum::torch_backend {

// Averages the buckets of one model, compressed. Compresses on the thread of the backward pass and decompresses on the completion
// thread, both without Python's lock; only the scale of a loss is asked of Python, on the thread of the backward pass.
class CompressedBuckets {
 public:
  using Future = c10::ivalue::Future;

  // `scaler`: a GradScaler, or None.
  CompressedBuckets(c10::intrusive_ptr<ProcessGroupNetsum> group, std::shared_ptr<TrainingPass> pass,
                    std::shared_ptr<BucketStats> stats, pybind11::object scaler)
      : group_(std::move(group)),
        pass_(std::move(pass)),
        stats_(std::move(stats)),
        scaler_(std::move(scaler)) {}
  ~CompressedBuckets();
  CompressedBuckets(const CompressedBuckets&) = delete;
  CompressedBuckets& operator=(const CompressedBuckets&) = delete;

  // A parameter of the model.
  void add(const at::Tensor& parameter, BucketPlan::Item item);

  // A future of the bucket's buffer.
  c10::intrusive_ptr<Future> reduce(c10d::GradBucket& bucket);

 private:
  struct Known {
    at::Tensor parameter;  // so that no other one gets its address
    BucketPlan::Item item;
  };
  using Key = std::pair<at::ScalarType, std::vector<uint64_t>>;  // type of the gradients, and ids

  const BucketPlan::Item& known(const at::Tensor& parameter) const;
  std::shared_ptr<BucketPlan> plan_of(const std::vector<BucketPlan::Item>& items, at::ScalarType type);
  std::optional<double> scale() const;
  void agree_on_steps();

  const c10::intrusive_ptr<ProcessGroupNetsum> group_;
  const std::shared_ptr<TrainingPass> pass_;
  const std::shared_ptr<BucketStats> stats_;
  pybind11::object scaler_;
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  std::map<Key, std::shared_ptr<BucketPlan>> plans_;
};

void bind_compressed_buckets(pybind11::module_& module);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_COMPRESSED_BUCKETS_H_
