// How Gloo reduces what the network does not.
#ifndef NETSUM_TORCH_SRC_HOST_REDUCTION_H_
#define NETSUM_TORCH_SRC_HOST_REDUCTION_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "netsum/status.h"

namespace netsum::torch_backend {

// As PyTorch writes it: "float64", "SUM".
std::string name_of(at::ScalarType type);
std::string name_of(c10d::ReduceOp::RedOpType op);

// Whether Gloo has the type. It moves and reduces no other.
bool gloo_has(at::ScalarType type);

// Gloo gets contiguous tensors ("plain") as pack() has made them of these, and unpack() writes its results to them.
//
//   complex numbers   SUM and AVG of pairs of numbers
//   bool              SUM and BOR are MAX, PRODUCT and BAND are MIN: results are 0 and 1
//   MIN, MAX of floating-point numbers   those of ordered integers: NaN and -0 are treated as in the network
class HostReduction {
 public:
  using Tensors = std::vector<at::Tensor>;

  // kUnsupported: Gloo does not reduce such tensors; the message says what to do.
  static Status make(at::ScalarType type, const c10d::ReduceOp& op, HostReduction* reduction);

  const c10d::ReduceOp& op() const { return op_; }          // that of Gloo
  std::optional<double> factor() const { return factor_; }  // by which the inputs are multiplied first
  Tensors pack(const Tensors& plain) const;
  void unpack(const Tensors& packed, const Tensors& plain) const;

 private:
  c10d::ReduceOp op_;
  std::optional<double> factor_;
  bool pairs_ = false;
  bool ordered_ = false;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_HOST_REDUCTION_H_
