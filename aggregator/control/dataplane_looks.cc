#include "aggregator/control/dataplane_looks.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "src/base/clock.h"

namespace netsum {
namespace {

constexpr int64_t kSharedUs = 100'000;
constexpr int64_t kPatienceUs = 500'000;

}  // namespace

DataplaneLooks::DataplaneLooks(const Dataplane* dataplane, std::function<std::vector<JobKey>()> running)
    : dataplane_(dataplane), running_(std::move(running)), last_(std::make_shared<const DataplaneLook>()) {}

DataplaneLooks::Look DataplaneLooks::look() const {
  DataplaneLook look;
  look.began_us = monotonic_us();
  look.jobs = look_at_progress(*dataplane_, running_());
  look.counters = dataplane_->counters();
  look.ports = dataplane_->ports();
  look.free_slots = dataplane_->free_slots();
  return std::make_shared<const DataplaneLook>(std::move(look));
}

void DataplaneLooks::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return halted_ || wanted_; });
    if (halted_) return;
    wanted_ = false;
    ++began_;
    began_us_ = monotonic_us();
    const auto waiting = std::exchange(waiting_, {});
    lock.unlock();
    const Look now = look();
    lock.lock();
    last_ = now;
    ended_ = began_;
    changed_.notify_all();
    lock.unlock();
    for (const auto& then : waiting) then(now);
    lock.lock();
  }
}

void DataplaneLooks::halt() {
  {
    const std::lock_guard lock(mutex_);
    halted_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool DataplaneLooks::want() {
  if (halted_) return false;
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
      return false;
    }
  }
  wanted_ = true;
  changed_.notify_all();
  return true;
}

void DataplaneLooks::recent(std::function<void(const Look&)> then) {
  Look known;
  {
    const std::lock_guard lock(mutex_);
    const int64_t now_us = monotonic_us();
    const bool is_recent = last_->began_us != 0 && now_us - last_->began_us <= kSharedUs;
    const bool is_stalled = began_ != ended_ && now_us - began_us_ > kPatienceUs;
    if (is_recent || is_stalled || !want()) {
      known = last_;
    } else {
      waiting_.push_back(std::move(then));
    }
  }
  if (known != nullptr) then(known);
}

DataplaneLooks::Look DataplaneLooks::fresh() {
  std::unique_lock lock(mutex_);
  const uint64_t next = began_ + 1;
  if (!want()) return last_;
  changed_.wait_for(lock, std::chrono::microseconds(kPatienceUs), [&] { return ended_ >= next || halted_; });
  return last_;
}

}  // namespace netsum
