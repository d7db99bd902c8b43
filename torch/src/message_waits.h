// Waits for sends and receives, which Gloo cannot interrupt.
#ifndef NETSUM_TORCH_SRC_MESSAGE_WAITS_H_
#define NETSUM_TORCH_SRC_MESSAGE_WAITS_H_

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "torch/src/interruption.h"

namespace netsum::torch_backend {

// Gloo completes a send or a receive in the thread that waits for it. So that signals interrupt Python's main thread, another
// thread waits in its place. That thread is started by the first wait, and ends with this object.
class MessageWaits {
 public:
  MessageWaits();
  ~MessageWaits();
  MessageWaits(const MessageWaits&) = delete;
  MessageWaits& operator=(const MessageWaits&) = delete;

  // As work->wait(timeout). If a signal handler throws, the work is aborted.
  bool wait(const c10::intrusive_ptr<c10d::Work>& work, std::chrono::milliseconds timeout,
            const OnInterrupt& on_interrupt);

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_MESSAGE_WAITS_H_
