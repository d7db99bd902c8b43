// For tests of the engine: a core that the test controls.
#ifndef NETSUM_ENGINE_SCRIPTED_CORE_TESTING_H_
#define NETSUM_ENGINE_SCRIPTED_CORE_TESTING_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine_core.h"

namespace netsum {

inline constexpr std::chrono::seconds kPatience{60};  // only a hang makes it this long

// What the test says has arrived, and what the engine has done about it. One lock guards all of it.
struct Script {
  std::mutex mutex;
  std::condition_variable changed;
  int arrivals = 0;                              // bursts that poll() has not yet taken in
  bool never_empty = false;                      // there is always one more
  std::deque<std::pair<uint64_t, Status>> ends;  // operations to complete with the next burst
  Status own_failure;                            // with the next burst
  std::deque<uint64_t> submitted;
  std::vector<uint32_t> tags;     // of all that were given to the core
  OperationSpec latest_spec;      // of the latest of them
  std::deque<std::string> calls;  // of fail(), and of on_failed
  int handled = 0;
  int idle_waits = 0;                       // waits without a time to wait
  std::thread::id submitter, driver;        // who has called submit() and advance() last
  bool echoes = false;                      // every operation ends with the next burst, which comes at once
  std::chrono::microseconds submission{0};  // that submit() takes
  bool progresses = false;                  // whenever it is asked
  uint64_t progress = 0;
  bool has_no_part = false;  // every operation ends when it is submitted
  int wakes = 0;
  std::function<void()> asked_if_idle;  // called by idle(), without the lock

  void change(const std::function<void()>& how) {
    const std::lock_guard lock(mutex);
    how();
    changed.notify_all();
  }
  bool comes_true(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, condition);
  }
};

class ScriptedCore final : public EngineCore {
 public:
  explicit ScriptedCore(Script* script) : script_(script) {}

  void submit(uint64_t id, OperationSpec&& spec) override {
    if (!status_.ok()) return completions_.push_back({id, status_, id, {}});
    if (ends_at_once(spec)) return completions_.push_back({id, Status(), id, {}, id});
    deadlines_.emplace_back(id, spec.deadline_us);
    const std::lock_guard lock(script_->mutex);
    if (script_->submission.count() > 0) std::this_thread::sleep_for(script_->submission);
    script_->submitted.push_back(id);
    script_->tags.push_back(spec.role.tag);
    script_->submitter = std::this_thread::get_id();
    if (script_->echoes) {
      script_->ends.emplace_back(id, Status());
      ++script_->arrivals;
    }
    script_->latest_spec = std::move(spec);
    script_->changed.notify_all();
  }
  void poll() override {
    const std::lock_guard lock(script_->mutex);
    arrived_ = script_->arrivals > 0 || script_->never_empty;
    if (script_->arrivals > 0) --script_->arrivals;
  }
  bool advance(int64_t) override {
    if (!std::exchange(arrived_, false)) return false;
    const std::lock_guard lock(script_->mutex);
    ++script_->handled;
    script_->driver = std::this_thread::get_id();
    for (const auto& [id, status] : script_->ends) end(id, status);
    script_->ends.clear();
    if (!script_->own_failure.ok()) fail_locked(script_->own_failure);
    script_->changed.notify_all();
    return true;
  }
  bool send(int64_t) override { return false; }
  void wait(int64_t timeout_us) override {
    std::unique_lock lock(script_->mutex);
    if (timeout_us <= 0) ++script_->idle_waits;
    script_->changed.wait_for(lock, std::min<std::chrono::microseconds>(std::chrono::microseconds(timeout_us),
                                                                        std::chrono::milliseconds(1)));
  }
  void wake() override {
    script_->change([this] { ++script_->wakes; });
  }
  void on_tick(int64_t) override {
    const std::lock_guard lock(script_->mutex);
    fail_locked(Status(ErrorCode::kTimeout, "by the core"));
  }
  int64_t next_tick_us() const override {
    int64_t next = INT64_MAX;
    if (status_.ok())
      for (const auto& [id, deadline] : deadlines_) next = std::min(next, deadline);
    return next;
  }
  bool connected() const override { return true; }
  std::string not_connected_reason() const override { return ""; }
  void take_completions(std::vector<Completion>* out) override {
    out->insert(out->end(), completions_.begin(), completions_.end());
    completions_.clear();
  }
  void fail(const Status& status) override {
    const std::lock_guard lock(script_->mutex);
    script_->calls.push_back("fail: " + status.message());
    fail_locked(status);
  }
  const Status& status() const override { return status_; }
  uint64_t progress() const override {
    const std::lock_guard lock(script_->mutex);
    return script_->progresses ? ++script_->progress : script_->progress;
  }
  bool idle() const override {
    std::function<void()> hook;
    script_->change([&] { hook = script_->asked_if_idle; });
    if (hook) hook();
    return deadlines_.empty();
  }

 private:
  bool ends_at_once(const OperationSpec& spec) {
    const std::lock_guard lock(script_->mutex);
    if (!script_->has_no_part) return false;
    script_->tags.push_back(spec.role.tag);
    script_->changed.notify_all();
    return true;
  }
  void end(uint64_t id, const Status& status) {
    std::erase_if(deadlines_, [id](const auto& operation) { return operation.first == id; });
    completions_.push_back({id, status, id, {}});
  }
  // As the real cores: the operations stay.
  void fail_locked(const Status& status) {
    if (!status_.ok()) return;
    status_ = status;
    for (const auto& [id, deadline] : deadlines_) completions_.push_back({id, status, id, {}});
  }

  Script* const script_;
  bool arrived_ = false;
  std::vector<std::pair<uint64_t, int64_t>> deadlines_;
  std::vector<Completion> completions_;
  Status status_;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_SCRIPTED_CORE_TESTING_H_
