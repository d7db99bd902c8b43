// Completes futures without running their callbacks.
#ifndef NETSUM_TORCH_SRC_FUTURE_H_
#define NETSUM_TORCH_SRC_FUTURE_H_

#include <ATen/core/ivalue.h>

#include <exception>
#include <functional>

namespace netsum::torch_backend {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// Of the tensors of a call with so many lists of results: one list is the value itself, several are a list of lists.
FuturePtr new_future(size_t lists);

// Future::markCompleted() and setError() run the future's callbacks on the calling thread. A callback may wait for another
// collective of its group, and that must not be in vain, so the thread that completes futures must not run callbacks. These
// functions complete a future of CPU tensors and return its callbacks as one function, empty if there are none. Callbacks
// that are added later run at once, on the thread that adds them.
std::function<void()> complete(const FuturePtr& future, c10::IValue value);
std::function<void()> fail(const FuturePtr& future, std::exception_ptr error);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_FUTURE_H_
