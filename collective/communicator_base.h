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
  Work broadcast(std::span<const BufferView> buffers, int root, const CollectiveOptions& options) final;
  Work all_gather(std::span<const BufferView> parts, const CollectiveOptions& options) final;
  Work gather(std::span<const BufferView> parts, int root, const CollectiveOptions& options) final;
  Work scatter(std::span<const BufferView> parts, int root, const CollectiveOptions& options) final;
  Work reduce(std::span<const TensorView> tensors, int root, const ReduceOptions& options) final;
  Work reduce_scatter(std::span<const TensorView> parts, const ReduceOptions& options) final;
  Work start_barrier(std::chrono::milliseconds timeout) final;

 protected:
  // Checks the operation (tensor_check.h) and starts it. `timeout` 0: CommunicatorOptions::timeout. The deadline of
  // `spec` is not set.
  virtual Work submit(OperationSpec spec, std::chrono::milliseconds timeout) = 0;

 private:
  Work move(Collective collective, std::span<const BufferView> buffers, int root,
            const CollectiveOptions& options);
  Work sum(Collective collective, std::span<const TensorView> tensors, int root,
           const ReduceOptions& options);
  // Checks the root and the number of parts, which the job determines.
  Work submit_here(OperationSpec spec, std::chrono::milliseconds timeout);
};

}  // namespace netsum

#endif  // NETSUM_COLLECTIVE_COMMUNICATOR_BASE_H_
