// The shared part of a Work handle.
#ifndef NETSUM_COLLECTIVE_WORK_STATE_H_
#define NETSUM_COLLECTIVE_WORK_STATE_H_

#include <condition_variable>
#include <functional>
#include <mutex>

#include "netsum/communicator.h"
#include "src/worker/chunk_map.h"

namespace netsum {

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Status status;
  std::function<void(const Status&)> callback;

  void finish(const Status& result);
};

// Called with the status of an operation, on the engine's thread, after the engine's last access to the tensors and before
// the Work counts as done. `chunk_map` says which stripes summed which chunks; null if the operation failed, or was not
// summed over the network. Must not block.
using OnEnd = std::function<void(const Status& status, const std::shared_ptr<const ChunkMap>& chunk_map)>;

// An operation that ended before it was started.
Work ended_work(const Status& status);

}  // namespace netsum

#endif  // NETSUM_COLLECTIVE_WORK_STATE_H_
