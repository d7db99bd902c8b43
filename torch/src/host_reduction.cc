#include "torch/src/host_reduction.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/ScalarType.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "torch/src/network_reduction.h"

namespace netsum::torch_backend {
namespace {

using Op = c10d::ReduceOp;

bool is_bits(Op::RedOpType op) {
  return op == Op::BAND || op == Op::BOR || op == Op::BXOR;
}

Status unsupported(at::ScalarType type, Op::RedOpType op, const std::string& cure) {
  return {ErrorCode::kUnsupported,
          name_of(op) + " of " + name_of(type) + " is reduced neither in the network nor by Gloo: " + cure};
}

// The order of signed words is that of the numbers, -0 before +0. Every NaN is `nan`, the first or the last word.
template <typename Word, typename Float>
void to_words(const Float* values, Word* words, int64_t count, Word nan) {
  for (int64_t i = 0; i < count; ++i) {
    const Word bits = std::bit_cast<Word>(values[i]);
    words[i] = std::isnan(values[i]) ? nan : bits < 0 ? bits ^ std::numeric_limits<Word>::max() : bits;
  }
}

template <typename Word, typename Float>
void from_words(const Word* words, Float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Word word = words[i];
    const auto value = std::bit_cast<Float>(word < 0 ? word ^ std::numeric_limits<Word>::max() : word);
    values[i] = std::isnan(value) ? std::numeric_limits<Float>::quiet_NaN() : value;
  }
}

template <typename Word>
constexpr Word nan_of(Op::RedOpType op) {
  return op == Op::MIN ? std::numeric_limits<Word>::min() : std::numeric_limits<Word>::max();
}

at::Tensor words_of(const at::Tensor& plain, Op::RedOpType op) {
  const bool is_double = plain.scalar_type() == at::kDouble;
  at::Tensor words = at::empty({plain.numel()}, is_double ? at::kLong : at::kInt);
  if (is_double) {
    to_words(plain.const_data_ptr<double>(), words.mutable_data_ptr<int64_t>(), plain.numel(),
             nan_of<int64_t>(op));
  } else {
    const at::Tensor wide = plain.to(at::kFloat);
    to_words(wide.const_data_ptr<float>(), words.mutable_data_ptr<int32_t>(), plain.numel(),
             nan_of<int32_t>(op));
  }
  return words;
}

void store_words(const at::Tensor& words, const at::Tensor& plain) {
  if (plain.scalar_type() == at::kDouble) {
    from_words(words.const_data_ptr<int64_t>(), plain.mutable_data_ptr<double>(), plain.numel());
    return;
  }
  const at::Tensor wide = at::empty(plain.sizes(), at::kFloat);
  from_words(words.const_data_ptr<int32_t>(), wide.mutable_data_ptr<float>(), plain.numel());
  plain.copy_(wide);
  plain.masked_fill_(wide.isnan(), std::numeric_limits<float>::quiet_NaN());  // copy_() has other bits for it
}

}  // namespace

std::string name_of(at::ScalarType type) {
  return std::string(c10::getDtypeNames(type).first);
}

std::string name_of(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
      return "SUM";
    case Op::AVG:
      return "AVG";
    case Op::PRODUCT:
      return "PRODUCT";
    case Op::MIN:
      return "MIN";
    case Op::MAX:
      return "MAX";
    case Op::BAND:
      return "BAND";
    case Op::BOR:
      return "BOR";
    case Op::BXOR:
      return "BXOR";
    case Op::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "an unknown operator";
  }
}

bool gloo_has(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

Status HostReduction::make(at::ScalarType type, const Op& op, HostReduction* reduction) {
  auto kind = static_cast<Op::RedOpType>(op);
  const bool is_float = c10::isFloatingType(type), is_complex = c10::isComplexType(type);
  if (kind == Op::UNUSED)
    return unsupported(type, kind, "use SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR");
  if (is_complex && kind != Op::SUM && kind != Op::AVG && kind != Op::PREMUL_SUM)
    return unsupported(type, kind,
                       "complex numbers have SUM, AVG and PREMUL_SUM; pass torch.view_as_real(tensor)");
  if (is_complex ? type == at::kComplexHalf : !gloo_has(type))
    return unsupported(type, kind,
                       is_float || is_complex ? "convert the tensor, such as with tensor.to(torch.float32)"
                                              : "convert the tensor, such as with tensor.to(torch.int32)");
  if ((kind == Op::AVG || kind == Op::PREMUL_SUM) && !is_float && !is_complex)
    return unsupported(type, kind, "use SUM, or convert the tensor, such as with tensor.to(torch.float32)");
  if (is_bits(kind) && is_float)
    return unsupported(
        type, kind,
        "bits are those of integers: pass a view of the tensor, such as tensor.view(torch.int32)");
  *reduction = {};
  reduction->pairs_ = is_complex;
  if (kind == Op::PREMUL_SUM) {
    reduction->factor_ = factor_of(op);
    kind = Op::SUM;
  }
  if (type == at::kBool) {
    if (kind == Op::SUM || kind == Op::BOR) kind = Op::MAX;
    if (kind == Op::PRODUCT || kind == Op::BAND) kind = Op::MIN;
  }
  reduction->ordered_ = is_float && (kind == Op::MIN || kind == Op::MAX);
  reduction->op_ = Op(kind);
  return {};
}

HostReduction::Tensors HostReduction::pack(const Tensors& plain) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Tensors packed;
  for (const at::Tensor& tensor : plain) {
    if (ordered_) {
      packed.push_back(words_of(tensor, static_cast<Op::RedOpType>(op_)));
    } else {
      packed.push_back(pairs_ ? at::view_as_real(tensor) : tensor);
    }
  }
  return packed;
}

void HostReduction::unpack(const Tensors& packed, const Tensors& plain) const {
  if (!ordered_) return;  // packed has the memory of plain
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (size_t i = 0; i < plain.size(); ++i) store_words(packed[i], plain[i]);
}

}  // namespace netsum::torch_backend
