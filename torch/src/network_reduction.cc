#include "torch/src/network_reduction.h"

#include <algorithm>

#include "torch/src/host_reduction.h"
#include "torch/src/staging.h"

namespace netsum::torch_backend {
namespace {

std::optional<DataType> network_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> network_operator(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBitXor;
    default:
      return std::nullopt;
  }
}

// Whether the library computes the operator for the type (docs/numerics.md).
bool is_defined(ReduceOp op, DataType type) {
  switch (op) {
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return !is_floating(type);
    default:
      return true;
  }
}

}  // namespace

bool network_has(at::ScalarType type) {
  return network_type(type).has_value();
}

bool is_sum(const c10d::ReduceOp& op) {
  const auto type = static_cast<c10d::ReduceOp::RedOpType>(op);
  return type == c10d::ReduceOp::SUM || type == c10d::ReduceOp::AVG || type == c10d::ReduceOp::PREMUL_SUM;
}

// NCCLPreMulSumSupplement: the name in all versions of PyTorch from 2.11 to 2.13.
double factor_of(const c10d::ReduceOp& op) {
  const auto& factor = static_cast<const c10d::NCCLPreMulSumSupplement&>(*op.supplement_);
  return factor.tensor_factor.defined() ? factor.tensor_factor.item<double>() : factor.double_factor;
}

std::optional<NetworkReduction> network_reduction(const std::vector<at::Tensor>& tensors,
                                                  const c10d::ReduceOp& op) {
  if (tensors.empty() || !can_move(tensors)) return std::nullopt;
  const at::ScalarType type = tensors.front().scalar_type();
  const auto network = network_type(type);
  if (!network) return std::nullopt;
  if (std::any_of(tensors.begin(), tensors.end(),
                  [type](const at::Tensor& tensor) { return tensor.scalar_type() != type; }))
    return std::nullopt;
  const auto op_type = static_cast<c10d::ReduceOp::RedOpType>(op);
  const auto network_op = network_operator(op_type);
  if (!network_op || !is_defined(*network_op, *network)) return std::nullopt;
  NetworkReduction reduction;
  reduction.options = {.type = *network, .op = *network_op};
  reduction.operator_name = name_of(op_type);
  if (op_type == c10d::ReduceOp::PREMUL_SUM) {
    if (!is_floating(*network)) return std::nullopt;
    reduction.factor = factor_of(op);
  } else if (op_type == c10d::ReduceOp::AVG && !is_floating(*network)) {
    reduction.options.op = ReduceOp::kSum;
    reduction.divides = true;
  }
  // Otherwise a rank with SUM could take part.
  if (reduction.options.op == ReduceOp::kSum) reduction.options.tag = static_cast<uint32_t>(op_type);
  return reduction;
}

bool can_move(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return (tensor.device().is_cpu() || is_accelerator(tensor.device())) && tensor.layout() == at::kStrided &&
           !tensor.is_quantized();
  });
}

}  // namespace netsum::torch_backend
