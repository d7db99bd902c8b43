// What the works of a group need of it while they end.
#ifndef NETSUM_TORCH_SRC_GROUP_CONTEXT_H_
#define NETSUM_TORCH_SRC_GROUP_CONTEXT_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "netsum/communicator.h"
#include "torch/src/callback_threads.h"
#include "torch/src/message_waits.h"

namespace netsum::torch_backend {

// Works may outlive the group. Any thread may call the methods.
class GroupContext {
 public:
  GroupContext(int rank, int size, std::weak_ptr<Communicator> communicator,
               c10::intrusive_ptr<c10d::Store> store)
      : rank_(rank), size_(size), communicator_(std::move(communicator)), store_(std::move(store)) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Null: it has been closed, or all operations use the hosts.
  std::shared_ptr<Communicator> communicator() const { return communicator_.lock(); }
  CallbackThreads& callbacks() { return callbacks_; }
  MessageWaits& messages() { return messages_; }

  // Count the works that have not ended.
  void work_began() { ++in_flight_; }
  void work_ended();
  // Waits until all have; returns whether they have within `limit`.
  bool flush(std::chrono::milliseconds limit);

  // A call of this rank cannot begin: ends the group's operations on all ranks, which must not wait for it.
  void fail(const Status& status);
  // This rank's wait for `call` was interrupted by the exception `name`: ends the group's operations on all ranks.
  void interrupted(const std::string& call, const std::string& name);

  // The calls that the ranks were in at a mismatch, one of which is `own_call`, as a text to append to the error. The ranks
  // exchange them through the store, within a second. The first call decides.
  std::string calls_at_mismatch(const std::string& own_call);

 private:
  std::string exchange_calls(const std::string& own_call);

  const int rank_, size_;
  const std::weak_ptr<Communicator> communicator_;
  const c10::intrusive_ptr<c10d::Store> store_;
  CallbackThreads callbacks_;
  MessageWaits messages_;
  std::atomic<int64_t> in_flight_ = 0;
  std::mutex flush_mutex_;
  std::condition_variable none_in_flight_;
  std::mutex mutex_;  // guards the following member
  std::optional<std::string> calls_;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_GROUP_CONTEXT_H_
