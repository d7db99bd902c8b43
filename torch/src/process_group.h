// netsum as a c10d backend.
#ifndef NETSUM_TORCH_SRC_PROCESS_GROUP_H_
#define NETSUM_TORCH_SRC_PROCESS_GROUP_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "netsum/communicator.h"
#include "torch/src/completion_thread.h"

namespace netsum::torch_backend {

// Sums and averages of dense CPU tensors of a type that the network can sum use the communicator. All other operations use
// `hosts`, a backend that runs on the hosts only (Gloo). The choice depends only on properties that are the same on all
// ranks: element type, layout, operation.
class ProcessGroupNetsum : public c10d::Backend {
 public:
  // If `communicator` is null, all operations use the hosts. `timeout` is the default timeout of an operation. `store` is
  // the store in which the ranks of this group met; store() returns it.
  ProcessGroupNetsum(int rank, int size, c10::intrusive_ptr<c10d::Backend> hosts,
                     std::shared_ptr<Communicator> communicator, std::chrono::milliseconds timeout,
                     c10::intrusive_ptr<c10d::Store> store);
  ~ProcessGroupNetsum() override;

  // Null after shutdown(), and if all operations use the hosts.
  std::shared_ptr<Communicator> communicator() const;
  // After shutdown(): the last ones before it.
  CommunicatorStats stats() const;

  c10::intrusive_ptr<c10d::Store> store() const { return store_; }
  std::chrono::milliseconds timeout() const { return options_->timeout; }

  const std::string getBackendName() const override { return "netsum"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10d::ErrorType getError() override;
  // Ends all operations on all ranks with an error.
  void abort() override;
  // Leaves the group. Operations in flight end with an error.
  void shutdown() override;

  // --- Summed in the network where possible ---------------------------------------------------------------
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceCoalescedOptions& opts) override;
  // The same for tensors with an identity: ids[i] is TensorView::id of tensors[i]. Empty: none has one.
  c10::intrusive_ptr<c10d::Work> allreduce_identified(std::vector<at::Tensor>& tensors,
                                                      const std::vector<uint64_t>& ids,
                                                      const c10d::AllreduceCoalescedOptions& opts);

  // --- On the hosts
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

 private:
  // Throws the error of a failed communicator, also for operations that would use the hosts: otherwise they would succeed
  // in a failed group.
  std::shared_ptr<Communicator> require_healthy(const char* operation);
  // The backend for an operation that uses the hosts. Counts the operation.
  c10d::Backend& hosts(const char* operation);
  c10::intrusive_ptr<c10d::Work> reduce_in_network(std::shared_ptr<Communicator> communicator,
                                                   c10d::OpType type, const char* profiling_title,
                                                   const std::vector<at::Tensor>& tensors,
                                                   const std::vector<uint64_t>& ids,
                                                   AllReduceOptions options);

  const c10::intrusive_ptr<c10d::Backend> hosts_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> sequence_{0};
  CompletionThread completion_;

  mutable std::mutex mutex_;  // guards the following members
  std::shared_ptr<Communicator> communicator_;
  CommunicatorStats last_stats_;  // of the communicator, after shutdown()
  bool shut_down_ = false;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_PROCESS_GROUP_H_
