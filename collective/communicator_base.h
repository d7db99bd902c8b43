// The collectives of a communicator. Each call becomes an OperationSpec here; below, nothing distinguishes collectives
// but the role.
#ifndef NETSUM_COLLECTIVE_COMMUNICATOR_BASE_H_
#define NETSUM_COLLECTIVE_COMMUNICATOR_BASE_H_

#include <chrono>
#include <span>

#include "netsum/communicator.h"
#include "src/worker/operation.h"

namespace netsum {

class CommunicatorBase : public Communicator {
 public:
  Work all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) final;

 protected:
  // Checks the operation (tensor_check.h) and starts it. `timeout` 0: CommunicatorOptions::timeout. The deadline of
  // `spec` is not set.
  virtual Work submit(OperationSpec spec, std::chrono::milliseconds timeout) = 0;
};

}  // namespace netsum

#endif  // NETSUM_COLLECTIVE_COMMUNICATOR_BASE_H_
