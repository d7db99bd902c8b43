// The exchange of a group that has not joined its job yet (netsum/late_join.h): all-gathers of Gloo.
#ifndef NETSUM_TORCH_SRC_HOST_EXCHANGE_H_
#define NETSUM_TORCH_SRC_HOST_EXCHANGE_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "netsum/late_join.h"

namespace netsum::torch_backend {

// Gloo finds lost connections, but no rank that has stopped, and does not tell others of an abort. So while exchanges of any group
// are in progress, a thread of the process looks for both; seconds later it ends. Any thread may call the methods.
class HostExchange : public std::enable_shared_from_this<HostExchange> {
 public:
  // How long a stopped rank or an abort may go unnoticed.
  static constexpr std::chrono::milliseconds kWatchPeriod{500};

  // `lost`: the loss of a rank of this group that another group has found, or ok.
  // `gloo` outlives the communicator, and so all exchanges that begin.
  HostExchange(c10d::Backend* gloo, c10::intrusive_ptr<c10d::Store> store, int size,
               std::function<Status()> lost)
      : gloo_(gloo), store_(std::move(store)), size_(size), lost_(std::move(lost)) {}

  LateJoin late_join();
  // Ends the exchanges in progress with an error, if there is one. Returns whether they go on.
  bool watch();

 private:
  struct Pending;
  using PendingPtr = std::shared_ptr<Pending>;

  void exchange(std::span<const std::byte> own, std::chrono::milliseconds timeout, Exchanged done);
  void end(const PendingPtr& pending, const Status& status);
  void abort(const std::string& reason);
  Status aborted() const;

  // Neither a strong nor a weak reference of c10: an exchange may end on a thread of Gloo, which must not destroy it.
  c10d::Backend* const gloo_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const int size_;
  const std::function<Status()> lost_;
  std::mutex mutex_;
  std::set<PendingPtr> pending_;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_HOST_EXCHANGE_H_
