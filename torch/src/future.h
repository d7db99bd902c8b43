// Completes futures without running their callbacks.
#ifndef NETSUM_TORCH_SRC_FUTURE_H_
#define NETSUM_TORCH_SRC_FUTURE_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "torch/src/staging.h"

namespace netsum::torch_backend {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

using TensorLists = std::vector<std::vector<at::Tensor>>;

// Of the tensors of a call: one list is the value itself, several are a list of lists. `device`: the accelerator that they are on.
FuturePtr new_future(const TensorLists& results, const std::optional<c10::Device>& device);

// Future::markCompleted() and setError() run the future's callbacks on the calling thread. A callback may wait for another
// collective of its group, and that must not be in vain, so the thread that completes futures must not run callbacks. These
// functions complete a future and return its callbacks as one function, empty if there are none. Callbacks that are added later
// run at once, on the thread that adds them. Streams in which the value is used wait for its arrival, as with any future.
std::function<void()> complete(const FuturePtr& future, const TensorLists& results, const Arrival& arrival);
std::function<void()> fail(const FuturePtr& future, std::exception_ptr error);

// A future of `value`, an object of Python that is `tensor`: when all of `futures` have ended, or with the first error, whose type stays.
// Of a hook in Python, DDP takes only such a value.
FuturePtr when_all_end(const std::vector<FuturePtr>& futures, c10::IValue value, const at::Tensor& tensor);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_FUTURE_H_
