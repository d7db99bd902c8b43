#include "torch/src/training_pass.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>

namespace netsum::torch_backend {
namespace {

// Operations in flight end by their deadline, except on a group that is gone, where nothing runs any more.
constexpr std::chrono::seconds kEndOfOthers{10};

}  // namespace

bool TrainingPass::begin(const std::vector<uint64_t>& ids) {
  std::unique_lock lock(mutex_);
  const bool failed = take_back(&lock);
  if (std::any_of(ids.begin(), ids.end(), [this](uint64_t id) { return ids_.contains(id); })) begin_another();
  ids_.insert(ids.begin(), ids.end());
  return failed;
}

void TrainingPass::end() {
  const std::lock_guard lock(mutex_);
  if (!failed_) begin_another();
}

bool TrainingPass::take_back_if_failed() {
  std::unique_lock lock(mutex_);
  return take_back(&lock);
}

void TrainingPass::forget() {
  const std::lock_guard lock(mutex_);
  begin_another();
  agreed_ = false;
}

void TrainingPass::add(const std::shared_ptr<Tensor>& tensor) {
  const std::lock_guard lock(mutex_);
  tensors_.push_back(tensor);
}

void TrainingPass::fail() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
}

void TrainingPass::started() {
  const std::lock_guard lock(mutex_);
  ++in_flight_;
}

void TrainingPass::ended(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    failed_ = failed_ || !ok;
    --in_flight_;
  }
  changed_.notify_all();
}

uint64_t TrainingPass::number() const {
  const std::lock_guard lock(mutex_);
  return number_;
}

bool TrainingPass::has_agreed() const {
  const std::lock_guard lock(mutex_);
  return agreed_;
}

void TrainingPass::set_agreed() {
  const std::lock_guard lock(mutex_);
  agreed_ = true;
}

bool TrainingPass::take_back(std::unique_lock<std::mutex>* lock) {
  if (!failed_) return false;
  changed_.wait_for(*lock, kEndOfOthers, [this] { return in_flight_ == 0; });
  for (const auto& tensor : tensors_) tensor->give_up();
  begin_another();
  return true;
}

void TrainingPass::begin_another() {
  ids_.clear();
  tensors_.clear();
  failed_ = false;
  ++number_;
}

void bind_training_pass(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<TrainingPass, std::shared_ptr<TrainingPass>>(module, "TrainingPass")
      .def(py::init<>())
      .def("begin", &TrainingPass::begin, py::arg("ids"), py::call_guard<py::gil_scoped_release>())
      .def("end", &TrainingPass::end)
      .def("take_back_if_failed", &TrainingPass::take_back_if_failed,
           py::call_guard<py::gil_scoped_release>())
      .def("forget", &TrainingPass::forget)
      .def("fail", &TrainingPass::fail)
      .def("set_agreed", &TrainingPass::set_agreed)
      .def_property_readonly("has_agreed", &TrainingPass::has_agreed)
      .def_property_readonly("number", &TrainingPass::number);
}

}  // namespace netsum::torch_backend
