#include "torch/src/callback_threads.h"

#include <c10/util/Exception.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace netsum::torch_backend {

class CallbackThreads::State : public std::enable_shared_from_this<State> {
 public:
  void push(std::function<void()> callbacks) {
    {
      const std::lock_guard lock(mutex_);
      if (!closed_ && (threads_ > 0 || start_thread())) {
        queue_.push_back(std::move(callbacks));
        stand_by();
        changed_.notify_all();
        return;
      }
    }
    callbacks();
  }

  void stop(std::chrono::milliseconds deadline) {
    std::unique_lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    const int own = running_of_ == this ? 1 : 0;
    changed_.wait_for(lock, deadline, [&] { return threads_ == own; });
  }

 private:
  using Clock = std::chrono::steady_clock;

  // The following need the lock.

  bool start_thread() {
    try {
      std::thread([state = shared_from_this()] { state->run(); }).detach();
    } catch (const std::system_error&) {
      return false;
    }
    ++threads_;
    return true;
  }

  // While callbacks run and others wait, a thread sleeps that goes on if they block.
  void stand_by() {
    if (!queue_.empty() && threads_ == running_ && threads_ < kMost) start_thread();
  }

  void run() {
    running_of_ = this;
    std::unique_lock lock(mutex_);
    while (true) {
      if (queue_.empty()) {
        // Two threads stay for the next callbacks.
        if (closed_ || sleeping_ > 1) break;
        sleep([&] { changed_.wait(lock); });
      } else if (turn_ != 0 && Clock::now() < turn_ends_) {
        if (sleeping_ > 1) break;
        sleep([&] { changed_.wait_until(lock, turn_ends_); });
      } else {
        take_turn(lock);
      }
    }
    --threads_;
    changed_.notify_all();
  }

  template <typename Wait>
  void sleep(const Wait& wait) {
    ++sleeping_;
    wait();
    --sleeping_;
  }

  void take_turn(std::unique_lock<std::mutex>& lock) {
    auto callbacks = std::move(queue_.front());
    queue_.pop_front();
    const uint64_t turn = turn_ = ++turns_;
    turn_ends_ = Clock::now() + kPatience;
    ++running_;
    stand_by();
    const bool warn = running_ == kMost && !std::exchange(warned_, true);
    lock.unlock();
    if (warn)
      TORCH_WARN("netsum: ", kMost, " callbacks of futures wait at the same time; others wait for their end");
    callbacks();
    callbacks = nullptr;
    lock.lock();
    --running_;
    if (turn_ != turn) return;
    turn_ = 0;
    changed_.notify_all();
  }

  static thread_local const State* running_of_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t turns_ = 0;
  uint64_t turn_ = 0;  // of the callbacks that run; 0: none do, or another thread has gone on
  Clock::time_point turn_ends_;
  int threads_ = 0;
  int running_ = 0;  // of them, those in callbacks
  int sleeping_ = 0;
  bool closed_ = false;
  bool warned_ = false;
};

thread_local const CallbackThreads::State* CallbackThreads::State::running_of_ = nullptr;

CallbackThreads::CallbackThreads() : state_(std::make_shared<State>()) {}

void CallbackThreads::push(std::function<void()> callbacks) {
  if (callbacks) state_->push(std::move(callbacks));
}

void CallbackThreads::stop(std::chrono::milliseconds deadline) {
  state_->stop(deadline);
}

}  // namespace netsum::torch_backend
