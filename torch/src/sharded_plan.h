// How the gradients of one FSDP module travel, compressed.
#ifndef NETSUM_TORCH_SRC_SHARDED_PLAN_H_
#define NETSUM_TORCH_SRC_SHARDED_PLAN_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "torch/src/bucket_plan.h"
#include "torch/src/compressed_tensor.h"
#include "torch/src/process_group.h"

namespace netsum::torch_backend {

// Why the parts of a tensor cannot be compressed each by itself, if every rank receives the sum of one part only. Empty: they can.
std::string why_not_in_parts(const Compression& compression);

// A reduce-scatter of the parameters of a module, each cut into as many parts of equal length as there are ranks: part r of each is
// what rank r receives. Every part is a tensor of its own, compressed by all ranks. One reduce-scatter for each element type. Needs no
// lock of Python, except that a compressor written in Python takes it. For one backward pass at a time.
class ShardedPlan {
 public:
  struct Item {
    std::vector<std::shared_ptr<Tensor>> parts;  // one for each rank; none: uncompressed
    size_t count = 0;                            // elements of each part
    // What of each part belongs to the parameter; what follows is padding.
    std::vector<size_t> used;
  };

  // `type`: that of the gradients. All ranks must pass the same items in the same order.
  ShardedPlan(std::vector<Item> items, at::ScalarType type, int rank, int ranks);

  // `input`: for each rank, its parts of all items, one behind the other. Compresses it and starts the operations. Waits for what
  // the ranks must agree on before they compress. `pass` has begun, and fails if this throws.
  BucketPlan::Works start(ProcessGroupNetsum& group, const at::Tensor& input, TrainingPass& pass,
                          BucketStats& stats);
  // When they have all ended: writes the averages of this rank's parts.
  void finish(const at::Tensor& output, BucketStats& stats);

 private:
  // An item within `input`, and its payloads within those of a type.
  struct Placed {
    Item item;
    size_t at = 0;
    at::ScalarType type;
    size_t payload_at = 0, payload_count = 0;  // of one part
    at::Tensor agreed;                         // of all parts
    at::Tensor values;                         // all parts as float32, if the gradients have another type
  };
  struct Payloads {
    size_t count = 0;  // that one rank receives
    at::Tensor sent, received;
  };

  at::Tensor part_of(const Placed& placed, const at::Tensor& input, int rank) const;
  at::Tensor gradient_of(const Placed& placed, const at::Tensor& input, int rank) const;
  at::Tensor payload_of(const Placed& placed, int rank) const;
  at::Tensor agreed_of(const Placed& placed, int rank) const;
  BucketPlan::Works start_operations(ProcessGroupNetsum& group, const at::Tensor& input, BucketStats& stats);
  void compress(const Placed& placed, const at::Tensor& input);

  std::vector<Placed> items_;
  std::map<at::ScalarType, Payloads> payloads_;
  std::vector<at::Tensor> maxima_, means_;  // what the ranks agree on
  size_t count_ = 0;                        // of all items' parts
  uint32_t tag_ = 0;                        // of the operations of this pass
  at::ScalarType type_;
  int rank_;
  int ranks_;
};

void bind_sharded_plan(pybind11::module_& module);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_SHARDED_PLAN_H_
