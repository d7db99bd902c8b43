// A dataplane whose jobs, with their keys, are known to the test: what a lying aggregator knows.
#ifndef NETSUM_TESTS_ATTACK_KNOWN_JOBS_H_
#define NETSUM_TESTS_ATTACK_KNOWN_JOBS_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "aggregator/dataplane/dataplane.h"

namespace netsum::attack {

class KnownJobs final : public Dataplane {
 public:
  explicit KnownJobs(std::unique_ptr<Dataplane> dataplane) : dataplane_(std::move(dataplane)) {}

  struct Job {
    size_t number = 0;  // in the order of their installation
    DataplaneJob job;
    // Whether a packet to or from `aggregator` is of the job: this one, or its parent.
    bool has(const Address& endpoint, const Address& aggregator, uint16_t index, uint16_t epoch) const {
      if (aggregator == endpoint) return index == job.job && epoch == job.epoch;
      return job.parent && aggregator == job.parent->stripes.front() && index == job.parent->job &&
             epoch == job.parent->epoch;
    }
  };
  // Any job that there has been, as the aggregator knows it that its packet names.
  std::optional<Job> find(const Address& aggregator, uint16_t index, uint16_t epoch) const {
    const Address endpoint = dataplane_->endpoints().front();
    const std::lock_guard lock(mutex_);
    for (const Job& job : jobs_)
      if (job.has(endpoint, aggregator, index, epoch)) return job;
    return std::nullopt;
  }

  Status install(const DataplaneJob& job) override {
    Status status = dataplane_->install(job);
    const std::lock_guard lock(mutex_);
    if (status.ok()) jobs_.push_back({jobs_.size(), job});
    return status;
  }
  std::string_view kind() const override { return dataplane_->kind(); }
  DataplaneLimits limits() const override { return dataplane_->limits(); }
  std::vector<Address> endpoints() const override { return dataplane_->endpoints(); }
  uint32_t free_slots() const override { return dataplane_->free_slots(); }
  void remove(uint16_t job, uint16_t epoch) override { dataplane_->remove(job, epoch); }
  std::vector<AggregatorCounter> counters() const override { return dataplane_->counters(); }
  JobProgress progress(uint16_t job, uint16_t epoch) const override {
    return dataplane_->progress(job, epoch);
  }

 private:
  const std::unique_ptr<Dataplane> dataplane_;
  mutable std::mutex mutex_;
  std::vector<Job> jobs_;
};

}  // namespace netsum::attack

#endif  // NETSUM_TESTS_ATTACK_KNOWN_JOBS_H_
