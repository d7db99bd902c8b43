// What a running job's plan is made from, for those who ask.
#include <algorithm>

#include "aggregator/control/job_table.h"
#include "src/base/text.h"

namespace netsum {
namespace {

Status unplanned(const std::string& job, const std::string& why) {
  return {ErrorCode::kUnsupported, "job '" + printable(job) + "' " + why};
}

}  // namespace

Result<const JobTable::Job*> JobTable::running(const std::string& name) const {
  const Job* found = nullptr;
  std::string others;
  for (const auto& [number, job] : jobs_) {
    if (job.state != State::kRunning) continue;
    others += (others.empty() ? "" : ", ") + printable(job.spec.name());
    if (!name.empty() && job.spec.name() != name) continue;
    if (found != nullptr && name.empty())
      return Status(ErrorCode::kInvalidArgument, "several jobs are running (" + others + "): name one");
    found = &job;
  }
  if (found != nullptr) return found;
  return Status(ErrorCode::kInvalidArgument, (name.empty() ? "no job" : "no job '" + printable(name) + "'") +
                                                 " is running at this aggregator" +
                                                 (others.empty() ? "" : "; there are " + others));
}

Result<JobTable::TopologyInput> JobTable::topology_input(const std::string& name) const {
  const Result<const Job*> found = running(name);
  if (!found.ok()) return found.status();
  const Job& job = **found;
  if (!job.ranks(false).empty()) return unplanned(job.spec.name(), "is ending: ranks have left it");
  if (!is_planned(job))
    return unplanned(job.spec.name(),
                     "has no plan here: ask the aggregator that its ranks name first, or the one above it");
  return TopologyInput{job.spec.name(), job.plan, plan_input(job)};
}

Result<control::TopologyReply> JobTable::topology_reply(const TopologyInput& input) {
  const Result<plan::JobTopology> topology = topology_of(input.input);
  if (!topology.ok()) return topology.status();
  control::TopologyReply reply;
  reply.set_job(input.job);
  reply.set_shards(topology->shards);
  reply.set_plan(input.plan);
  for (const LinkRate& link : topology->links) *reply.add_links() = link;
  for (const PlaceInfo& place : topology->places) *reply.add_places() = place;
  return reply;
}

}  // namespace netsum
