#include "torch/src/message_waits.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

namespace netsum::torch_backend {

class MessageWaits::State : public std::enable_shared_from_this<State> {
 public:
  using Task = std::packaged_task<bool()>;

  std::future<bool> push(Task task) {
    auto result = task.get_future();
    const std::lock_guard lock(mutex_);
    if (!std::exchange(started_, true)) std::thread([state = shared_from_this()] { state->run(); }).detach();
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return result;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = Task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool started_ = false;
  bool closed_ = false;
};

MessageWaits::MessageWaits() : state_(std::make_shared<State>()) {}

MessageWaits::~MessageWaits() {
  state_->close();
}

bool MessageWaits::wait(const c10::intrusive_ptr<c10d::Work>& work, std::chrono::milliseconds timeout,
                        const OnInterrupt& on_interrupt) {
  auto result = state_->push(State::Task([work, timeout] { return work->wait(timeout); }));
  try {
    // Ends: Gloo has a deadline of its own.
    while (!wait_until(wait_deadline(kNoTimeout), on_interrupt, [&result](std::chrono::milliseconds slice) {
      return result.wait_for(slice) == std::future_status::ready;
    })) {
    }
  } catch (...) {
    work->abort();
    throw;
  }
  return result.get();
}

}  // namespace netsum::torch_backend
