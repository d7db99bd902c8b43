// The threads that run the callbacks of futures.
#ifndef NETSUM_TORCH_SRC_CALLBACK_THREADS_H_
#define NETSUM_TORCH_SRC_CALLBACK_THREADS_H_

#include <chrono>
#include <functional>
#include <memory>

namespace netsum::torch_backend {

// Callbacks run one after the other, in the order in which their futures were completed, so that collectives which they call
// have the same order on all ranks. Usually that takes one thread, and a second one that sleeps. A callback that has not
// returned within kPatience perhaps waits for what a later one does; another thread then goes on with the later ones.
class CallbackThreads {
 public:
  static constexpr std::chrono::milliseconds kPatience{200};
  // Further callbacks wait until one of so many has returned.
  static constexpr int kMost = 64;

  CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  // Never blocks. After stop(), and where no thread can be had, runs them here.
  void push(std::function<void()> callbacks);
  // Ends the threads when they have run all callbacks. After `deadline` it returns anyway, and the threads end when their
  // callbacks return. It may be called in a callback. The caller must not hold Python's lock.
  void stop(std::chrono::milliseconds deadline);

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with the threads, which may outlive this object
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_CALLBACK_THREADS_H_
