// A dataplane that only keeps books, for the tests of the control plane.
#ifndef NETSUM_AGGREGATOR_DATAPLANE_FAKE_DATAPLANE_H_
#define NETSUM_AGGREGATOR_DATAPLANE_FAKE_DATAPLANE_H_

#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "aggregator/dataplane/slot_ranges.h"

namespace netsum {

class FakeDataplane final : public Dataplane {
 public:
  explicit FakeDataplane(DataplaneLimits limits = {2, 8, 1024, standard_capabilities(1440)})
      : limits_(limits), ranges_(limits.slots_per_stripe) {
    for (int i = 0; i < limits.stripes; ++i)
      endpoints_.push_back(*Address::parse("10.0.0.9:700" + std::to_string(i)));
  }

  std::string_view kind() const override { return "fake"; }
  DataplaneLimits limits() const override { return limits_; }
  std::vector<Address> endpoints() const override { return endpoints_; }
  uint32_t free_slots() const override {
    const std::lock_guard lock(mutex_);
    return ranges_.free();
  }
  Status install(const DataplaneJob& job) override {
    const std::lock_guard lock(mutex_);
    if (!install_error_.ok()) return install_error_;
    const uint32_t slots = job.data_slots + job.scale_slots;
    const Result<uint32_t> first = ranges_.take(slots, job.first_slot);
    if (!first.ok()) return first.status();
    held_[{job.job, job.epoch}] = {*first, slots};
    installed_.push_back(job);
    return {};
  }
  void remove(uint16_t job, uint16_t epoch) override {
    const std::lock_guard lock(mutex_);
    removed_.emplace_back(job, epoch);
    const auto held = held_.find({job, epoch});
    if (held == held_.end()) return;
    ranges_.give_back(held->second.first, held->second.second);
    held_.erase(held);
  }
  std::vector<AggregatorCounter> counters() const override { return {{"packets_received", 42}}; }

  JobProgress progress(uint16_t, uint16_t) const override {
    const std::lock_guard lock(mutex_);
    return progress_;
  }

  std::vector<int64_t> heard(uint16_t, uint16_t) const override {
    const std::lock_guard lock(mutex_);
    return heard_us_;
  }

  void set_heard(std::vector<int64_t> heard_us) {
    const std::lock_guard lock(mutex_);
    heard_us_ = std::move(heard_us);
  }
  void set_progress(const JobProgress& progress) {
    const std::lock_guard lock(mutex_);
    progress_ = progress;
  }
  void set_endpoints(std::vector<Address> endpoints) { endpoints_ = std::move(endpoints); }
  void set_install_error(Status error) { install_error_ = std::move(error); }
  std::vector<DataplaneJob> installed() const {
    const std::lock_guard lock(mutex_);
    return installed_;
  }
  std::vector<std::pair<uint16_t, uint16_t>> removed() const {
    const std::lock_guard lock(mutex_);
    return removed_;
  }

 private:
  const DataplaneLimits limits_;
  SlotRanges ranges_;
  std::map<std::pair<uint16_t, uint16_t>, std::pair<uint32_t, uint32_t>> held_;  // first slot and count
  std::vector<Address> endpoints_;  // set before the service starts, like the error
  Status install_error_;
  mutable std::mutex mutex_;
  JobProgress progress_;
  std::vector<int64_t> heard_us_;
  std::vector<DataplaneJob> installed_;
  std::vector<std::pair<uint16_t, uint16_t>> removed_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_DATAPLANE_FAKE_DATAPLANE_H_
