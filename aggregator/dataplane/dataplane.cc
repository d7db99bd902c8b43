#include "aggregator/dataplane/dataplane.h"

#include "wire/codec.h"

namespace netsum {

Address multicast_group_of(const Dataplane& dataplane, uint16_t job) {
  const std::optional<MulticastRange> groups = dataplane.limits().multicast_groups;
  if (!groups) return Address();
  Address group = groups->at(job);
  group.port = dataplane.endpoints().front().port;
  return group;
}

Capabilities processor_capabilities(uint32_t payload_bytes, bool multicast) {
  Capabilities capabilities = standard_capabilities(payload_bytes);
  capabilities.add_formats(NETSUM_FORMAT_SUM_I8);
  add_words(&capabilities);
  add_cookies(&capabilities);
  capabilities.set_empty_packets(true);
  capabilities.set_no_result(true);
  capabilities.set_multicast(multicast);
  return capabilities;
}

Capabilities user_space_capabilities(uint32_t payload_bytes, bool multicast) {
  Capabilities capabilities = processor_capabilities(payload_bytes, multicast);
  add_values(&capabilities);
  capabilities.set_adds_floats(true);
  return capabilities;
}

Status check_fits(const DataplaneJob& job, int max_jobs, uint32_t payload_bytes, size_t stripes) {
  const auto refuse = [&](const std::string& what) {
    return Status(ErrorCode::kInvalidArgument, "job " + std::to_string(job.job) + " ('" + job.spec.name() +
                                                   "') does not fit the dataplane: " + what);
  };
  if (job.job >= max_jobs) return refuse("it holds " + std::to_string(max_jobs) + " jobs");
  if (job.members < 1 || job.members > NETSUM_MAX_MEMBERS)
    return refuse("a job has 1 to " + std::to_string(NETSUM_MAX_MEMBERS) + " members, not " +
                  std::to_string(job.members));
  if (job.payload_bytes > payload_bytes)
    return refuse("its payload is at most " + std::to_string(payload_bytes) + " bytes, not " +
                  std::to_string(job.payload_bytes));
  if (job.data_slots + job.scale_slots == 0) return refuse("it asks for no slots");
  if (job.parent && job.parent->stripes.size() < stripes)
    return refuse("the parent has " + std::to_string(job.parent->stripes.size()) + " stripes, and " +
                  std::to_string(stripes) + " are needed");
  return {};
}

void append_drops(const std::function<uint64_t(int reason)>& count,
                  std::vector<AggregatorCounter>* counters) {
  for (int reason = 1; reason < NETSUM_DROP_COUNT; ++reason)
    counters->push_back({"drop_" + std::string(wire::drop_name(reason)), count(reason)});
}

}  // namespace netsum
