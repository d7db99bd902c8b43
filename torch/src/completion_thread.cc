#include "torch/src/completion_thread.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace netsum::torch_backend {
namespace {

constexpr std::chrono::milliseconds kStopDeadline{5'000};

class Queue : public CompletionThread::Inbox {
 public:
  void push(std::function<void()> end_work) override {
    {
      std::lock_guard lock(mutex_);
      if (!closed_) {
        works_.push_back(std::move(end_work));
        changed_.notify_all();
        return;
      }
    }
    end_work();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closed_ || !works_.empty(); });
      if (works_.empty()) break;
      auto end_work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      end_work();
      end_work = nullptr;
      lock.lock();
    }
    ended_ = true;
    changed_.notify_all();
  }

  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  bool wait_until_ended(std::chrono::milliseconds deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, deadline, [this] { return ended_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;
  bool closed_ = false;
  bool ended_ = false;
};

}  // namespace

CompletionThread::CompletionThread() {
  auto queue = std::make_shared<Queue>();
  inbox_ = queue;
  // The thread shares ownership of the queue, because stop() detaches it at its deadline.
  thread_ = std::thread([queue] { queue->run(); });
}

CompletionThread::~CompletionThread() {
  stop(kStopDeadline);
}

void CompletionThread::stop(std::chrono::milliseconds deadline) {
  if (!thread_.joinable()) return;
  auto& queue = static_cast<Queue&>(*inbox_);
  queue.close();
  // A work may hold the last reference to the process group, so this may run on the thread itself.
  const bool from_itself = std::this_thread::get_id() == thread_.get_id();
  if (!from_itself && queue.wait_until_ended(deadline)) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace netsum::torch_backend
