// The public Aggregator: a dataplane and its control service.
#include "netsum/aggregator.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "aggregator/control/control_service.h"
#include "aggregator/control/job_table.h"
#include "aggregator/p4/driver/p4_dataplane.h"
#include "aggregator/p4/driver/p4runtime_driver.h"
#include "aggregator/user/dataplane.h"
#include "aggregator/xdp/xdp_dataplane.h"
#include "api/aggregator_of_rank.h"
#include "api/aggregator_ports.h"
#include "api/invalid.h"
#include "src/base/spin_setting.h"
#include "src/net/multicast.h"
#include "src/plan/job_plan.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

class LocalAggregator final : public Aggregator {
 public:
  LocalAggregator(std::unique_ptr<Dataplane> dataplane, std::unique_ptr<ControlService> control)
      : dataplane_(std::move(dataplane)), control_(std::move(control)) {}

  std::string control_address() const override { return control_->address(); }
  AggregatorStatus status() const override { return control_->status(); }
  bool drain(std::chrono::milliseconds deadline) override { return control_->drain(deadline); }

 private:
  std::unique_ptr<Dataplane> dataplane_;  // outlives the service, which uses it
  std::unique_ptr<ControlService> control_;
};

Status out_of_range(const char* name, int value, int low, int high) {
  return Status(ErrorCode::kInvalidArgument, std::string(name) + " must be " + std::to_string(low) + " to " +
                                                 std::to_string(high) + ", not " + std::to_string(value));
}

// The groups that jobs get, if results are to leave by multicast.
Result<std::optional<MulticastRange>> groups_of(const AggregatorOptions& options, const Address& bind) {
  if (options.multicast.empty()) return std::optional<MulticastRange>();
  const Result<MulticastRange> range = MulticastRange::parse(options.multicast);
  if (!range.ok()) return range.status();
  if (range->size() < static_cast<uint32_t>(options.max_jobs))
    return invalid("multicast range '" + options.multicast + "' has " + std::to_string(range->size()) +
                   " addresses, one for each job, but max_jobs is " + std::to_string(options.max_jobs) +
                   ": give a larger range or lower max_jobs (--max-jobs)");
  if (options.multicast_ttl < 1 || options.multicast_ttl > 255)
    return out_of_range("multicast_ttl", options.multicast_ttl, 1, 255);
  if (bind.family != 4 || bind.is_wildcard())
    return invalid("multicast needs the IPv4 address of this host that results come from, not " +
                   bind.to_string() + ": give it with --listen");
  return std::optional(*range);
}

JobQuota quota_of(const AggregatorOptions& options) {
  return {.slots = static_cast<uint32_t>(options.job_slots),
          .memory_bytes = static_cast<uint64_t>(options.job_memory_bytes),
          .packets_per_s = static_cast<uint64_t>(options.job_packets_per_second)};
}

Status check_quota(const AggregatorOptions& options) {
  constexpr int kLeastSlots = kScaleSlots + 1;
  if (options.job_slots != 0 && (options.job_slots < kLeastSlots || options.job_slots > 65536))
    return out_of_range("job_slots", options.job_slots, kLeastSlots, 65536);
  if (options.job_packets_per_second < 0 || options.job_packets_per_second > kMaxJobPacketsPerS)
    return {ErrorCode::kInvalidArgument, "job_packets_per_second must be 0 (no limit) to " +
                                             std::to_string(kMaxJobPacketsPerS) + ", not " +
                                             std::to_string(options.job_packets_per_second)};
  if (options.job_memory_bytes < 0)
    return {ErrorCode::kInvalidArgument, "job_memory_bytes must not be negative"};
  if (options.tenant_jobs < 0 || options.tenant_jobs > 4096)
    return out_of_range("tenant_jobs", options.tenant_jobs, 0, 4096);
  if (options.tenant_slots != 0 && (options.tenant_slots < kLeastSlots || options.tenant_slots > 65536))
    return out_of_range("tenant_slots", options.tenant_slots, kLeastSlots, 65536);
  return {};
}

Status check_injected_flips(const AggregatorOptions& options) {
  const double rate = options.inject.flipped_bits;
  if (!(rate >= 0 && rate <= 1))
    return {ErrorCode::kInvalidArgument,
            "injected flips must have a probability from 0 to 1, not " + std::to_string(rate)};
  if (rate > 0 && options.dataplane != DataplaneKind::kUser)
    return {ErrorCode::kUnsupported,
            "bits can be flipped on purpose only by the dataplane of threads of this process: leave out "
            "--inject-flips, or the dataplane"};
  return {};
}

// Only the dataplane knows what a slot takes.
Status check_memory_quota(const DataplaneLimits& limits) {
  if (limits.job_slots() > kScaleSlots) return {};
  return {ErrorCode::kInvalidArgument, "job_memory_bytes " + std::to_string(limits.quota.memory_bytes) +
                                           " holds " + std::to_string(limits.job_slots()) + " slots of " +
                                           std::to_string(limits.slot_bytes) +
                                           " bytes; a job needs more than " + std::to_string(kScaleSlots)};
}

