#include "collective/communicator_base.h"

#include <utility>

namespace netsum {

Work CommunicatorBase::all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) {
  OperationSpec spec;
  spec.type = options.type;
  spec.op = options.op;
  spec.tensors.assign(tensors.begin(), tensors.end());
  return submit(std::move(spec), options.timeout);
}

}  // namespace netsum
