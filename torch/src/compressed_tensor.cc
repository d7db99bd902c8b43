#include "torch/src/compressed_tensor.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "torch/src/python_compressor.h"

namespace netsum::torch_backend {
namespace {

void check(const char* what, const at::Tensor& tensor, at::ScalarType type, size_t count) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == type &&
                        static_cast<size_t>(tensor.numel()) == count,
                    "the ", what, " must be a contiguous CPU tensor of ", count, " elements of ", type,
                    ", not ", tensor.numel(), " of ", tensor.scalar_type());
}

}  // namespace

uint64_t used_bytes(const void* payload, size_t bytes) {
  uint64_t used = 0;
  if (bytes >= sizeof used) std::memcpy(&used, payload, sizeof used);
  return used;
}

CompressedTensor& Tensor::get() {
  if (!tensor_) {
    tensor_ = compression_->tensor(id_, count_, rank_, ranks_, rows_);  // rows and ranks were checked
    if (step_ > 0) tensor_->set_step(step_);
  }
  return *tensor_;
}

void Tensor::agree(const at::Tensor& gradient, const at::Tensor& mine) {
  check("gradient", gradient, at::kFloat, count_);
  check("agreed values", mine, at::kFloat, get().agreed_values());
  get().agree(gradient.const_data_ptr<float>(), mine.mutable_data_ptr<float>());
}

void Tensor::compress(const at::Tensor& gradient, const at::Tensor& agreed, const at::Tensor& payload,
                      const at::Tensor& side) {
  check_payload(payload, side);
  check("gradient", gradient, at::kFloat, count_);
  check("agreed values", agreed, at::kFloat, get().agreed_values());
  get().compress(gradient.const_data_ptr<float>(), agreed.const_data_ptr<float>(), payload.mutable_data_ptr(),
                 side.mutable_data_ptr<float>());
}

void Tensor::decompress(const at::Tensor& payload, const at::Tensor& side, int contributions,
                        const at::Tensor& out) {
  check_received(payload, side);
  check("result", out, at::kFloat, count_);
  TORCH_CHECK_VALUE(contributions > 0, "contributions is ", contributions);
  TORCH_CHECK_VALUE(get().step() > 0, "nothing has been compressed yet");
  get().decompress(payload.const_data_ptr(), side.const_data_ptr<float>(), contributions,
                   out.mutable_data_ptr<float>());
}

std::map<std::string, at::Tensor> Tensor::state() {
  std::map<std::string, at::Tensor> copies;
  for (const CompressionState& part : get().state())
    copies.emplace(
        part.name,
        at::from_blob(part.values.data(), {static_cast<int64_t>(part.values.size())}, at::kFloat).clone());
  return copies;
}

void Tensor::restore(uint64_t step, const std::map<std::string, at::Tensor>& saved) {
  std::vector<SavedCompressionState> parts;
  // In the order of the tensor's own parts; what it does not have comes last, and is refused.
  const auto add = [&](const std::string& name, const at::Tensor& values) {
    check(name.c_str(), values, at::kFloat, static_cast<size_t>(values.numel()));
    parts.push_back({name, {values.const_data_ptr<float>(), static_cast<size_t>(values.numel())}});
  };
  std::map<std::string, at::Tensor> others = saved;
  for (const CompressionState& part : get().state()) {
    const auto found = saved.find(std::string(part.name));
    if (found == saved.end()) continue;
    add(found->first, found->second);
    others.erase(found->first);
  }
  for (const auto& [name, values] : others) add(saved.find(name)->first, values);
  const Status status = get().restore(step, parts);
  TORCH_CHECK_VALUE(status.ok(), status.message());
}

void Tensor::set_step(uint64_t step) {
  step_ = step;
  if (tensor_) tensor_->set_step(step);
}

void Tensor::give_up() {
  if (tensor_) tensor_->give_up();
}

double Tensor::memory_norm() {
  double squares = 0;
  for (const CompressionState& part : get().state()) {
    if (!part.is_memory) continue;
    for (const float value : part.values) squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares);
}

void Tensor::clear_memory_from(size_t begin) {
  for (const CompressionState& part : get().state())
    if (part.is_memory) std::ranges::fill(part.values.subspan(begin), 0.0f);
}

void Tensor::follow_scale(std::optional<double> scale) {
  if (!scale) return;
  if (tensor_ && scale_ && *scale_ != *scale) tensor_->scale_memory(static_cast<float>(*scale / *scale_));
  scale_ = scale;
}

void Tensor::check_payload(const at::Tensor& payload, const at::Tensor& side) {
  const PayloadShape shape = get().shape();
  check("payload", payload, scalar_type(shape.type), shape.count);
  check("side values", side, at::kFloat, shape.side_values);
}

// A payload that varies may end where its length says.
void Tensor::check_received(const at::Tensor& payload, const at::Tensor& side) {
  if (!get().shape().varies) return check_payload(payload, side);
  const auto bytes = static_cast<size_t>(payload.numel());
  check("payload", payload, at::kByte, bytes);
  const uint64_t used = used_bytes(payload.const_data_ptr(), bytes);
  TORCH_CHECK_VALUE(used == bytes, "a payload of ", bytes, " bytes says that it has ", used);
  check("side values", side, at::kFloat, get().shape().side_values);
}

}  // namespace netsum::torch_backend