Result<std::unique_ptr<Dataplane>> start_udp(const AggregatorOptions& options,
                                             const std::vector<UdpPort>& ports,
                                             const std::optional<MulticastRange>& groups) {
  return start_user_dataplane({.ports = ports,
                               .stripes = stripes_of(ports, options.cores),
                               .spin = options.spin,
                               .pin = options.pin,
                               .first_udp_port = static_cast<uint16_t>(options.data_port),
                               .slots_per_stripe = static_cast<uint32_t>(options.slots_per_core),
                               .max_jobs = options.max_jobs,
                               .queue_for_each_job = true,
                               .payload_bytes = wire::payload_for_mtu(options.mtu, 4),
                               .multicast_groups = groups,
                               .multicast_ttl = options.multicast_ttl,
                               .quota = quota_of(options),
                               .drop_privileges = options.drop_privileges,
                               .inject = options.inject});
}

Result<std::unique_ptr<Dataplane>> start_xdp(const AggregatorOptions& options, const Address& bind,
                                             const std::optional<MulticastRange>& groups) {
#ifdef NETSUM_HAS_XDP
  return start_xdp_dataplane({.bind = bind,
                              .interfaces = options.interfaces,
                              .slots = static_cast<uint32_t>(options.slots_per_core),
                              .max_jobs = options.max_jobs,
                              .payload_bytes = wire::payload_for_mtu(options.mtu, 4),
                              .multicast_groups = groups,
                              .multicast_ttl = options.multicast_ttl,
                              .quota = quota_of(options),
                              .drop_privileges = options.drop_privileges,
                              .inject = options.inject});
#else
  static_cast<void>(options);
  static_cast<void>(bind);
  static_cast<void>(groups);
  return Status(
      ErrorCode::kUnsupported,
      "this netsum was built without the XDP dataplane: building it needs clang, bpftool and libbpf-dev");
#endif
}

// Empty if no file is named.
Result<std::string> read_file(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (std::string read = text.str(); !read.empty()) return read;
  return Status(ErrorCode::kInvalidArgument, "cannot read the file '" + path + "', or it is empty");
}

// What a switch cannot do.
Status check_p4(const AggregatorOptions& options) {
  const auto unsupported = [](const char* what) {
    return Status(ErrorCode::kUnsupported, std::string("the dataplane 'p4' has no ") + what);
  };
  if (options.p4.server.empty())
    return {ErrorCode::kInvalidArgument,
            "the dataplane 'p4' needs the P4Runtime server of a switch: give it with --p4runtime"};
  if (options.p4.ports.empty())
    return {
        ErrorCode::kInvalidArgument,
        "the dataplane 'p4' needs the ports of the switch that hosts are behind: give them with --p4-ports"};
  if (!options.multicast.empty())
    return unsupported("IP multicast, because the switch copies results itself: leave out --multicast");
  if (options.job_packets_per_second != 0) return unsupported("packet rates: leave out --job-packet-rate");
  if (options.inject.loss > 0) return unsupported("injected faults: leave out --inject-loss");
  return {};
}

Result<p4::P4RuntimeOptions> p4runtime_of(const P4SwitchOptions& options, const Address& own) {
  p4::P4RuntimeOptions runtime;
  runtime.server = options.server;
  runtime.device_id = options.device_id;
  runtime.ports = options.ports;
  for (size_t i = 0; i < 4; ++i) runtime.own_ip = runtime.own_ip << 8 | own.ip[i];
  runtime.own_mac = uint64_t{0x0200} << 32 | runtime.own_ip;  // locally administered
  Result<std::string> p4info = read_file(options.p4info_path);
  if (!p4info.ok()) return p4info.status();
  runtime.p4info = std::move(p4info).value();
  Result<std::string> config = read_file(options.config_path);
  if (!config.ok()) return config.status();
  runtime.config = std::move(config).value();
  return runtime;
}

Result<std::unique_ptr<Dataplane>> start_p4(const AggregatorOptions& options) {
  if (Status status = check_p4(options); !status.ok()) return status;
  const Result<Address> own = Address::parse(options.p4.address + ":0");
  if (!own.ok() || own->family != 4 || own->is_wildcard())
    return Status(ErrorCode::kInvalidArgument,
                  "the dataplane 'p4' needs the IPv4 address that the switch answers for, not '" +
                      options.p4.address + "': give it with --p4-address");
  const Result<p4::P4RuntimeOptions> runtime = p4runtime_of(options.p4, *own);
  if (!runtime.ok()) return runtime.status();
  // Before there are threads, which would keep their rights.
  if (options.drop_privileges) {
    if (Status status = options.drop_privileges(); !status.ok()) return status;
  }
  auto driver = p4::connect_p4runtime(*runtime);
  if (!driver.ok()) return driver.status();
  return p4::make_p4_dataplane({.address = *own,
                                .mac = runtime->own_mac,
                                .max_jobs = options.max_jobs,
                                .slots = static_cast<uint32_t>(options.slots_per_core),
                                .payload_bytes = wire::payload_for_mtu(options.mtu, 4),
                                .quota = quota_of(options)},
                               std::move(driver).value());
}

