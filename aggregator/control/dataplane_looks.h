// What the dataplane counts, read on a thread of its own, which starts when somebody asks, because a dataplane may take long to answer, or not answer: one
// look for all that ask within 100 ms.
#ifndef NETSUM_AGGREGATOR_CONTROL_DATAPLANE_LOOKS_H_
#define NETSUM_AGGREGATOR_CONTROL_DATAPLANE_LOOKS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "aggregator/control/job_task.h"
#include "aggregator/dataplane/dataplane.h"

namespace netsum {

struct DataplaneLook {
  int64_t began_us = 0;
  std::vector<AggregatorCounter> counters;
  std::vector<DataplanePort> ports;
  uint32_t free_slots = 0;
  JobLooks jobs;  // progress
};

// Thread rule: any thread may call any method.
class DataplaneLooks {
 public:
  using Look = std::shared_ptr<const DataplaneLook>;

  // `running`: the jobs to look at. `dataplane` outlives this object.
  DataplaneLooks(const Dataplane* dataplane, std::function<std::vector<JobKey>()> running);
  ~DataplaneLooks() { halt(); }

  // Waits for the look under way. Later ones are the last one.
  void halt();

  // Calls `then`, now or on that thread, with a look that is at most 100 ms old, or with the last one if the dataplane does
  // not answer.
  void recent(std::function<void(const Look&)> then);
  // A look that began after the call, or the last one if the dataplane does not answer for half a second.
  Look fresh();

 private:
  Look look() const;
  void run();
  // With the lock held. False: there is no thread to be had.
  bool want();

  const Dataplane* const dataplane_;
  const std::function<std::vector<JobKey>()> running_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool halted_ = false;
  bool wanted_ = false;
  uint64_t began_ = 0, ended_ = 0;  // looks
  int64_t began_us_ = 0;            // the last of them
  Look last_;
  std::vector<std::function<void(const Look&)>> waiting_;
  std::thread thread_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_DATAPLANE_LOOKS_H_
