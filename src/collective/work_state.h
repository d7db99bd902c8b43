// The shared part of a Work handle.
#ifndef NETSUM_SRC_COLLECTIVE_WORK_STATE_H_
#define NETSUM_SRC_COLLECTIVE_WORK_STATE_H_

#include <condition_variable>
#include <functional>
#include <mutex>

#include "netsum/communicator.h"

namespace netsum {

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Status status;
  std::function<void(const Status&)> callback;

  void finish(const Status& result);
};

// An operation that has ended before it began.
Work ended_work(const Status& status);

}  // namespace netsum

#endif  // NETSUM_SRC_COLLECTIVE_WORK_STATE_H_
