// An accelerator for tests: a device of PyTorch whose memory the host cannot reach, with asynchronous streams.
//
// Operations that training needs often run in the streams; all others run on copies in the host's memory
// (at::native::cpu_fallback), and wait for the stream. What forgets to wait for a stream reads or writes other values than a
// correct program, and a host that uses an address of the device ends with a segmentation fault.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "tests/torch/accelerator/device.h"

namespace netsum::test_accelerator {
namespace {

using at::Tensor;
using c10::Stream;

// --- Streams and events for PyTorch -------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kType;

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device to) const override {
    if (to.has_index()) set_current_device(to.index());
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.has_index()) set_current_device(to.index());
  }
  Stream getStream(c10::Device of) const override { return current_stream(index(of)); }
  Stream getDefaultStream(c10::Device of) const override { return default_stream(index(of)); }
  Stream getStreamFromGlobalPool(c10::Device of, bool) const override { return pool_stream(index(of)); }
  Stream getNewStream(c10::Device of, int) const override { return user_stream(index(of)); }
  Stream exchangeStream(Stream to) const override {
    const Stream before = current_stream(to.device_index());
    set_current_stream(to);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  bool queryStream(const Stream& stream) const override { return has_passed(mark(stream)); }
  void synchronizeStream(const Stream& stream) const override { synchronize(stream); }
  bool isStreamCapturing(const Stream&) const override { return is_capturing(); }
  void synchronizeDevice(const c10::DeviceIndex of) const override { synchronize_device(of); }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<MarkPtr*>(event);
  }
  void record(void** event, const Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    check_fault();
    if (*event == nullptr) *event = new MarkPtr;
    of(*event) = mark(stream);
  }
  void block(void* event, const Stream& stream) const override {
    if (event != nullptr) test_accelerator::block(of(event), stream);
  }
  bool queryEvent(void* event) const override { return event == nullptr || has_passed(of(event)); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait_for(of(event));
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return static_cast<double>(of(to)->passed_ns - of(from)->passed_ns) / 1e6;
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const Stream& stream) const override {
    record_stream(memory, stream);
  }

 private:
  static MarkPtr& of(void* event) { return *static_cast<MarkPtr*>(event); }
  static c10::DeviceIndex index(c10::Device of) { return of.has_index() ? of.index() : current_device(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void resize_storage(const c10::Storage& storage, size_t bytes) {
  const c10::OptionalDeviceGuard on(storage.device());
  c10::DataPtr larger = device_allocator()->allocate(bytes);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) device_allocator()->copy_data(larger.mutable_get(), storage.data(), kept);
  storage.set_data_ptr_noswap(std::move(larger));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex to) const override { set_current_device(to); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override {
    const c10::DeviceIndex before = current_device();
    if (to >= 0) set_current_device(to);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override { return exchangeDevice(to); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

// --- Operators --------------------------------------------------------------------------------------------------

// The tensor as the threads of streams see it.
Tensor seen(const Tensor& tensor) {
  if (tensor.device().type() != kType) return tensor;
  return at::from_blob(shadow(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU));
}

Stream stream_of(const Tensor& tensor) {
  return current_stream(tensor.device().index());
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), device_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(type));
}

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

// Copies cross the bus without the host's waiting if the memory of the host is pinned.
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const bool from_device = from.device().type() == kType, to_device = to.device().type() == kType;
  if (from_device && to_device && from.device() != to.device()) synchronize(stream_of(from));
  const Tensor& on = to_device ? to : from;
  const c10::OptionalDeviceGuard guard(on.device());
  const Direction direction = from_device && to_device ? Direction::kNone
                              : from_device            ? Direction::kToHost
                                                       : Direction::kToDevice;
  const size_t crossing = direction == Direction::kNone ? 0 : from.nbytes();
  enqueue(
      stream_of(on), [from = seen(from), to = seen(to)]() mutable { to.copy_(from); }, direction, crossing);
  const Tensor& host = from_device ? to : from;
  const bool asynchronous =
      direction == Direction::kNone || (non_blocking && is_pinned(host.const_data_ptr()));
  if (!asynchronous) synchronize(stream_of(on));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  at::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  const size_t bytes = (static_cast<size_t>(impl->storage_offset() + impl->numel())) * impl->itemsize();
  if (impl->numel() > 0 && bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  return self;
}

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor& set_storage(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  at::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset.guard_int(__FILE__, __LINE__));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  return self;
}

Tensor& fill(Tensor& self, const at::Scalar& value) {
  const c10::OptionalDeviceGuard on(self.device());
  enqueue(stream_of(self), [self = seen(self), value]() mutable { self.fill_(value); });
  return self;
}

Tensor& zero(Tensor& self) {
  return fill(self, 0);
}

// self becomes operation(self, other); `other` may be a number on the host.
template <typename Operation>
Tensor& update(Tensor& self, const Tensor& other, Operation operation) {
  const c10::OptionalDeviceGuard on(self.device());
  const Tensor operand = other.device().type() == kType ? other : other.clone();
  TORCH_CHECK(other.dim() == 0 || other.device() == self.device(), "test accelerator: a tensor on ",
              other.device(), " where one on ", self.device(), " is expected");
  enqueue(stream_of(self),
          [self = seen(self), other = seen(operand), operation]() mutable { operation(self, other); });
  return self;
}

Tensor& add(Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  return update(self, other, [alpha](Tensor& to, const Tensor& from) { to.add_(from, alpha); });
}
Tensor& mul(Tensor& self, const Tensor& other) {
  return update(self, other, [](Tensor& to, const Tensor& from) { to.mul_(from); });
}
Tensor& div(Tensor& self, const Tensor& other) {
  return update(self, other, [](Tensor& to, const Tensor& from) { to.div_(from); });
}

// Those of the encodings of compressed gradients.
Tensor like(const Tensor& self, at::IntArrayRef size, at::ScalarType type) {
  return at::empty(size, self.options().dtype(type));
}

Tensor& arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, Tensor& out) {
  const c10::OptionalDeviceGuard on(out.device());
  const auto options = out.options().device(c10::kCPU);
  const int64_t count = at::arange(start, end, step, options).numel();
  out.resize_({count});
  enqueue(stream_of(out),
          [=, out = seen(out)]() mutable { out.copy_(at::arange(start, end, step, options)); });
  return out;
}

