// netsum as a c10d backend.
#ifndef NETSUM_TORCH_SRC_PROCESS_GROUP_H_
#define NETSUM_TORCH_SRC_PROCESS_GROUP_H_

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/sparse.h"
#include "torch/src/buffers.h"
#include "torch/src/completion_thread.h"
#include "torch/src/group_context.h"
#include "torch/src/host_call.h"
#include "torch/src/host_reduction.h"
#include "torch/src/host_work.h"
#include "torch/src/network_reduction.h"
#include "torch/src/recorder.h"
#include "torch/src/staging.h"
#include "torch/src/submissions.h"
#include "torch/src/work.h"

namespace netsum::torch_backend {

// torch.distributed.shrink_group registers each group for processors as one of Gloo, of whose options DDP then reads `threads`.
// The members after those of the base class are those of Gloo's options.
struct GroupOptions : c10d::Backend::Options {
  using Options::Options;

  std::vector<std::shared_ptr<void>> devices;
  int threads = 2;
};

// A single sparse tensor (COO), of the CPU or of an accelerator.
bool is_sparse(const std::vector<at::Tensor>& tensors);

// Adds the indices of a sparse tensor, and its values.
void add_parts(const at::Tensor& tensor, Buffers* buffers);

// Collectives of dense tensors use the communicator: those that move tensors for every element type, those that reduce
// for the types and operators of network_reduction(). So do all-reduces of sparse tensors of such types. All other
// operations use `hosts`, a backend that runs on the hosts only (Gloo). The choice depends only on properties that are the
// same on all ranks: collective, element type, layout, operator. It does not depend on the device: tensors of an accelerator are
// staged (buffers.h).
class ProcessGroupNetsum : public c10d::Backend {
 public:
  // If `communicator` is null, all operations use the hosts. `sums_only`: it reduces by sums and means only. `job` is its job's name. `timeout` is the default timeout of an
  // operation. `store` is the store in which the ranks of this group met; store() returns it. `without_network`, if `communicator` is
  // null: what would use the network ends at once and sums nothing, for recordings of a rank that is alone.
  ProcessGroupNetsum(int rank, int size, c10::intrusive_ptr<c10d::Backend> hosts,
                     std::shared_ptr<Communicator> communicator, bool sums_only, std::string job,
                     std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Store> store,
                     bool without_network = false);
  ~ProcessGroupNetsum() override;

  // The ranks from `real` on are ghosts (`netsum emulate`), which send zeros. Results are then as if each ghost held what the real
  // ranks hold on average: sums are multiplied, and the parts of ghosts are copies of this rank's. What would need the data
  // or the hosts of a ghost is refused. To be called before the first operation.
  void set_real_ranks(int real) { real_ranks_ = real; }
  // Of the group of all ranks: a file to which it writes when it submits each operation.
  void write_times(const std::string& path);
  bool has_ghosts() const { return real_ranks_ < getSize(); }

  // Null after shutdown(), and if all operations use the hosts.
  std::shared_ptr<Communicator> communicator() const;
  // After shutdown(): the last ones before it.
  CommunicatorStats stats() const;
  SparseStats sparse_stats() const;  // the same

  // How often each collective was called, by the place that ran it, and the bytes of the tensors of these calls.
  struct CallCounts {
    std::map<std::string_view, uint64_t> netsum, hosts;
    uint64_t netsum_bytes = 0, host_bytes = 0;
  };
  CallCounts calls() const;

  // To be called before the first operation.
  void set_staging_limits(const Lane::Limits& limits) {
    staging_limits_ = limits;
    if (getSize() == 1 || !communicator_) staging_limits_.segment = 0;  // nothing to overlap with
  }
  // Copies the tensors of the buffers, which are on an accelerator and are not prepared, to the host, and waits for that. `what` is
  // in messages. Results are what the caller leaves in the buffers, and are copied by return_staged(). Throws BackendError.
  void stage(const char* what, Buffers* buffers);
  // The same, where encode() fills the buffers, on the device, in the current stream.
  void stage(const char* what, const c10::Device& device, const std::function<void()>& encode,
             Buffers* buffers);
  static void return_staged(const char* what, Buffers* buffers);
  // The accelerators whose tensors this rank has staged, and whether in pinned memory.
  std::vector<std::pair<std::string, bool>> staged_devices() const;
  size_t staging_segment_bytes() const {
    return staging_limits_.segment;
  }  // 0: tensors are staged as a whole

  c10::intrusive_ptr<c10d::Store> store() const { return store_; }
  // The ranks of this group in the job, for recordings. Until it is called, they count as those of the job.
  void set_global_ranks(std::vector<int> ranks);
  const std::vector<int>& global_ranks() const { return recorded_->ranks; }
  bool sums_only() const { return sums_only_; }  // the communicator reduces by sums and means only
  const std::string& job() const { return job_; }
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
  // Waits until no operation is in flight; returns whether that is so within `limit`.
  bool flush(std::chrono::milliseconds limit) { return context_->flush(limit); }

