#include "src/base/stack_hint.h"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "src/base/forked_children.h"
#include "src/base/text.h"
#include "src/base/thread.h"

namespace netsum {
namespace {

constexpr std::chrono::seconds kEndPatience{1};

struct Hints {
  std::mutex mutex;
  std::condition_variable changed;
  // Shared, because the copy of a function of an interpreter waits for the interpreter's lock.
  std::shared_ptr<const std::function<std::string()>> hint;
  bool calling = false;
  pid_t caller = 0;  // a call does not go on in a forked child
  uint64_t calls = 0;
  std::string last;

  bool is_calling() const { return calling && caller == forked_children::process_id(); }
};

// Never destroyed: a thread may still call when the process ends.
Hints& hints() {
  static auto* const all = new Hints;
  return *all;
}

void call(const std::function<std::string()>& hint) {
  std::string text = printable(hint(), kMostHintBytes);
  Hints& all = hints();
  const std::lock_guard lock(all.mutex);
  all.last = std::move(text);
  all.calling = false;
  ++all.calls;
  all.changed.notify_all();
}

}  // namespace

void set_stack_hint(std::function<std::string()> hint) {
  auto next =
      hint == nullptr ? nullptr : std::make_shared<const std::function<std::string()>>(std::move(hint));
  Hints& all = hints();
  std::unique_lock lock(all.mutex);
  std::swap(all.hint, next);
  all.changed.wait_for(lock, kEndPatience, [&] { return !all.is_calling(); });
}

std::string stack_hint(std::chrono::milliseconds patience) {
  Hints& all = hints();
  std::unique_lock lock(all.mutex);
  if (all.hint == nullptr) return "";
  if (!all.is_calling()) {
    std::thread thread;
    if (!start_thread(
             "for the stack hint", [hint = all.hint] { call(*hint); }, &thread)
             .ok())
      return "";
    thread.detach();
    all.calling = true;
    all.caller = forked_children::process_id();
  }
  const uint64_t before = all.calls;
  const bool came = all.changed.wait_for(lock, patience, [&] { return all.calls != before; });
  return came ? all.last : "";
}

}  // namespace netsum
