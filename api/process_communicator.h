// What Communicator::connect() returns: the communicator of the process that has called it. In a child that was forked since
// then there are no engine threads, and its sockets are gone (src/base/forked_children.h), but memory that it shares with other
// ranks is mapped. So there all calls are refused, and nothing is left or joined when the object is destroyed.
//
// Thread rule: as of Communicator.
#ifndef NETSUM_API_PROCESS_COMMUNICATOR_H_
#define NETSUM_API_PROCESS_COMMUNICATOR_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "api/communicator_base.h"
#include "netsum/communicator.h"
#include "netsum/sparse.h"

namespace netsum {

class ProcessCommunicator final : public Communicator {
 public:
  explicit ProcessCommunicator(std::unique_ptr<CommunicatorBase> communicator);
  ~ProcessCommunicator() override;

  int rank() const override { return communicator_->rank(); }
  int world_size() const override { return communicator_->world_size(); }

  Work all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) override {
    return start([&](CommunicatorBase& to) { return to.all_reduce(tensors, options); });
  }
  Work broadcast(std::span<const BufferView> buffers, int root, const CollectiveOptions& options) override {
    return start([&](CommunicatorBase& to) { return to.broadcast(buffers, root, options); });
  }
  Work all_gather(std::span<const BufferView> parts, const CollectiveOptions& options) override {
    return start([&](CommunicatorBase& to) { return to.all_gather(parts, options); });
  }
  Work gather(std::span<const BufferView> parts, int root, const CollectiveOptions& options) override {
    return start([&](CommunicatorBase& to) { return to.gather(parts, root, options); });
  }
  Work scatter(std::span<const BufferView> parts, int root, const CollectiveOptions& options) override {
    return start([&](CommunicatorBase& to) { return to.scatter(parts, root, options); });
  }
  Work reduce(std::span<const TensorView> tensors, int root, const ReduceOptions& options) override {
    return start([&](CommunicatorBase& to) { return to.reduce(tensors, root, options); });
  }
  Work reduce_scatter(std::span<const TensorView> parts, const ReduceOptions& options) override {
    return start([&](CommunicatorBase& to) { return to.reduce_scatter(parts, options); });
  }
  Work start_barrier(std::chrono::milliseconds timeout) override {
    return start([&](CommunicatorBase& to) { return to.start_barrier(timeout); });
  }

  // netsum/sparse.h
  Work sparse_all_reduce(const TensorView& tensor, const SparseOptions& options) {
    return start([&](CommunicatorBase& to) { return to.sparse_all_reduce(tensor, options); });
  }
  Work sparse_all_reduce(const CooView& input, CooAllocator allocate, const SparseOptions& options) {
    return start(
        [&](CommunicatorBase& to) { return to.sparse_all_reduce(input, std::move(allocate), options); });
  }
  SparseStats sparse_stats() const;

  void abort(const std::string& reason) override;
  Result<Regrouped> regroup(const RegroupOptions& options) override;
  Status status() const override;
  CommunicatorStats stats() const override;
  std::string describe() const override;

 private:
  bool is_forked() const;
  Status refusal() const;
  template <typename Start>
  Work start(const Start& start) {
    return is_forked() ? ended(refusal()) : start(*communicator_);
  }
  static Work ended(const Status& status);

  const pid_t process_;
  std::unique_ptr<CommunicatorBase> communicator_;
};

}  // namespace netsum

#endif  // NETSUM_API_PROCESS_COMMUNICATOR_H_
