#include "api/exit_flush.h"

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "src/base/forked_children.h"

namespace netsum::exit_flush {
namespace {

// Of one process.
struct Registry {
  const pid_t process = forked_children::process_id();
  std::mutex mutex;
  std::vector<CommunicatorBase*> communicators;
};

// Never freed: destructors of static objects may still close communicators. A child does not touch its parent's, whose mutex
// another thread may have held.
std::atomic<Registry*> registry{nullptr};

void flush() {
  Registry* const mine = registry;
  if (mine == nullptr || mine->process != forked_children::process_id()) return;
  using std::chrono::seconds;
  const auto begun = std::chrono::steady_clock::now();
  const std::lock_guard lock(mine->mutex);
  for (CommunicatorBase* const communicator : mine->communicators) communicator->flush(begun + seconds(1));
  for (CommunicatorBase* const communicator : mine->communicators) communicator->linger(begun + seconds(3));
}

Registry& registry_here() {
  static std::mutex creating;
  Registry* mine = registry;
  if (mine != nullptr && mine->process == forked_children::process_id()) return *mine;
  const std::lock_guard lock(creating);
  mine = registry;
  if (mine != nullptr && mine->process == forked_children::process_id()) return *mine;
  if (mine == nullptr) std::atexit(flush);  // children inherit it
  registry = new Registry;
  return *registry;
}

}  // namespace

void add(CommunicatorBase* communicator) {
  Registry& mine = registry_here();
  const std::lock_guard lock(mine.mutex);
  mine.communicators.push_back(communicator);
}

void remove(CommunicatorBase* communicator) {
  Registry& mine = registry_here();
  const std::lock_guard lock(mine.mutex);
  std::erase(mine.communicators, communicator);
}

}  // namespace netsum::exit_flush
