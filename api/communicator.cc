// Communicator::connect and join_late: checks of the options.
#include "netsum/communicator.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "api/exit_flush.h"
#include "api/invalid.h"
#include "api/job_communicator.h"
#include "api/late_communicator.h"
#include "netsum/settings.h"
#include "session/session_factory.h"
#include "src/base/timeout.h"
#include "src/kernels/kernels.h"
#include "src/plan/job_plan.h"

namespace netsum {
namespace {

// With a shorter timeout, a late timer would be a false alarm.
constexpr int64_t kLeastLivenessMs = 20;

Status check_failover(const CommunicatorOptions& options) {
  if (options.aggregators.empty()) {
    return invalid("on_failure is failover, but there is no aggregator to lose: set aggregators");
  }
  if (options.failover_timeout.count() <= 0) return invalid("failover_timeout must be above zero");
  const auto& fallbacks = options.fallback_aggregators;
  const bool to_hosts = std::find(fallbacks.begin(), fallbacks.end(), kHosts) != fallbacks.end();
  if (to_hosts && options.root.empty()) {
    return invalid(
        "fallback_aggregators names the hosts, and root is not set: rank 0's address is needed to bring the "
        "ranks' shards together");
  }
  if (to_hosts && options.world_size > kMaxMembers) {
    return invalid("fallback_aggregators names the hosts, which sum for at most " +
                   std::to_string(kMaxMembers) + " ranks; world_size is " +
                   std::to_string(options.world_size));
  }
  return Status();
}

Status check_options(const CommunicatorOptions& options) {
  const std::string world = std::to_string(options.world_size);
  if (options.world_size < 1 || options.world_size > kMaxRanks) {
    return invalid("world_size is " + world + "; a job has 1 to " + std::to_string(kMaxRanks) + " ranks");
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return invalid("rank is " + std::to_string(options.rank) + "; it must be 0 to world_size - 1 (" + world +
                   " ranks)");
  }
  for (const char* name : {"mtu", "slots", "engine_threads", "spin", "lane_bits"})
    if (Status status = check_value(name, options); !status.ok()) return status;
  if (options.phase_period.count() != 0 || options.phase_offset.count() != 0) {
    if (Status status = check_value("phase", options); !status.ok()) return status;
  }
  if (options.lane_bits == 8 && options.world_size > kernels::kMaxMembers8) {
    return invalid("lane_bits is 8 and world_size is " + world + "; 8 bits hold sums of at most " +
                   std::to_string(kernels::kMaxMembers8) + " ranks: set lane_bits to 0, 16 or 32");
  }
  if (options.lane_bits == 8 && options.verify != Verify::kPacket)
    return invalid(
        "lane_bits is 8 and verify is not kPacket; sums in 8 bits cannot be verified: set lane_bits to 0, 16 "
        "or "
        "32");
  if (options.lane_bits == 16 && options.world_size > kernels::kMaxMembers16) {
    return invalid("lane_bits is 16 and world_size is " + world + "; 16 bits hold sums of at most " +
                   std::to_string(kernels::kMaxMembers16) + " ranks: set lane_bits to 0 or 32");
  }
  if (options.timeout.count() <= 0 || options.connect_timeout.count() <= 0) {
    return invalid("timeout and connect_timeout must be above zero");
  }
  if (options.aggregators.empty() && options.root.empty()) {
    return invalid(
        "neither aggregators nor root is set: without an aggregator every rank embeds a shard of "
        "one, and rank 0's address (root, \"host:port\") is needed to bring them together");
  }
  if (options.when_full == WhenFull::kHosts && !options.aggregators.empty() &&
      (options.root.empty() || options.world_size > kMaxMembers)) {
    return invalid("when_full is kHosts: " +
                   (options.root.empty()
                        ? std::string("root must be set, for the ranks to meet without an aggregator")
                        : "embedded shards sum for at most " + std::to_string(kMaxMembers) +
                              " ranks; world_size is " + world));
  }
  if (options.liveness_timeout.count() != 0 && options.liveness_timeout.count() < kLeastLivenessMs) {
    return invalid("liveness_timeout is " + std::to_string(options.liveness_timeout.count()) +
                   " ms; it must be at least " + std::to_string(kLeastLivenessMs) + " ms, or 0 for never");
  }
  if (options.aggregators.empty() && options.world_size > kMaxMembers) {
    return invalid("world_size is " + world + "; embedded shards sum for at most " +
                   std::to_string(kMaxMembers) + " ranks: set aggregators");
  }
  if (Status status = plan::check_declared_rate(options.pace_bps, "pace_bps"); !status.ok()) return status;
  if (Status status = plan::check_declared_rate(options.link_rate_bps, "link_rate_bps"); !status.ok())
    return status;
  return options.on_failure == FailurePolicy::kFailover ? check_failover(options) : Status();
}

CommunicatorOptions with_bounded_timeouts(const CommunicatorOptions& options) {
  CommunicatorOptions usable = options;
  for (auto* timeout :
       {&usable.connect_timeout, &usable.timeout, &usable.liveness_timeout, &usable.failover_timeout})
    *timeout = bounded(*timeout);
  return usable;
}

Result<std::unique_ptr<CommunicatorBase>> connect_checked(const CommunicatorOptions& options) {
  CommunicatorOptions used = options;
  auto relays = Relays::start(&used);
  if (!relays.ok()) return relays.status();
  return JobCommunicator::connect(used, {}, std::move(relays).value());
}

std::unique_ptr<Communicator> flushed_at_exit(std::unique_ptr<CommunicatorBase> communicator) {
  exit_flush::add(communicator.get());
  return communicator;
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::connect(const CommunicatorOptions& options) {
  if (Status status = check_options(options); !status.ok()) return status;
  auto connected = connect_checked(with_bounded_timeouts(options));
  if (!connected.ok()) return connected.status();
  return flushed_at_exit(std::move(connected).value());
}

Result<std::unique_ptr<Communicator>> join_late(const CommunicatorOptions& options, LateJoin join) {
  if (Status status = check_options(options); !status.ok()) return status;
  if (options.verify != Verify::kPacket)
    return invalid("join_late: verify is not kPacket; the ranks cannot verify sums that they exchange");
  if (!join.exchange) return invalid("join_late: there is no exchange");
  return flushed_at_exit(
      std::make_unique<LateCommunicator>(with_bounded_timeouts(options), std::move(join), connect_checked));
}

}  // namespace netsum
