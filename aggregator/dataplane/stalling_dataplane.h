// A dataplane that does not answer while a test wants it so, as a switch that has been stopped.
#ifndef NETSUM_AGGREGATOR_DATAPLANE_STALLING_DATAPLANE_H_
#define NETSUM_AGGREGATOR_DATAPLANE_STALLING_DATAPLANE_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <vector>

#include "aggregator/dataplane/dataplane.h"

namespace netsum {

// Stops whoever passes while it is closed, until it is opened.
class Gate {
 public:
  ~Gate() { open(); }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    if (!closed_) return;
    ++stopped_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !closed_; });
  }
  // Waits until somebody has been stopped.
  bool has_stopped_somebody() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return stopped_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int stopped_ = 0;
};

class StallingDataplane final : public Dataplane {
 public:
  // `dataplane` outlives this object.
  explicit StallingDataplane(Dataplane* dataplane) : dataplane_(dataplane) {}

  std::string_view kind() const override { return dataplane_->kind(); }
  DataplaneLimits limits() const override { return dataplane_->limits(); }
  std::vector<Address> endpoints() const override { return dataplane_->endpoints(); }
  uint32_t free_slots() const override {
    looks.pass();
    return dataplane_->free_slots();
  }
  Status install(const DataplaneJob& job) override {
    installs.pass();
    return dataplane_->install(job);
  }
  void remove(uint16_t job, uint16_t epoch) override {
    removals.pass();
    dataplane_->remove(job, epoch);
  }
  std::vector<AggregatorCounter> counters() const override {
    looks.pass();
    return dataplane_->counters();
  }
  JobProgress progress(uint16_t job, uint16_t epoch) const override {
    looks.pass();
    return dataplane_->progress(job, epoch);
  }
  std::vector<int64_t> heard(uint16_t job, uint16_t epoch) const override {
    looks.pass();
    return dataplane_->heard(job, epoch);
  }

  Gate installs, removals;
  mutable Gate looks;

 private:
  Dataplane* const dataplane_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_DATAPLANE_STALLING_DATAPLANE_H_
