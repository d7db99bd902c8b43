// How the tensors of one bucket travel, compressed.
#ifndef NETSUM_TORCH_SRC_BUCKET_PLAN_H_
#define NETSUM_TORCH_SRC_BUCKET_PLAN_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "torch/src/compressed_tensor.h"
#include "torch/src/gathered_payloads.h"
#include "torch/src/process_group.h"
#include "torch/src/training_pass.h"

namespace netsum::torch_backend {

class DeviceBucket;

// Of all buckets of a model, since the start. Seconds are processor time: of the threads of backward passes, and of the threads
// that end reductions.
struct BucketStats {
  std::atomic<uint64_t> buckets = 0;
  std::atomic<double> encode_s = 0;
  std::atomic<double> decode_s = 0;
};

// Adds the processor time of this thread in its scope.
class Timed {
 public:
  explicit Timed(std::atomic<double>& total) : total_(total) {}
  ~Timed() { total_ += now() - begin_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  static double now();

  std::atomic<double>& total_;
  const double begin_ = now();
};

// Makes these numbers the maxima and the means of all ranks'. Blocks. Either may be empty.
void wait_for_agreement(ProcessGroupNetsum& group, std::vector<at::Tensor> maxima,
                        std::vector<at::Tensor> means, uint32_t tag);

// The tag of operations on several tensors: adds that of one (CompressedTensor::tag()), or its id, if it is not compressed.
uint32_t joined_tag(uint32_t tag, uint32_t of_one);

// The tensors of a bucket: one operation for each element type, one for all sparse payloads, and one for all gathered payloads.
// It belongs to the tensors that are in a bucket together; their memories do not. Needs no lock of Python, except that a compressor
// written in Python takes it. For one step at a time.
class BucketPlan {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  struct Item {
    std::shared_ptr<Tensor> tensor;  // null: uncompressed
    uint64_t id = 0;                 // TensorView::id
    std::string name;
    size_t count = 0;
  };

  // `type`: that of the gradients. All ranks must pass the same items in the same order.
  BucketPlan(std::vector<Item> items, at::ScalarType type, int ranks);

  // Compresses the gradients, which are flat, one for each item, and starts the operations. Waits for what the ranks must agree on
  // before they compress. `pass` has begun, and fails if this throws. `device` has the payloads of gradients that are undefined.
  Works start(ProcessGroupNetsum& group, const Tensors& gradients, TrainingPass& pass, BucketStats& stats,
              DeviceBucket* device = nullptr);
  // When they have all ended: writes the averages to the same gradients, or gives them to `device`.
  void finish(const Tensors& gradients, BucketStats& stats, DeviceBucket* device = nullptr);

  // Bytes of payloads and gradients that have gone over this rank's link in the step that has ended, in the direction of more: what
  // it sends, but of gathered payloads what it receives.
  uint64_t link_bytes() const;

 private:
  // A compressed tensor, and the memory for its payload.
  struct Part {
    size_t item = 0;
    Tensor* tensor = nullptr;
    PayloadShape shape;
    at::Tensor payload, side, agreed;
    at::Tensor values;    // the gradient as float32, if it has another type
    at::Tensor gradient;  // of this step
  };

  void lay_out();
  void compress(ProcessGroupNetsum& group, const Tensors& gradients, BucketStats& stats,
                DeviceBucket* device);
  void agree(ProcessGroupNetsum& group);
  Works start_operations(ProcessGroupNetsum& group, const Tensors& gradients);
  void decompress(const Part& part, const at::Tensor& gradient);

  std::vector<Item> items_;
  at::ScalarType type_;
  int ranks_;
  std::vector<Part> parts_;
  std::map<at::ScalarType, std::vector<size_t>> dense_;  // parts by the element type of their payloads
  at::Tensor union_;                                     // all sparse payloads, one behind the other
  uint64_t union_id_ = 0;
  std::optional<GatheredPayloads> gathered_;
  std::vector<at::Tensor> sides_;
  uint64_t dense_bytes_ = 0;  // of what travels whole, and side values
  uint32_t tag_ = 0;          // of the operations of this step
  // Written when the sparse operation ends, perhaps after this object.
  std::shared_ptr<std::atomic<uint64_t>> union_bytes_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_BUCKET_PLAN_H_