  bool supportsSplitting() const override { return true; }
  // Makes the group of `ranks`, which are those of this group that call it; null on other ranks.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;

  // --- In the network where possible ----------------------------------------------------------------------
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceCoalescedOptions& opts) override;
  // The same for tensors with an identity: ids[i] is TensorView::id of tensors[i]. Empty: none has one. `tag`: what the ranks compare
  // besides (ReduceOptions::tag). `priority`: ReduceOptions::priority.
  c10::intrusive_ptr<c10d::Work> allreduce_identified(std::vector<at::Tensor>& tensors,
                                                      const std::vector<uint64_t>& ids,
                                                      const c10d::AllreduceCoalescedOptions& opts,
                                                      uint32_t tag = 0, int32_t priority = 0);
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tagged(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts, uint32_t tag);
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> all_gather_tagged(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& opts, uint32_t tag);
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
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;

  // An all-reduce of a dense tensor that has many zeros (SparseOptions). `id`: as TensorView::id. `on_sent`: as
  // SparseOptions::on_sent, unless the tensor is reduced as a dense one from the start.
  c10::intrusive_ptr<c10d::Work> sparse_all_reduce(const at::Tensor& tensor, SparseMode mode, int64_t unit,
                                                   uint64_t id, const c10d::AllreduceOptions& opts,
                                                   std::function<void(const SparseStats&)> on_sent = {},
                                                   uint32_t tag = 0);

  // --- On the hosts (host_calls.cc)
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

 private:
  using Tensors = std::vector<at::Tensor>;

  // Throws the error of a failed communicator, also for operations that would use the hosts: otherwise they would succeed
  // in a failed group.
  std::shared_ptr<Communicator> require_healthy(const char* operation);
  // Of an operation that uses the hosts. Throws if it cannot.
  void count_host_call(const char* operation);

  // The only way to Gloo for calls with tensors: checks them, gives Gloo contiguous memory, and copies the results back.
  c10::intrusive_ptr<c10d::Work> run_on_hosts(const Call& call, HostCall hosted);
  void note_host_call(const Call& call, const HostCall& hosted);
  void announce_host_call(const c10::intrusive_ptr<HostWork>& work, const std::string& call);
  HostCall host_reduction(const Tensors& tensors, const c10d::ReduceOp& op, HostReduction* how);
  HostCall point_to_point(const Call& call, const Tensors& tensors, int peer);
  // `with_each_other`: several tensors are also reduced with each other, as in old interfaces.
  c10::intrusive_ptr<c10d::Work> all_reduce_on_hosts(const Call& call, const Tensors& tensors,
                                                     const c10d::ReduceOp& op, bool with_each_other,
                                                     std::chrono::milliseconds timeout);
  c10::intrusive_ptr<c10d::Work> all_reduce_sparse_on_hosts(const Call& call, const Tensors& tensors,
                                                            const c10d::AllreduceOptions& opts);
  c10::intrusive_ptr<c10d::Work> reduce_on_hosts(const Call& call, const Tensors& tensors,
                                                 const c10d::ReduceOptions& opts);
  // Each of `inputs` is a list of one tensor per rank, or one tensor that consists of their parts.
  c10::intrusive_ptr<c10d::Work> reduce_scatter_on_hosts(const Call& call, const Tensors& outputs,
                                                         const std::vector<Tensors>& inputs,
                                                         const c10d::ReduceScatterOptions& opts);
  c10::intrusive_ptr<c10d::Work> broadcast_on_hosts(const Call& call, const Tensors& tensors,
                                                    const c10d::BroadcastOptions& opts);
  c10::intrusive_ptr<c10d::Work> all_gather_on_hosts(const Call& call, const std::vector<Tensors>& outputs,
                                                     const Tensors& inputs, std::vector<Tensors> results,
                                                     const c10d::AllgatherOptions& opts);
  c10::intrusive_ptr<c10d::Work> all_gather_flat_on_hosts(const Call& call, const Tensors& outputs,
                                                          const Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts);
  c10::intrusive_ptr<c10d::Work> gather_on_hosts(const Call& call, const std::vector<Tensors>& outputs,
                                                 const Tensors& inputs, const c10d::GatherOptions& opts);
  c10::intrusive_ptr<c10d::Work> scatter_on_hosts(const Call& call, const Tensors& outputs,
                                                  const std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& opts);
  c10::intrusive_ptr<c10d::Work> barrier_on_hosts(const Call& call, const c10d::BarrierOptions& opts);

  // How the network reduces the tensors, or nullopt: the hosts must.
  std::optional<NetworkReduction> reduction_of(const Tensors& tensors, const c10d::ReduceOp& op) const {
    return sums_only_ && !is_sum(op) ? std::nullopt : network_reduction(tensors, op);
  }

  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;
  // Throws ValueError if there is no such rank, and kUnsupported if it is to send and is a ghost.
  int checked_root(const Call& call, int64_t root) const;