std::tuple<Tensor, Tensor> topk(const Tensor& self, c10::SymInt k, int64_t dim, bool largest, bool sorted) {
  const c10::OptionalDeviceGuard on(self.device());
  const int64_t count = k.guard_int(__FILE__, __LINE__);
  const Tensor values = like(self, {count}, self.scalar_type()), indices = like(self, {count}, at::kLong);
  enqueue(stream_of(self), [=, self = seen(self), values = seen(values), indices = seen(indices)]() mutable {
    at::topk_out(values, indices, self, count, dim, largest, sorted);
  });
  return {values, indices};
}

Tensor gather(const Tensor& self, int64_t dim, const Tensor& index, bool) {
  const c10::OptionalDeviceGuard on(self.device());
  const Tensor result = like(self, index.sizes(), self.scalar_type());
  enqueue(stream_of(self), [dim, self = seen(self), index = seen(index), result = seen(result)]() mutable {
    at::gather_out(result, self, dim, index);
  });
  return result;
}

Tensor eq(const Tensor& self, const at::Scalar& other) {
  const c10::OptionalDeviceGuard on(self.device());
  const Tensor result = like(self, self.sizes(), at::kBool);
  enqueue(stream_of(self),
          [other, self = seen(self), result = seen(result)]() mutable { at::eq_out(result, self, other); });
  return result;
}

Tensor& bitwise_and(Tensor& self, const at::Scalar& other) {
  const c10::OptionalDeviceGuard on(self.device());
  enqueue(stream_of(self), [self = seen(self), other]() mutable { self.bitwise_and_(other); });
  return self;
}

Tensor& mul_scalar(Tensor& self, const at::Scalar& other) {
  const c10::OptionalDeviceGuard on(self.device());
  enqueue(stream_of(self), [self = seen(self), other]() mutable { self.mul_(other); });
  return self;
}

Tensor& scatter(Tensor& self, int64_t dim, const Tensor& index, const Tensor& from) {
  const c10::OptionalDeviceGuard on(self.device());
  enqueue(stream_of(self), [dim, self = seen(self), index = seen(index), from = seen(from)]() mutable {
    self.scatter_(dim, index, from);
  });
  return self;
}

void record(Tensor& self, Stream stream) {
  record_stream(self.storage().data_ptr(), stream);
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", [](const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    return as_strided(self, size, stride, self.storage_offset());
  });
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("fill_.Scalar", &fill);
  m.impl("zero_", &zero);
  m.impl("add_.Tensor", &add);
  m.impl("mul_.Tensor", &mul);
  m.impl("div_.Tensor", &div);
  m.impl("mul_.Scalar", &mul_scalar);
  m.impl("bitwise_and_.Scalar", &bitwise_and);
  m.impl("arange.start_out", &arange);
  m.impl("topk", &topk);
  m.impl("gather", &gather);
  m.impl("eq.Scalar", &eq);
  m.impl("scatter_.src", &scatter);
  m.impl("record_stream", &record);
}

// Tensors of indices and values on the device.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", &at::native::new_with_dims_and_tensor_sparse_symint);
  m.impl("_indices", &at::native::_indices_sparse);
  m.impl("_values", &at::native::_values_sparse);
  m.impl("_nnz", &at::native::_nnz_sparse);
  m.impl("is_coalesced", &at::native::is_coalesced_sparse);
  m.impl("_coalesced_", &at::native::_coalesced_sparse_);
  m.impl("sparse_dim", &at::native::sparse_dim_sparse);
  m.impl("dense_dim", &at::native::dense_dim_sparse);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

}  // namespace
}  // namespace netsum::test_accelerator

PYBIND11_MODULE(netsum_test_accelerator, module) {
  namespace ta = netsum::test_accelerator;
  namespace py = pybind11;
  at::RegisterPrivateUse1HooksInterface(new ta::Hooks);  // for as long as the process runs
  at::setHostAllocator(ta::kType, ta::pinned_allocator());
  c10::SetAllocator(ta::kType, ta::device_allocator());
  // The current stream does nothing for so long.
  module.def("sleep", [](double seconds) {
    ta::enqueue(ta::current_stream(ta::current_device()),
                [seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  });
  // The current stream fails when it gets there.
  module.def("fault", [](const std::string& what) {
    ta::enqueue(ta::current_stream(ta::current_device()), [what] { ta::set_fault(what); });
  });
  module.def("set_copy_rate", &ta::set_copy_rate);
  module.def("allocated", &ta::allocated);
  module.def("copied_bytes", &ta::copied_bytes);
  module.def("set_capturing", &ta::set_capturing);
  // The current stream stays where it is, until all are let go.
  module.def("hold",
             [] { ta::enqueue(ta::current_stream(ta::current_device()), [] { ta::wait_until_let_go(); }); });
  module.def("let_go", &ta::let_go);
  module.def("hold_unpinning", &ta::hold_unpinning);
  module.def("waiting_to_unpin", &ta::waiting_to_unpin);
}
