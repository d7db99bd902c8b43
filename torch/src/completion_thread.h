// Completes works on a thread other than the engine's.
#ifndef NETSUM_TORCH_SRC_COMPLETION_THREAD_H_
#define NETSUM_TORCH_SRC_COMPLETION_THREAD_H_

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <thread>

#include "torch/src/work.h"

namespace netsum::torch_backend {

// The callbacks of a future may run Python code, and releasing the last reference to a tensor may take Python's lock.
// Neither may delay the engine, which handles the packets of other operations.
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

  // Completes the works in the inbox, then ends the thread. If a user's callback does not return within `deadline`, the
  // thread is detached. The caller must not hold Python's lock, because the callbacks may need it.
  void stop(std::chrono::milliseconds deadline);

 private:
  std::shared_ptr<Inbox> inbox_;
  std::thread thread_;
};

class CompletionThread::Inbox {
 public:
  virtual ~Inbox() = default;
  virtual void push(c10::intrusive_ptr<CollectiveWork> work) = 0;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_COMPLETION_THREAD_H_
