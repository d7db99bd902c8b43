#include "torch/src/future.h"

#include <ATen/native/SparseTensorUtils.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>

namespace netsum::torch_backend {
namespace {

using Future = c10::ivalue::Future;

// The private members of Future: an explicit instantiation may name them. A release of PyTorch that renames one does not
// compile; a wheel is for one release (_check_torch.py).
template <typename Name, auto kMember>
struct Grant {
  friend constexpr auto member(Name) { return kMember; }
};
#define NETSUM_FUTURE_MEMBER(Name, member_of_future) \
  struct Name {                                      \
    friend constexpr auto member(Name);              \
  };                                                 \
  template struct Grant<Name, &Future::member_of_future>

NETSUM_FUTURE_MEMBER(Mutex, mutex_);
NETSUM_FUTURE_MEMBER(Completed, completed_);
NETSUM_FUTURE_MEMBER(Finished, finished_cv_);
NETSUM_FUTURE_MEMBER(Value, value_);
NETSUM_FUTURE_MEMBER(Error, eptr_);
NETSUM_FUTURE_MEMBER(Callbacks, callbacks_);
NETSUM_FUTURE_MEMBER(Events, events_);
NETSUM_FUTURE_MEMBER(Storages, storages_);
NETSUM_FUTURE_MEMBER(CurrentDevice, currentDevice_);
#undef NETSUM_FUTURE_MEMBER

using Callback = std::function<void(Future&)>;
struct InvokeCallback {
  friend constexpr auto member(InvokeCallback);
};
template struct Grant<InvokeCallback,
                      static_cast<void (Future::*)(Callback&, bool)>(&Future::invokeCallback<Callback>)>;

// As Future::markCompleted() and setErrorInternal().
std::function<void()> end(const FuturePtr& future, c10::IValue value,
                          std::vector<Future::WeakStorage> storages, const Arrival& arrival,
                          std::exception_ptr error) {
  std::remove_reference_t<decltype((*future).*member(Callbacks{}))> callbacks;
  std::vector<c10::Event> events;
  if (const LanePtr& lane = arrival.lane()) {
    try {
      events.emplace_back(lane->device.type());
      events.back().record(lane->out);
    } catch (const std::exception&) {  // the device has failed since the copies
      events.clear();
      storages.clear();
      value = {};
      error = std::current_exception();
    }
  }
  {
    const std::lock_guard lock((*future).*member(Mutex{}));
    TORCH_INTERNAL_ASSERT(!future->completed());
    (*future).*member(Value{}) = std::move(value);
    (*future).*member(Storages{}) = std::move(storages);
    (*future).*member(Events{}) = std::move(events);
    if (const LanePtr& lane = arrival.lane()) (*future).*member(CurrentDevice{}) = lane->device;
    (*future).*member(Error{}) = std::move(error);
    (*future).*member(Completed{}) = true;
    callbacks.swap((*future).*member(Callbacks{}));
  }
  ((*future).*member(Finished{})).notify_all();
  if (callbacks.empty()) return nullptr;
  return [future, callbacks = std::move(callbacks)]() mutable {
    for (auto& one : callbacks) {
      try {
        ((*future).*member(InvokeCallback{}))(one.callback, one.uses_future);
      } catch (const std::exception& thrown) {  // of a callback that no other future belongs to
        TORCH_WARN("netsum: a callback of a future failed: ", thrown.what());
      }
    }
  };
}

void add_storages(const at::Tensor& tensor, std::vector<Future::WeakStorage>* storages) {
  const auto add = [storages](const at::Tensor& part) {
    storages->push_back(part.storage().getWeakStorageImpl());
  };
  if (!tensor.is_sparse()) return add(tensor);
  const at::SparseTensorImpl* const parts = at::sparse::get_sparse_impl(tensor);
  add(parts->indices());
  add(parts->values());
}

}  // namespace

FuturePtr new_future(const TensorLists& results, const std::optional<c10::Device>& device) {
  auto type = c10::ListType::create(c10::TensorType::get());
  if (results.size() > 1) type = c10::ListType::create(std::move(type));
  std::vector<c10::Device> devices;
  if (device) devices.push_back(*device);
  return c10::make_intrusive<c10::ivalue::Future>(std::move(type), std::move(devices));
}

std::function<void()> complete(const FuturePtr& future, const TensorLists& results, const Arrival& arrival) {
  std::vector<Future::WeakStorage> storages;
  if (arrival.lane())
    for (const auto& list : results)
      for (const at::Tensor& tensor : list) add_storages(tensor, &storages);
  c10::IValue value = results.size() > 1
                          ? c10::IValue(results)
                          : c10::IValue(results.empty() ? std::vector<at::Tensor>() : results.front());
  return end(future, std::move(value), std::move(storages), arrival, nullptr);
}

std::function<void()> fail(const FuturePtr& future, std::exception_ptr error) {
  return end(future, {}, {}, {}, std::move(error));
}

FuturePtr when_all_end(const std::vector<FuturePtr>& futures, c10::IValue value, const at::Tensor& tensor) {
  c10::List<FuturePtr> list(c10::FutureType::create(c10::AnyType::get()));
  for (const FuturePtr& future : futures) list.push_back(future);
  const auto type = c10::PyObjectType::get();
  return c10::collectAll(list)->then(
      [value = std::move(value), tensor](Future& all) {
        if (all.hasError()) std::rethrow_exception(all.exception_ptr());
        std::vector<Future::WeakStorage> storages;
        add_storages(tensor, &storages);
        return std::tuple(value, std::move(storages));
      },
      type);
}

}  // namespace netsum::torch_backend
