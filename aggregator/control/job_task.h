// What the table of jobs leaves to be done without its lock, and looks at the dataplane, which are taken without it, too.
#ifndef NETSUM_AGGREGATOR_CONTROL_JOB_TASK_H_
#define NETSUM_AGGREGATOR_CONTROL_JOB_TASK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "aggregator/control/job_plans.h"
#include "aggregator/dataplane/dataplane.h"

namespace netsum {

struct JobTask {
  enum class Kind { kPlan, kInstall, kRemove };
  Kind kind = Kind::kPlan;
  uint64_t number = 0;  // of the job in the table, and of its attempt to start
  uint64_t attempt = 0;
  PlanInput input;     // kPlan
  DataplaneJob job;    // kInstall; kRemove: index, epoch and first slot
  uint32_t slots = 0;  // kRemove: reserved
  std::optional<Result<plan::JobPlan>> plan;
  Status installed;

  // May take seconds, and as long as the dataplane does.
  void run(Dataplane* dataplane) {
    if (kind == Kind::kPlan) plan = plan_of(input);
    if (kind == Kind::kInstall) installed = dataplane->install(job);
    if (kind == Kind::kRemove) dataplane->remove(job.job, job.epoch);
  }
};

using JobKey = std::pair<uint16_t, uint16_t>;  // index and epoch
struct JobLook {
  JobProgress progress;
  std::vector<int64_t> heard_us;  // Dataplane::heard()
};
using JobLooks = std::map<JobKey, JobLook>;

inline JobLooks look_at_progress(const Dataplane& dataplane, const std::vector<JobKey>& jobs) {
  JobLooks looks;
  for (const JobKey& job : jobs) looks[job].progress = dataplane.progress(job.first, job.second);
  return looks;
}

// The progress shows that members live only where the dataplane does not tell from whom it has heard.
inline JobLooks look_for_members(const Dataplane& dataplane, const std::vector<JobKey>& jobs) {
  JobLooks looks;
  for (const JobKey& job : jobs) {
    JobLook& look = looks[job];
    look.heard_us = dataplane.heard(job.first, job.second);
    if (look.heard_us.empty()) look.progress = dataplane.progress(job.first, job.second);
  }
  return looks;
}

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_JOB_TASK_H_
