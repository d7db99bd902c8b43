// The dataplane of a control service that only brings members together, each of which brings a shard of its own: it sums
// nothing. Every member installs the job in its own shard.
#ifndef NETSUM_AGGREGATOR_DATAPLANE_MEMBER_SHARDS_H_
#define NETSUM_AGGREGATOR_DATAPLANE_MEMBER_SHARDS_H_

#include <atomic>
#include <limits>
#include <string_view>
#include <vector>

#include "aggregator/dataplane/dataplane.h"

namespace netsum {

class MemberShards final : public Dataplane {
 public:
  // The shard in the process of the service. Contributions that it receives count as heartbeats. It outlives this
  // object.
  void set_own(const Dataplane* own) { own_ = own; }

  std::string_view kind() const override { return "embedded"; }
  DataplaneLimits limits() const override {
    return {.stripes = 0,
            .max_jobs = std::numeric_limits<uint16_t>::max(),
            .capabilities = standard_capabilities(NETSUM_MAX_PAYLOAD),
            .members_bring_shards = true};
  }
  std::vector<Address> endpoints() const override { return {}; }
  uint32_t free_slots() const override { return 0; }
  Status install(const DataplaneJob&) override { return {}; }
  void remove(uint16_t, uint16_t) override {}
  std::vector<AggregatorCounter> counters() const override { return {}; }
  JobProgress progress(uint16_t, uint16_t) const override { return {}; }
  std::vector<int64_t> heard(uint16_t job, uint16_t epoch) const override {
    const Dataplane* own = own_;
    return own != nullptr ? own->heard(job, epoch) : std::vector<int64_t>();
  }

 private:
  std::atomic<const Dataplane*> own_{nullptr};
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_DATAPLANE_MEMBER_SHARDS_H_
