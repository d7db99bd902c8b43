#include "torch/src/submissions.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace netsum::torch_backend {
namespace {

Status status_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return {ErrorCode::kAborted, of_torch != nullptr ? of_torch->what_without_backtrace() : error.what()};
}

}  // namespace

// What a call needs of its group.
struct Submissions::Group {
  std::atomic<bool> closed = false;
  std::mutex submitting;
  bool detached = false;  // guarded by submitting
};

class Submissions::Thread {
 public:
  // Never destroyed: after a fork, another thread would still wait in it.
  static Thread& of_process() {
    static std::mutex mutex;
    static Thread* thread = nullptr;
    static pid_t process = 0;
    const std::lock_guard lock(mutex);
    if (process != getpid()) thread = new Thread;
    process = getpid();
    return *thread;
  }

  void begin(const std::shared_ptr<Group>& group, Call call) {
    {
      const std::lock_guard lock(mutex_);
      if (!group->closed && (call.stage || !calls_.empty() || running_)) {
        calls_.emplace_back(group, std::move(call));
        if (!has_thread_) std::thread([this] { run(); }).detach();
        has_thread_ = true;
        changed_.notify_all();
        return;
      }
    }
    if (call.stage)
      call.refuse(kClosed);
    else
      call.submit();
  }

  void stop(const std::shared_ptr<Group>& group, std::chrono::milliseconds deadline) {
    std::deque<std::pair<std::shared_ptr<Group>, Call>> left;
    {
      std::unique_lock lock(mutex_);
      group->closed = true;
      std::erase_if(calls_, [&](auto& one) {
        if (one.first != group) return false;
        left.push_back(std::move(one));
        return true;
      });
      changed_.wait_for(lock, deadline, [&] { return running_ != group; });
    }
    for (const auto& [of, call] : left) call.refuse(kClosed);
    // What submits now may still use the group.
    const std::lock_guard none_submits(group->submitting);
    group->detached = true;
  }

 private:
  static constexpr std::chrono::seconds kIdle{2};
  inline static const Status kClosed{ErrorCode::kAborted,
                                     "the process group was shut down before the call began"};

  void run() {
    std::unique_lock lock(mutex_);
    while (changed_.wait_for(lock, kIdle, [this] { return !calls_.empty(); })) {
      auto [group, call] = std::move(calls_.front());
      calls_.pop_front();
      running_ = group;
      lock.unlock();
      carry_out(*group, call);
      call = {};  // without the lock: it may free tensors
      lock.lock();
      running_.reset();
      changed_.notify_all();
    }
    has_thread_ = false;
  }

  static void carry_out(Group& group, const Call& call) {
    const Abandoned abandoned = [&group] { return group.closed.load(); };
    Status status;
    Rest rest;
    try {
      if (call.stage) status = call.stage(abandoned);
    } catch (const std::exception& error) {
      status = status_of(error);
    }
    if (status.ok()) {
      const std::lock_guard submits(group.submitting);
      if (group.detached) {
        status = kClosed;
      } else {
        try {
          rest = call.submit();
        } catch (const std::exception& error) {
          status = status_of(error);
        }
      }
    }
    if (!status.ok()) call.refuse(status);
    if (rest) rest(abandoned);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::shared_ptr<Group>, Call>> calls_;
  std::shared_ptr<Group> running_;  // of the call that is being carried out
  bool has_thread_ = false;
};

Submissions::Submissions() : group_(std::make_shared<Group>()), thread_(Thread::of_process()) {}

void Submissions::begin(Call call) {
  thread_.begin(group_, std::move(call));
}

void Submissions::stop(std::chrono::milliseconds deadline) {
  thread_.stop(group_, deadline);
}

}  // namespace netsum::torch_backend
