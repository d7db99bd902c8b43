// How many calls may be in progress that are no memberships: those whose request has not come, or whose reply is not read.
// Strangers can start them before any token is verified, and each takes some 20 KB.
#ifndef NETSUM_AGGREGATOR_CONTROL_CALL_LIMITS_H_
#define NETSUM_AGGREGATOR_CONTROL_CALL_LIMITS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace netsum {

// Shared with its tickets. Thread rule: any thread may call any method.
class CallLimits : public std::enable_shared_from_this<CallLimits> {
 public:
  static constexpr size_t kMost = 4096;
  static constexpr size_t kMostOfOnePeer = 1024;

  // The right to one call, which its destructor returns.
  class Ticket {
   public:
    Ticket(std::shared_ptr<CallLimits> limits, std::string peer)
        : limits_(std::move(limits)), peer_(std::move(peer)) {}
    ~Ticket() { limits_->give_back(peer_); }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    const std::shared_ptr<CallLimits> limits_;
    const std::string peer_;
  };

  // Null: too many are in progress, of this peer or of all.
  std::unique_ptr<Ticket> take(const std::string& peer) {
    const std::lock_guard lock(mutex_);
    size_t& of_peer = of_peer_[peer];
    if (of_peer >= kMostOfOnePeer || all_ >= kMost) {
      if (of_peer == 0) of_peer_.erase(peer);
      return nullptr;
    }
    ++of_peer;
    ++all_;
    return std::make_unique<Ticket>(shared_from_this(), peer);
  }

 private:
  void give_back(const std::string& peer) {
    const std::lock_guard lock(mutex_);
    const auto found = of_peer_.find(peer);
    if (--found->second == 0) of_peer_.erase(found);
    --all_;
  }

  std::mutex mutex_;
  std::map<std::string, size_t> of_peer_;
  size_t all_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_CALL_LIMITS_H_