// What the share planner has to know of this aggregator, besides its dataplane.
PlaceInfo place_for(const AggregatorOptions& options, const std::vector<UdpPort>& ports) {
  PlaceInfo place;
  const bool xdp = options.dataplane == DataplaneKind::kXdp;
  const bool in_switch =
      options.in_switch || options.dataplane == DataplaneKind::kP4 || (xdp && options.interfaces.size() > 1);
  place.set_kind(in_switch ? PlaceInfo::SWITCH : PlaceInfo::SPARE_HOST);
  place.set_address(options.listen);
  place.set_stream_bps(options.sum_rate_bps);
  if (in_switch && !options.parent.empty()) {
    // Only if declared: the interface that the control service listens on may be another one.
    place.mutable_uplink()->set_in_bps(options.link_rate_bps);
    place.mutable_uplink()->set_out_bps(options.link_rate_bps);
  }
  if (in_switch) return place;
  if (!xdp) place.set_cores(static_cast<uint32_t>(options.cores));
  for (const UdpPort& port : ports) {
    PlacePort& entry = *place.add_ports();
    entry.set_address(port.address.to_string());
    entry.mutable_link()->set_in_bps(port.rate_bps);
    entry.mutable_link()->set_out_bps(port.rate_bps);
  }
  return place;
}

Status check_rates(const AggregatorOptions& options) {
  if (Status status = plan::check_declared_rate(options.link_rate_bps, "link_rate_bps"); !status.ok())
    return status;
  return plan::check_declared_rate(options.sum_rate_bps, "sum_rate_bps");
}

}  // namespace

Result<std::unique_ptr<Aggregator>> Aggregator::start(const AggregatorOptions& options) {
  return start_aggregator_of_rank(options, kNoRank);
}

Result<std::unique_ptr<Aggregator>> start_aggregator_of_rank(const AggregatorOptions& options, int rank) {
  if (options.mtu < wire::kMinMtu || options.mtu > wire::kMaxMtu)
    return out_of_range("mtu", options.mtu, wire::kMinMtu, wire::kMaxMtu);
  if (options.max_jobs < 1 || options.max_jobs > 4096)
    return out_of_range("max_jobs", options.max_jobs, 1, 4096);
  if (options.slots_per_core < 8 || options.slots_per_core > 65536) {
    return out_of_range("slots_per_core", options.slots_per_core, 8, 65536);
  }
  if (options.cores < 1 || options.cores > 256) return out_of_range("cores", options.cores, 1, 256);
  if (Status status = check_spin(options.spin); !status.ok()) return status;
  if (options.pin && options.dataplane != DataplaneKind::kUser)
    return Status(
        ErrorCode::kInvalidArgument,
        "pin needs the dataplane of threads of this process: with XDP, packets are summed on the CPU "
        "that receives them; in a P4 switch, in its pipeline");
  if (options.data_port < 0 || options.data_port > UINT16_MAX)
    return out_of_range("data_port", options.data_port, 0, UINT16_MAX);
  if (Status status = check_injected_flips(options); !status.ok()) return status;
  if (Status status = check_quota(options); !status.ok()) return status;
  if (Status status = check_rates(options); !status.ok()) return status;
  const Result<Address> listen = Address::resolve(options.listen);
  if (!listen.ok()) return listen.status();

  const Result<std::vector<UdpPort>> ports = ports_of(options, *listen);
  if (!ports.ok()) return ports.status();
  Address bind = ports->front().address;
  bind.port = static_cast<uint16_t>(options.data_port);
  const Result<std::optional<MulticastRange>> groups = groups_of(options, bind);
  if (!groups.ok()) return groups.status();
  auto dataplane = options.dataplane == DataplaneKind::kXdp  ? start_xdp(options, bind, *groups)
                   : options.dataplane == DataplaneKind::kP4 ? start_p4(options)
                                                             : start_udp(options, *ports, *groups);
  if (!dataplane.ok()) return dataplane.status();
  if (options.job_memory_bytes != 0) {
    if (Status status = check_memory_quota(dataplane.value()->limits()); !status.ok()) return status;
  }

  ControlServiceOptions control;
  control.listen = options.listen;
  control.token = options.token;
  control.tls = options.tls;
  control.max_jobs = options.max_jobs;
  control.join_timeout = options.join_timeout;
  control.parent = options.parent;
  control.parent_token = options.parent_token;
  control.on_event = options.on_event;
  control.inside_rank = rank;
  control.place = place_for(options, *ports);
  control.tenant = {.jobs = options.tenant_jobs, .slots = static_cast<uint32_t>(options.tenant_slots)};
  auto service = ControlService::start(control, dataplane.value().get());
  if (!service.ok()) return service.status();
  return std::unique_ptr<Aggregator>(
      std::make_unique<LocalAggregator>(std::move(dataplane).value(), std::move(service).value()));
}

}  // namespace netsum
