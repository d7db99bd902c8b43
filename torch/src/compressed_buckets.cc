#include "torch/src/compressed_buckets.h"

#include <c10/core/StreamGuard.h>
#include <pybind11/stl.h>

#include <torch/csrc/jit/python/pybind_utils.h>
#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <tuple>

#include "torch/src/callback_threads.h"

namespace netsum::torch_backend {
namespace {

namespace py = pybind11;

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
// (tensor or None, id, name, number of elements)
using PythonItem = std::tuple<std::shared_ptr<Tensor>, uint64_t, std::string, size_t>;

BucketPlan::Item item_of(const PythonItem& item) {
  const auto& [tensor, id, name, count] = item;
  return {.tensor = tensor, .id = id, .name = name, .count = count};
}

std::vector<BucketPlan::Item> items_of(const std::vector<PythonItem>& given) {
  std::vector<BucketPlan::Item> items;
  std::transform(given.begin(), given.end(), std::back_inserter(items), item_of);
  return items;
}

constexpr const char* kWhat = "compressed gradients";

// The gradients, which are parts of `buffer`, as flat ones, whatever their strides.
std::vector<at::Tensor> flat_gradients(const at::Tensor& buffer, const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& gradient : gradients)
    flat.push_back(buffer.narrow(0, gradient.storage_offset() - buffer.storage_offset(), gradient.numel()));
  return flat;
}

class Hook : public c10d::CppCommHookInterface<std::shared_ptr<CompressedBuckets>> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  FuturePtr runHook(c10d::GradBucket& bucket) override {
    const at::Tensor& buffer = bucket.getBuffer();
    // A sparse buffer has no parts.
    const bool is_dense = buffer.layout() == at::kStrided;
    return state_->reduce(buffer, is_dense ? bucket.getGradients() : std::vector<at::Tensor>(),
                          bucket.getParameters());
  }
};

}  // namespace

// Threads apart from those of other futures, since users' compressors must not delay other reductions. They decompress one bucket at a
// time, as these compressors may expect.
struct CompressedBuckets::Decompressing {
  CallbackThreads threads;
  std::mutex one_at_a_time;
};

