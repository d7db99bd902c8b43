// Ends works away from the engine thread.
#ifndef NETSUM_TORCH_SRC_COMPLETION_THREAD_H_
#define NETSUM_TORCH_SRC_COMPLETION_THREAD_H_

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <thread>

#include "torch/src/work.h"

namespace netsum::torch_backend {

// Callbacks of a future may run Python, and dropping the last reference to a tensor may take Python's lock:
// neither may hold up the engine, which has packets of other operations to answer.
class CompletionThread {
 public:
  CompletionThread();
  // As stop(), with a deadline of a few seconds.
  ~CompletionThread();
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  // Where the engine's callbacks put ended works; it may outlive the thread.
  class Inbox;
  std::shared_ptr<Inbox> inbox() const { return inbox_; }

  // Ends what is in the inbox, then the thread. If a user's callback does not come back within `deadline`,
  // the thread is left alone with it. The caller must not hold Python's lock, which those callbacks may need.
  void stop(std::chrono::milliseconds deadline);

 private:
  std::shared_ptr<Inbox> inbox_;
  std::thread thread_;
};

class CompletionThread::Inbox {
 public:
  virtual ~Inbox() = default;
  virtual void push(c10::intrusive_ptr<AllReduceWork> work) = 0;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_COMPLETION_THREAD_H_
