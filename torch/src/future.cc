#include "torch/src/future.h"

#include <c10/util/Exception.h>

#include <mutex>
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
#undef NETSUM_FUTURE_MEMBER

// As Future::markCompleted() and setErrorInternal(), for futures without devices.
std::function<void()> end(const FuturePtr& future, c10::IValue value, std::exception_ptr error) {
  std::remove_reference_t<decltype((*future).*member(Callbacks{}))> callbacks;
  {
    const std::lock_guard lock((*future).*member(Mutex{}));
    TORCH_INTERNAL_ASSERT(!future->completed() && future->devices().empty());
    (*future).*member(Value{}) = std::move(value);
    (*future).*member(Error{}) = std::move(error);
    (*future).*member(Completed{}) = true;
    callbacks.swap((*future).*member(Callbacks{}));
  }
  ((*future).*member(Finished{})).notify_all();
  if (callbacks.empty()) return nullptr;
  return [future, callbacks = std::move(callbacks)] {
    for (const auto& one : callbacks) {
      try {
        one.callback(*future);
      } catch (const std::exception& thrown) {  // of a callback that no other future belongs to
        TORCH_WARN("netsum: a callback of a future failed: ", thrown.what());
      }
    }
  };
}

}  // namespace

FuturePtr new_future(size_t lists) {
  auto type = c10::ListType::create(c10::TensorType::get());
  if (lists > 1) type = c10::ListType::create(std::move(type));
  return c10::make_intrusive<c10::ivalue::Future>(std::move(type));
}

std::function<void()> complete(const FuturePtr& future, c10::IValue value) {
  return end(future, std::move(value), nullptr);
}

std::function<void()> fail(const FuturePtr& future, std::exception_ptr error) {
  return end(future, {}, std::move(error));
}

}  // namespace netsum::torch_backend