// What "auto" sees of a bucket in a step (_control.Record). Without "auto" it is empty, and Python is not called.
class CompressedBuckets::Record {
 public:
  Record() = default;
  explicit Record(py::object object) : object_(std::move(object)) {}
  ~Record() {
    if (!object_) return;
    const py::gil_scoped_acquire locked;
    object_ = py::object();
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  template <typename... Args>
  void call(const char* function, Args... args) const {
    if (!object_) return;
    const py::gil_scoped_acquire locked;
    object_.attr(function)(args...);
  }

 private:
  py::object object_;
};

CompressedBuckets::CompressedBuckets(c10::intrusive_ptr<ProcessGroupNetsum> group,
                                     std::shared_ptr<TrainingPass> pass, std::shared_ptr<BucketStats> stats,
                                     OfPython of_python, bool has_python_compressors)
    : group_(std::move(group)),
      pass_(std::move(pass)),
      stats_(std::move(stats)),
      of_python_(std::move(of_python)),
      decompressing_(has_python_compressors ? std::make_shared<Decompressing>() : nullptr) {}

CompressedBuckets::~CompressedBuckets() {
  // They end when they have nothing more to do: the caller may hold the lock of Python that they need for that.
  if (decompressing_) decompressing_->threads.stop(std::chrono::milliseconds(0));
  const py::gil_scoped_acquire locked;
  of_python_ = {};
}

void CompressedBuckets::add(const at::Tensor& parameter, BucketPlan::Item item) {
  known_.insert_or_assign(parameter.unsafeGetTensorImpl(),
                          Known{WeakParameter(parameter.getIntrusivePtr()), std::move(item)});
}

FuturePtr CompressedBuckets::reduce(const at::Tensor& buffer, const std::vector<at::Tensor>& gradients,
                                    const std::vector<at::Tensor>& parameters) {
  std::vector<BucketPlan::Item> items;
  for (const at::Tensor& parameter : parameters) items.push_back(known(parameter));
  begin(items);
  if (buffer.layout() != at::kStrided) {  // the gradients of a sparse embedding, which no method takes
    const auto record = enter({}, std::nullopt, &items);
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    const auto work = group_->sparse_all_reduce(buffer, SparseMode::kAuto, 1, 0, options);
    record->call("handed");
    return future_of({work}, buffer, nullptr, [record] { record->call("done", 0, 0); });
  }
  const std::optional<double> scale_of_loss = scale();
  const auto follow = [scale_of_loss](const std::vector<BucketPlan::Item>& changed) {
    for (const BucketPlan::Item& item : changed)
      if (item.tensor) item.tensor->follow_scale(scale_of_loss);
  };
  // Before anything is added to what they keep.
  if (of_python_.levels.is_none()) follow(items);
  const auto staged = stage(buffer, gradients, items);
  const auto flat = staged ? staged->gradients() : flat_gradients(buffer, gradients);
  const auto record = enter(flat, scale_of_loss, &items);
  follow(items);
  const auto plan = plan_of(items, buffer.scalar_type());
  const auto works = plan->start(*group_, flat, *pass_, *stats_, staged.get());
  record->call("handed");
  return future_of(works, buffer, staged,
                   [plan, flat, staged, record, bytes = buffer.nbytes(), stats = stats_] {
                     record->call("summed");
                     plan->finish(flat, *stats, staged.get());
                     record->call("done", bytes, plan->link_bytes());
                   });
}

// Gradients of an accelerator are compressed there or on the host. Waits for the device here, on the thread of the backward pass: the
// operations of all buckets keep their order among the group's calls.
std::shared_ptr<DeviceBucket> CompressedBuckets::stage(const at::Tensor& buffer,
                                                       const std::vector<at::Tensor>& gradients,
                                                       const std::vector<BucketPlan::Item>& items) {
  if (!is_accelerator(buffer.device())) return nullptr;
  // "auto" sees gradients before it chooses what they become.
  const bool whole = !of_python_.levels.is_none();
  const auto staged = std::make_shared<DeviceBucket>(buffer, gradients, items, group_->getSize(), whole);
  try {
    group_->stage(
        kWhat, buffer.device(), [&] { staged->encode(*pass_); }, &staged->buffers());
  } catch (...) {
    pass_->fail();
    throw;
  }
  return staged;
}

// A bucket of these items, and a pass with the first one.
void CompressedBuckets::begin(const std::vector<BucketPlan::Item>& items) {
  std::vector<uint64_t> ids;
  for (const BucketPlan::Item& item : items) ids.push_back(item.id);
  const uint64_t number = pass_->number();
  const bool was_taken_back = pass_->begin(ids);
  if (was_taken_back && !of_python_.levels.is_none()) {
    const py::gil_scoped_acquire locked;
    of_python_.levels.attr("taken_back")(number);
  }
  if (pass_->has_agreed()) return;
  const py::gil_scoped_acquire locked;
  of_python_.agree_on_steps();
  pass_->set_agreed();
}

// Lets "auto" choose a level for the bucket, which may replace its items and change its gradients.
std::shared_ptr<CompressedBuckets::Record> CompressedBuckets::enter(const std::vector<at::Tensor>& gradients,
                                                                    std::optional<double> scale,
                                                                    std::vector<BucketPlan::Item>* items) {
  if (of_python_.levels.is_none()) return std::make_shared<Record>();
  std::vector<uint64_t> ids;
  for (const BucketPlan::Item& item : *items) ids.push_back(item.id);
  const py::gil_scoped_acquire locked;
  const auto [changed, record] = of_python_.levels.attr("enter")(ids, gradients, scale, pass_->number())
                                     .cast<std::pair<std::vector<PythonItem>, py::object>>();
  *items = items_of(changed);
  return std::make_shared<Record>(record);
}

// A future of `buffer`: when all works have ended and finish() was called, or with what went wrong.
FuturePtr CompressedBuckets::future_of(const BucketPlan::Works& works, const at::Tensor& buffer,
                                       std::shared_ptr<DeviceBucket> staged, std::function<void()> finish) {
  c10::List<FuturePtr> futures(c10::FutureType::create(c10::AnyType::get()));
  for (const auto& work : works) futures.push_back(work->getFuture());
  std::vector<c10::Device> devices;
  if (is_accelerator(buffer.device())) devices.push_back(buffer.device());
  const auto result = c10::make_intrusive<Future>(c10::TensorType::get(), std::move(devices));
  const auto fail = [pass = pass_, result](std::exception_ptr error) {
    pass->ended(false);
    result->setError(std::move(error));
  };
  const auto end = [pass = pass_, result, buffer, staged, fail, own = decompressing_,
                    finish = std::move(finish)] {
    try {
      const auto locked = own ? std::unique_lock(own->one_at_a_time) : std::unique_lock<std::mutex>();
      finish();
      if (staged) ProcessGroupNetsum::return_staged(kWhat, &staged->buffers());
    } catch (const py::error_already_set& error) {
      // As of a future's callback that is written in Python.
      fail(std::make_exception_ptr(std::runtime_error(error.what())));
      return;
    } catch (...) {
      fail(std::current_exception());
      return;
    }
    pass->ended(true);
    // What waits for the future waits for the copies.
    const c10::OptionalStreamGuard out_stream(staged ? std::optional(staged->buffers().lane()->out)
                                                     : std::nullopt);
    try {
      result->markCompleted(buffer);
    } catch (...) {  // the device has failed since
      result->setErrorIfNeeded(std::current_exception());
    }
  };
  pass_->started();
  // Nothing is decompressed of a sparse bucket, whose future is that of its streams, too.
  const bool is_dense = buffer.layout() == at::kStrided;
  c10::collectAll(futures)->addCallback([fail, end, is_dense, own = decompressing_](Future& all) {
    if (all.hasError())
      fail(all.exception_ptr());
    else if (own && is_dense)
      own->threads.push(end);
    else
      end();
  });
  return result;
}

const BucketPlan::Item& CompressedBuckets::known(const at::Tensor& parameter) const {
  const auto found = known_.find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK(found != known_.end(), "a parameter of shape ", parameter.sizes(),
              " is not one of those that the compression was created for: call netsum.torch.compress() after "
              "the model has all its parameters");
  return found->second.item;
}

std::shared_ptr<BucketPlan> CompressedBuckets::plan_of(const std::vector<BucketPlan::Item>& items,
                                                       at::ScalarType type) {
  Key key{type, {}};
  std::set<uint64_t> ids;
  for (const BucketPlan::Item& item : items) {
    key.second.emplace_back(item.id, item.tensor.get());
    ids.insert(item.id);
  }
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  // DDP makes new buckets after the first step, and a level of "auto" has other tensors; the older plans are then those of no
  // bucket.
  std::erase_if(plans_, [&](const auto& old) {
    const auto& parts = old.first.second;
    return std::any_of(parts.begin(), parts.end(),
                       [&](const auto& part) { return ids.contains(part.first); });
  });
  return plans_[key] = std::make_shared<BucketPlan>(items, type, group_->getSize());
}

std::optional<double> CompressedBuckets::scale() const {
  if (of_python_.scaler.is_none()) return std::nullopt;
  const py::gil_scoped_acquire locked;
  return of_python_.scaler.attr("get_scale")().cast<double>();
}

void bind_compressed_buckets(py::module_& module) {
  py::class_<BucketStats, std::shared_ptr<BucketStats>>(module, "BucketStats")
      .def(py::init<>())
      .def("to_dict", [](const BucketStats& stats) {
        py::dict result;
        result["buckets"] = stats.buckets.load();
        result["encode_s"] = stats.encode_s.load();
        result["decode_s"] = stats.decode_s.load();
        return result;
      });
  py::class_<BucketPlan, std::shared_ptr<BucketPlan>>(module, "BucketPlan")
      .def(py::init([](const std::vector<PythonItem>& items, at::ScalarType type, int ranks) {
             return std::make_shared<BucketPlan>(items_of(items), type, ranks);
           }),
           py::arg("items"), py::arg("type"), py::arg("ranks"))
      .def(
          "start",
          [](BucketPlan& plan, ProcessGroupNetsum& group, const BucketPlan::Tensors& gradients,
             TrainingPass& pass, BucketStats& stats) { return plan.start(group, gradients, pass, stats); },
          py::arg("group"), py::arg("gradients"), py::arg("pass_"), py::arg("stats"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "finish",
          [](BucketPlan& plan, const BucketPlan::Tensors& gradients, BucketStats& stats) {
            plan.finish(gradients, stats);
          },
          py::arg("gradients"), py::arg("stats"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("link_bytes", &BucketPlan::link_bytes);
  py::class_<CompressedBuckets, std::shared_ptr<CompressedBuckets>>(module, "CompressedBuckets")
      .def(py::init([](const c10::intrusive_ptr<ProcessGroupNetsum>& group,
                       const std::shared_ptr<TrainingPass>& pass, const std::shared_ptr<BucketStats>& stats,
                       const py::object& scaler, const py::object& agree_on_steps, const py::object& levels,
                       bool has_python_compressors) {
             return std::make_shared<CompressedBuckets>(
                 group, pass, stats,
                 CompressedBuckets::OfPython{
                     .scaler = scaler, .agree_on_steps = agree_on_steps, .levels = levels},
                 has_python_compressors);
           }),
           py::arg("group"), py::arg("pass_"), py::arg("stats"), py::arg("scaler"), py::arg("agree_on_steps"),
           py::arg("levels"), py::arg("has_python_compressors"))
      .def(
          "add",
          [](CompressedBuckets& buckets, const at::Tensor& parameter, const PythonItem& item) {
            buckets.add(parameter, item_of(item));
          },
          py::arg("parameter"), py::arg("item"))
      .def(
          "reduce",
          [](CompressedBuckets& buckets, const at::Tensor& buffer, const std::vector<at::Tensor>& gradients,
             const std::vector<at::Tensor>& parameters) {
            return std::make_shared<torch::jit::PythonFutureWrapper>(
                buckets.reduce(buffer, gradients, parameters));
          },
          py::arg("buffer"), py::arg("gradients"), py::arg("parameters"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "register",
          [](const std::shared_ptr<CompressedBuckets>& buckets, c10d::Reducer& reducer) {
            reducer.register_comm_hook(std::make_unique<Hook>(buckets));
          },
          py::arg("reducer"),
          "Registers the hook of a DistributedDataParallel's reducer; a reducer has one at most.");
}

}  // namespace netsum::torch_backend
