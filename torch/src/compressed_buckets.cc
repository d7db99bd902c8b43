#include "torch/src/compressed_buckets.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace netsum::torch_backend {
namespace {

namespace py = pybind11;

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// The gradients as flat parts of the buffer, whatever their strides.
std::vector<at::Tensor> flat_gradients(const c10d::GradBucket& bucket) {
  const at::Tensor& buffer = bucket.getBuffer();
  std::vector<at::Tensor> flat;
  for (const at::Tensor& gradient : bucket.getGradients())
    flat.push_back(buffer.narrow(0, gradient.storage_offset() - buffer.storage_offset(), gradient.numel()));
  return flat;
}

// A future of `buffer`: when all works have ended and finish() was called, or with what went wrong.
FuturePtr future_of(const BucketPlan::Works& works, const at::Tensor& buffer,
                    const std::shared_ptr<TrainingPass>& pass, std::function<void()> finish) {
  c10::List<FuturePtr> futures(c10::FutureType::create(c10::AnyType::get()));
  for (const auto& work : works) futures.push_back(work->getFuture());
  const auto end = [buffer, pass, finish = std::move(finish)](c10::ivalue::Future& all) -> c10::IValue {
    try {
      if (all.hasError()) std::rethrow_exception(all.exception_ptr());
      finish();
    } catch (...) {
      pass->ended(false);
      throw;
    }
    pass->ended(true);
    return buffer;
  };
  pass->started();
  return c10::collectAll(futures)->then(end, c10::TensorType::get());
}

class Hook : public c10d::CppCommHookInterface<std::shared_ptr<CompressedBuckets>> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  FuturePtr runHook(c10d::GradBucket& bucket) override { return state_->reduce(bucket); }
};

}  // namespace

CompressedBuckets::~CompressedBuckets() {
  const py::gil_scoped_acquire locked;
  scaler_ = py::object();
}

void CompressedBuckets::add(const at::Tensor& parameter, BucketPlan::Item item) {
  known_[parameter.unsafeGetTensorImpl()] = {.parameter = parameter, .item = std::move(item)};
}

FuturePtr CompressedBuckets::reduce(c10d::GradBucket& bucket) {
  const at::Tensor buffer = bucket.getBuffer();
  std::vector<BucketPlan::Item> items;
  std::vector<uint64_t> ids;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    items.push_back(known(parameter));
    ids.push_back(items.back().id);
  }
  pass_->begin(ids);
  if (!pass_->has_agreed()) agree_on_steps();
  if (buffer.layout() != at::kStrided) {  // the gradients of a sparse embedding, which no method takes
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    const auto work = group_->sparse_all_reduce(buffer, SparseMode::kAuto, 1, 0, options);
    return future_of({work}, buffer, pass_, [] {});
  }
  const std::optional<double> scale_of_loss = scale();
  for (const BucketPlan::Item& item : items)
    if (item.tensor) item.tensor->follow_scale(scale_of_loss);
  const auto plan = plan_of(items, buffer.scalar_type());
  const auto gradients = flat_gradients(bucket);
  const auto works = plan->start(*group_, gradients, *pass_, *stats_);
  return future_of(works, buffer, pass_,
                   [plan, gradients, stats = stats_] { plan->finish(gradients, *stats); });
}

// Of all parameters, in an order that all ranks have.
void CompressedBuckets::agree_on_steps() {
  std::map<uint64_t, std::shared_ptr<Tensor>> by_id;
  for (const auto& [parameter, known] : known_)
    if (known.item.tensor) by_id[known.item.id] = known.item.tensor;
  std::vector<std::shared_ptr<Tensor>> tensors;
  for (const auto& [id, tensor] : by_id) tensors.push_back(tensor);
  torch_backend::agree_on_steps(*group_, tensors);
  pass_->set_agreed();
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
  for (const BucketPlan::Item& item : items) key.second.push_back(item.id);
  auto& plan = plans_[key];
  if (plan) return plan;
  // DDP makes new buckets after the first step; the older plans are then those of no bucket.
  std::erase_if(plans_, [&](const auto& old) {
    return old.second && std::find_first_of(old.first.second.begin(), old.first.second.end(),
                                            key.second.begin(), key.second.end()) != old.first.second.end();
  });
  plan = std::make_shared<BucketPlan>(items, type, group_->getSize());
  return plan;
}

std::optional<double> CompressedBuckets::scale() const {
  if (scaler_.is_none()) return std::nullopt;
  const py::gil_scoped_acquire locked;
  return scaler_.attr("get_scale")().cast<double>();
}

void bind_compressed_buckets(py::module_& module) {
  // (tensor or None, id, name, number of elements)
  using Item = std::tuple<std::shared_ptr<Tensor>, uint64_t, std::string, size_t>;
  const auto item_of = [](const Item& item) {
    const auto& [tensor, id, name, count] = item;
    return BucketPlan::Item{.tensor = tensor, .id = id, .name = name, .count = count};
  };
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
      .def(py::init([item_of](const std::vector<Item>& given, at::ScalarType type, int ranks) {
             std::vector<BucketPlan::Item> items;
             std::transform(given.begin(), given.end(), std::back_inserter(items), item_of);
             return std::make_shared<BucketPlan>(std::move(items), type, ranks);
           }),
           py::arg("items"), py::arg("type"), py::arg("ranks"))
      .def("start", &BucketPlan::start, py::arg("group"), py::arg("gradients"), py::arg("pass_"),
           py::arg("stats"), py::call_guard<py::gil_scoped_release>())
      .def("finish", &BucketPlan::finish, py::arg("gradients"), py::arg("stats"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("link_bytes", &BucketPlan::link_bytes);
  py::class_<CompressedBuckets, std::shared_ptr<CompressedBuckets>>(module, "CompressedBuckets")
      .def(py::init([](const c10::intrusive_ptr<ProcessGroupNetsum>& group,
                       const std::shared_ptr<TrainingPass>& pass, const std::shared_ptr<BucketStats>& stats,
                       const py::object& scaler) {
             return std::make_shared<CompressedBuckets>(group, pass, stats, scaler);
           }),
           py::arg("group"), py::arg("pass_"), py::arg("stats"), py::arg("scaler"))
      .def(
          "add",
          [item_of](CompressedBuckets& buckets, const at::Tensor& parameter, const Item& item) {
            buckets.add(parameter, item_of(item));
          },
          py::arg("parameter"), py::arg("item"))
      .def(
          "register",
          [](const std::shared_ptr<CompressedBuckets>& buckets, c10d::Reducer& reducer) {
            reducer.register_comm_hook(std::make_unique<Hook>(buckets));
          },
          py::arg("reducer"),
          "Registers the hook of a DistributedDataParallel's reducer; a reducer has one at most.");
}

}  // namespace netsum::torch_backend