  bool reaches_network(const std::shared_ptr<Communicator>& communicator) const {
    return communicator || without_network_;
  }
  [[noreturn]] void refuse_beside_ghosts(const char* operation, const std::string& why) const;

  // A call in the network: counts it, prepares the buffers, and throws if they cannot be used. The operations then use
  // CollectiveWork::buffers().
  c10::intrusive_ptr<CollectiveWork> begin(const Call& call, Buffers buffers, std::vector<Tensors> results,
                                           const Tensors& profiled, const NetworkReduction& reduction = {});
  // Before an operation of `work` is submitted.
  void note_time();
  void record(CollectiveWork& work, program::Collective collective, std::span<const TensorView> tensors,
              const ReduceOptions& options, int root = -1);
  void record(CollectiveWork& work, program::Collective collective, std::span<const BufferView> tensors,
              uint32_t tag, int root = -1);
  void record(HostWork& work, const Call& call, uint64_t bytes);
  // Of a call that gathers the parts `views`.
  void fill_parts_of_ghosts(CollectiveWork* work, const std::vector<BufferView>& views) const;
  // Submits the operations of a call when its buffers are there and the calls before it have begun.
  using Submit = std::function<std::vector<Work>(CollectiveWork&)>;
  c10::intrusive_ptr<c10d::Work> submit(c10::intrusive_ptr<CollectiveWork> work,
                                        std::chrono::milliseconds timeout, Submit submit);
  // The options of the only operation of a call, with watermarks if its tensors are staged by segments.
  ReduceOptions staged(CollectiveWork& work, const std::vector<TensorView>& views, ReduceOptions options);
  CollectiveOptions staged(CollectiveWork& work, const std::vector<BufferView>& views,
                           CollectiveOptions options);
  std::shared_ptr<Watermarks> watermarks_of(CollectiveWork& work, std::vector<BufferView> parts);
  // Ends `work` when the operations have ended.
  void follow(const c10::intrusive_ptr<CollectiveWork>& work, const std::vector<Work>& operations);
  // The input is what is in the current stream of the buffers' device, if they have one, now.
  Status leave_device(Buffers* buffers);
  Status lane_of(const c10::Device& device, LanePtr* lane);
  Submissions::Stage staging_of(Buffers* buffers, std::chrono::milliseconds timeout) const;

  using CommunicatorPtr = std::shared_ptr<Communicator>;
  c10::intrusive_ptr<c10d::Work> all_reduce(const CommunicatorPtr& communicator, const Call& call,
                                            const Tensors& tensors, const std::vector<uint64_t>& ids,
                                            NetworkReduction reduction, std::chrono::milliseconds timeout);
  c10::intrusive_ptr<c10d::Work> all_reduce_rows(const CommunicatorPtr& communicator, at::Tensor& tensor,
                                                 const c10d::AllreduceOptions& opts);
  // inputs[i] of rank r goes to outputs[i][r].
  c10::intrusive_ptr<c10d::Work> all_gather_lists(const CommunicatorPtr& communicator, const Call& call,
                                                  const std::vector<Tensors>& outputs, const Tensors& inputs,
                                                  std::vector<Tensors> results,
                                                  std::chrono::milliseconds timeout);
  // inputs[i] of rank r goes to part r of outputs[i].
  c10::intrusive_ptr<c10d::Work> all_gather_flat(const CommunicatorPtr& communicator, const Call& call,
                                                 const Tensors& outputs, const Tensors& inputs,
                                                 std::chrono::milliseconds timeout, uint32_t tag = 0);
  // outputs[i] of rank r becomes the reduced part r of inputs[i].
  c10::intrusive_ptr<c10d::Work> reduce_scatter_flat(const CommunicatorPtr& communicator, const Call& call,
                                                     const Tensors& outputs, const Tensors& inputs,
                                                     NetworkReduction reduction);

  // These three come first, as in Gloo's group: see GroupOptions.
  const c10::intrusive_ptr<c10d::Backend> hosts_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<GroupOptions> options_;
  const std::string job_;
  const bool sums_only_;
  const bool without_network_;
  const pid_t process_ = getpid();
  int real_ranks_;
  Lane::Limits staging_limits_;
  std::atomic<uint64_t> sequence_{0};
  const std::shared_ptr<GroupContext> context_;
  CompletionThread completion_;
  Submissions submissions_;
  std::shared_ptr<const RecordedGroup> recorded_;

  mutable std::mutex mutex_;  // guards the following members
  std::shared_ptr<Communicator> communicator_;
  CommunicatorStats last_stats_;  // of the communicator, after shutdown()
  SparseStats last_sparse_stats_;
  CallCounts calls_;
  std::set<std::string> told_;            // calls and reasons of note_host_call()
  std::map<std::string, LanePtr> lanes_;  // by device
  bool shut_down_ = false;

  // Of write_times(): a file for the life of the process, and the operations that are in it. Calls submit one by one.
  int times_ = -1;
  uint64_t noted_ = 0;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_PROCESS_GROUP_H_
