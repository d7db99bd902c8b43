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

// Sums and averages of dense CPU tensors whose type the network can sum go to the communicator; every other
// operation goes to `hosts`, a backend that works over the hosts alone (Gloo). Which way an operation goes
// depends only on what all ranks of it share: type, layout, operation.
class ProcessGroupNetsum : public c10d::Backend {
 public:
  // `communicator` may be null: then everything goes over the hosts. `timeout` is the default deadline of an
  // operation. `store` is where the ranks of this group met; only kept, for those who look for it here.
  ProcessGroupNetsum(int rank, int size, c10::intrusive_ptr<c10d::Backend> hosts,
                     std::shared_ptr<Communicator> communicator, std::chrono::milliseconds timeout,
                     c10::intrusive_ptr<c10d::Store> store);
  ~ProcessGroupNetsum() override;

  // Null after shutdown() and where everything goes over the hosts.
  std::shared_ptr<Communicator> communicator() const;
  // After shutdown() those of before it.
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
  // Leaves the group in good order. Operations in flight end with an error.
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

  // --- Over the hosts
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
  // Throws the error that broke the communicator, if any: a broken group must not look alive because an
  // operation happens to take the other way.
  std::shared_ptr<Communicator> require_healthy(const char* operation);
  // The backend for the next collective over the hosts.
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

  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<Communicator> communicator_;
  CommunicatorStats last_stats_;  // of a communicator that is gone
  bool shut_down_ = false;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_PROCESS_GROUP_H_
