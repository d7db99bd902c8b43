// Completes works on a thread other than the engine's.
#ifndef NETSUM_TORCH_SRC_COMPLETION_THREAD_H_
#define NETSUM_TORCH_SRC_COMPLETION_THREAD_H_

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace netsum::torch_backend {

// Copying results takes time, and releasing the last reference to a tensor may take Python's lock. Neither may delay the
// engine, which handles the packets of other operations. The callbacks of futures run elsewhere (callback_threads.h), so this
// thread never waits for another work of the group.
class CompletionThread {
 public:
  CompletionThread();
  // As stop(), with a deadline of a few seconds.
  ~CompletionThread();
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  // The queue to which the engine's callbacks add ended works. It may outlive the thread.
  class Inbox;
  std::shared_ptr<Inbox> inbox() const { return inbox_; }

  // Completes the works in the inbox, then ends the thread. If that takes longer than `deadline`, the thread is detached. The
  // caller must not hold Python's lock, which the thread may need.
  void stop(std::chrono::milliseconds deadline);

 private:
  std::shared_ptr<Inbox> inbox_;
  std::thread thread_;
};

class CompletionThread::Inbox {
 public:
  virtual ~Inbox() = default;
  virtual void push(std::function<void()> end_work) = 0;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_COMPLETION_THREAD_H_
