#include "api/communicator_base.h"

#include <utility>

#include "api/exit_flush.h"
#include "engine/work_state.h"
#include "session/tensor_check.h"
#include "src/worker/watermark_state.h"

namespace netsum {

Work CommunicatorBase::all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) {
  return sum(Collective::kAllReduce, tensors, 0, options);
}

Work CommunicatorBase::broadcast(std::span<const BufferView> buffers, int root,
                                 const CollectiveOptions& options) {
  return move(Collective::kBroadcast, buffers, root, options);
}

Work CommunicatorBase::all_gather(std::span<const BufferView> parts, const CollectiveOptions& options) {
  return move(Collective::kAllGather, parts, 0, options);
}

Work CommunicatorBase::gather(std::span<const BufferView> parts, int root, const CollectiveOptions& options) {
  return move(Collective::kGather, parts, root, options);
}

Work CommunicatorBase::scatter(std::span<const BufferView> parts, int root,
                               const CollectiveOptions& options) {
  return move(Collective::kScatter, parts, root, options);
}

Work CommunicatorBase::reduce(std::span<const TensorView> tensors, int root, const ReduceOptions& options) {
  return sum(Collective::kReduce, tensors, root, options);
}

Work CommunicatorBase::reduce_scatter(std::span<const TensorView> parts, const ReduceOptions& options) {
  return sum(Collective::kReduceScatter, parts, 0, options);
}

// One element that is zero on all ranks: an operation without elements would end at once.
Work CommunicatorBase::start_barrier(std::chrono::milliseconds timeout) {
  OperationSpec spec;
  spec.type = DataType::kInt32;
  spec.tensors = {{.count = 1}};
  spec.role = make_role(Collective::kBarrier, 0, rank());
  return check_and_submit(std::move(spec), timeout);
}

Work CommunicatorBase::move(Collective collective, std::span<const BufferView> buffers, int root,
                            const CollectiveOptions& options) {
  OperationSpec spec;
  spec.type = DataType::kByte;
  spec.tensors.reserve(buffers.size());
  for (const BufferView& buffer : buffers)
    spec.tensors.push_back({buffer.input, buffer.output, buffer.bytes});
  spec.role = make_role(collective, root, rank());
  spec.role.tag = options.tag;
  spec.watermarks = options.watermarks;
  return check_and_submit(std::move(spec), options.timeout);
}

Work CommunicatorBase::sum(Collective collective, std::span<const TensorView> tensors, int root,
                           const ReduceOptions& options) {
  OperationSpec spec;
  spec.type = options.type;
  spec.op = options.op;
  spec.tensors.assign(tensors.begin(), tensors.end());
  spec.role = make_role(collective, root, rank());
  spec.role.tag = options.tag;
  spec.watermarks = options.watermarks;
  spec.priority = options.priority;
  spec.one_tensor = collective == Collective::kReduceScatter;
  return check_and_submit(std::move(spec), options.timeout);
}

Work CommunicatorBase::check_and_submit(OperationSpec&& spec, std::chrono::milliseconds timeout) {
  if (is_forked()) return ended_work(refusal_in_child());
  if (Status refusal = check_role(spec, world_size()); !refusal.ok()) return ended_work(refusal);
  if (spec.watermarks != nullptr && !spec.watermarks->state().take())
    return ended_work({ErrorCode::kInvalidArgument,
                       std::string(collective_name(spec.role.collective)) +
                           ": its watermarks are those of an earlier operation: make new ones for each"});
  SparseOperations* const sparse = this->sparse();
  return sparse != nullptr ? sparse->submit(std::move(spec), timeout) : submit(std::move(spec), timeout);
}

void CommunicatorBase::abort(const std::string& reason) {
  if (!is_forked()) abort_job(reason);
}

Result<Regrouped> CommunicatorBase::regroup(const RegroupOptions& options) {
  if (is_forked()) return refusal_in_child();
  return regroup_job(options);
}

Status CommunicatorBase::status() const {
  return is_forked() ? refusal_in_child() : job_status();
}

CommunicatorStats CommunicatorBase::stats() const {
  return is_forked() ? CommunicatorStats{} : job_stats();
}

std::string CommunicatorBase::describe() const {
  return is_forked() ? "not connected: " + refusal_in_child().to_string() : describe_job();
}

Status CommunicatorBase::refusal_in_child() const {
  return netsum::refusal_in_child("communicator", process_,
                                  "connect in the process that calls, or start it by exec");
}

// In a child, joining the threads would never end.
void CommunicatorBase::operator delete(CommunicatorBase* communicator, std::destroying_delete_t) {
  if (communicator->is_forked()) return;
  exit_flush::remove(communicator);
  communicator->~CommunicatorBase();
  ::operator delete(communicator);
}

}  // namespace netsum
