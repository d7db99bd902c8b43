// Which calls of c10d the network takes.
#ifndef NETSUM_TORCH_SRC_NETWORK_REDUCTION_H_
#define NETSUM_TORCH_SRC_NETWORK_REDUCTION_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "netsum/communicator.h"

namespace netsum::torch_backend {

// How the network reduces the tensors of a call.
struct NetworkReduction {
  ReduceOptions options;
  std::string operator_name;     // as in PyTorch
  std::optional<double> factor;  // by which the inputs are multiplied first (PREMUL_SUM)
  // The results are then divided by the number of ranks, and lose their fractions, as in NCCL (AVG of integers).
  bool divides = false;
};

// Whether the network reduces elements of this type, by some operator.
bool network_has(at::ScalarType type);
// SUM, AVG and PREMUL_SUM, which ranks can verify (NETSUM_VERIFY).
bool is_sum(const c10d::ReduceOp& op);
// Of PREMUL_SUM.
double factor_of(const c10d::ReduceOp& op);

// nullopt: the hosts must reduce them.
std::optional<NetworkReduction> network_reduction(const std::vector<at::Tensor>& tensors,
                                                  const c10d::ReduceOp& op);

// Whether the network can move the bytes of all tensors: they are dense and on the CPU.
bool can_move(const std::vector<at::Tensor>& tensors);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_NETWORK_REDUCTION_H_
