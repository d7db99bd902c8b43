#include "torch/src/compressed_tensor.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>
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

// Where elements are counted by 31 bits.
constexpr size_t kMostOnDevice = (size_t{1} << 31) - 1;

at::Tensor tensor_of(std::span<float> values) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat);
}

// The residual, which is all that a tensor keeps whose gradients are encoded on devices.
at::Tensor kept_by(CompressedTensor& tensor) {
  return tensor_of(tensor.state().front().values);
}

// A copy of what is on a device after the event.
at::Tensor on_host(const at::Tensor& memory, const c10::Event& written) {
  written.block(c10::impl::VirtualGuardImpl(memory.device().type()).getStream(memory.device()));
  return memory.to(at::kCPU);
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

CompressedTensor& Tensor::with_memory() {
  CompressedTensor& tensor = get();
  step_before_.reset();
  if (!memory_.defined()) return tensor;
  kept_by(tensor).copy_(on_host(memory_, *written_));
  memory_.reset();
  before_.reset();
  return tensor;
}

// --- On an accelerator ------------------------------------------------------------------------------------------

Tensor::OnDevice Tensor::on_device() const {
  const CompressionOptions& options = compression_->options();
  const std::string_view method = compression_->compressor().name();
  if (!built_in_ || count_ == 0) return OnDevice::kNo;
  if ((method == "bf16" || method == "fp16") && options.memory == "none" &&
      compression_->path() == CompressionPath::kDense)
    return OnDevice::kHalves;
  // More would cross the bus than the gradient has, in one of its directions.
  const bool is_sparse = largest() * static_cast<size_t>(ranks_) * 2 <= count_;
  if (method == "topk" && options.memory == "residual" && compression_->path() == CompressionPath::kUnion &&
      !options.sampled && options.warmup_steps == 0 && is_sparse && count_ <= kMostOnDevice)
    return OnDevice::kLargest;
  return OnDevice::kNo;
}

// As docs/compression.md defines k and ratio.
size_t Tensor::largest() const {
  const CompressionOptions& options = compression_->options();
  if (options.k > 0) return static_cast<size_t>(std::min<uint64_t>(options.k, count_));
  return std::clamp<size_t>(static_cast<size_t>(static_cast<double>(count_) * options.ratio), 1, count_);
}

at::Tensor Tensor::begin_on_device(const at::Tensor& gradient) {
  const c10::Device device = gradient.device();
  if (on_device() != OnDevice::kLargest) {
    step_before_ = step();
    return {};
  }
  if (memory_.defined() && memory_.device() != device) with_memory();
  if (memory_.defined()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::Stream stream = guard.getStream(device);
    written_->block(stream);
    for (const at::Tensor& one : {memory_, before_})
      guard.recordDataPtrOnStream(one.storage().data_ptr(), stream);
  } else {
    memory_ = kept_by(get()).to(device);
    before_ = at::empty_like(memory_);
    end_on_device(device);
  }
  step_before_ = step();
  std::swap(memory_, before_);
  memory_.copy_(before_);
  if (compression_->options().decay != 1) memory_.mul_(compression_->options().decay);
  return memory_.add_(gradient);
}

void Tensor::end_on_device(const c10::Device& device) {
  if (memory_.defined())
    written_ = record_event(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

// --- On the host ------------------------------------------------------------------------------------------------

void Tensor::agree(const at::Tensor& gradient, const at::Tensor& mine) {
  check("gradient", gradient, at::kFloat, count_);
  check("agreed values", mine, at::kFloat, get().agreed_values());
  with_memory().agree(gradient.const_data_ptr<float>(), mine.mutable_data_ptr<float>());
}

void Tensor::compress(const at::Tensor& gradient, const at::Tensor& agreed, const at::Tensor& payload,
                      const at::Tensor& side) {
  check_payload(payload, side);
  check("gradient", gradient, at::kFloat, count_);
  check("agreed values", agreed, at::kFloat, get().agreed_values());
  with_memory().compress(gradient.const_data_ptr<float>(), agreed.const_data_ptr<float>(),
                         payload.mutable_data_ptr(), side.mutable_data_ptr<float>());
}

void Tensor::decompress(const at::Tensor& payload, const at::Tensor& side, int contributions,
                        const at::Tensor& out) {
  check_received(payload, side);
  check("result", out, at::kFloat, count_);
  TORCH_CHECK_VALUE(contributions > 0, "contributions is ", contributions);
  TORCH_CHECK_VALUE(get().step() > 0, "nothing has been compressed yet");
  with_memory().decompress(payload.const_data_ptr(), side.const_data_ptr<float>(), contributions,
                           out.mutable_data_ptr<float>());
}

std::map<std::string, at::Tensor> Tensor::state() {
  std::map<std::string, at::Tensor> copies;
  for (const CompressionState& part : get().state())
    copies.emplace(part.name, memory_.defined() && part.is_memory ? on_host(memory_, *written_)
                                                                  : tensor_of(part.values).clone());
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
  for (const CompressionState& part : with_memory().state()) {
    const auto found = saved.find(std::string(part.name));
    if (found == saved.end()) continue;
    add(found->first, found->second);
    others.erase(found->first);
  }
  for (const auto& [name, values] : others) add(saved.find(name)->first, values);
  const Status status = with_memory().restore(step, parts);
  TORCH_CHECK_VALUE(status.ok(), status.message());
}

void Tensor::set_step(uint64_t step) {
  step_ = step;
  step_before_.reset();
  if (tensor_) tensor_->set_step(step);
}

void Tensor::give_up() {
  if (!step_before_) {
    if (tensor_) tensor_->give_up();
    return;
  }
  if (memory_.defined()) std::swap(memory_, before_);
  set_step(*step_before_);
}

double Tensor::memory_norm() {
  double squares = 0;
  for (const CompressionState& part : with_memory().state()) {
    if (!part.is_memory) continue;
    for (const float value : part.values) squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares);
}

void Tensor::clear_memory_from(size_t begin) {
  for (const CompressionState& part : with_memory().state())
    if (part.is_memory) std::ranges::fill(part.values.subspan(begin), 0.0f);
}

void Tensor::follow_scale(std::optional<double> scale) {
  if (!scale) return;
  if (tensor_ && scale_ && *scale_ != *scale)
    with_memory().scale_memory(static_cast<float>(*scale / *scale_));
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
