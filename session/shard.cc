#include "session/shard.h"

#include <algorithm>
#include <utility>

#include "aggregator/user/dataplane.h"
#include "src/base/quiet.h"
#include "src/job/capabilities.h"
#include "src/net/address.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

// More than the two largest jobs request, including scale slots: that of all ranks, and that of the owners of one portion
// on each host.
constexpr uint32_t kSlots = 4096;
// Jobs at the same time: that of all ranks, and one for the owners of each portion. The control service chooses their
// indices, and every shard must support each index.
constexpr int kJobs = 1 + kMaxMembers;

// The address that this rank's shard listens on: as configured, or that of the route to an aggregator or to rank 0.
Result<Address> shard_address(const CommunicatorOptions& options, const std::string& root) {
  if (!options.bind_address.empty()) {
    const bool bare_v6 =
        options.bind_address.find(':') != std::string::npos && options.bind_address[0] != '[';
    return Address::resolve(bare_v6 ? "[" + options.bind_address + "]:0" : options.bind_address + ":0");
  }
  const Result<Address> remote =
      Address::resolve(options.aggregators.empty() ? root : options.aggregators.front());
  if (!remote.ok()) return remote;
  Result<Address> local = local_address_towards(*remote);
  if (local.ok()) local.value().port = 0;
  return local;
}

}  // namespace

Result<std::unique_ptr<Shard>> Shard::start(const CommunicatorOptions& options, bool hosts_root) {
  auto shard = std::make_unique<Shard>();
  shard->root_ = options.root;
  if (hosts_root) {
    ControlServiceOptions control;
    control.listen = options.root;
    control.token = options.token;  // of the job, which only its ranks know
    control.tls = options.tls;
    control.max_jobs = kJobs;
    control.join_timeout = options.connect_timeout;
    auto service = ControlService::start(control, &shard->shards_);
    if (!service.ok()) return service.status();
    shard->control_ = std::move(service).value();
    shard->root_ = shard->control_->address();
    if (options.on_root_bound) options.on_root_bound(shard->root_);
  }
  Result<Address> address = shard_address(options, shard->root_);
  if (!address.ok()) return address.status();
  UserDataplaneOptions data;
  data.ports = {{address.value()}};
  data.first_udp_port = address.value().port;
  data.slots_per_stripe = kSlots;
  data.spin = options.spin;
  data.members_in_process = true;
  data.max_jobs = kJobs;
  data.payload_bytes = wire::payload_for_mtu(options.mtu, address.value().family);
  auto dataplane = start_user_dataplane(data);
  if (!dataplane.ok()) return dataplane.status();
  shard->dataplane_ = std::move(dataplane).value();
  shard->shards_.set_own(shard->dataplane_.get());
  return shard;
}

Result<ShardJob> Shard::install(const Membership& membership, size_t number, int world_size,
                                std::shared_ptr<faults::LastContributions> last) {
  const uint16_t job = membership.stripes[number].job;
  const Status status =
      dataplane_->install({.job = job,
                           .epoch = membership.epoch,
                           .key = membership.key,
                           .tag = packet_tag_of(membership.spec),
                           .first_stripe = static_cast<uint32_t>(number),
                           .members = static_cast<uint16_t>(world_size),
                           .data_slots = membership.data_slots,
                           .scale_slots = membership.scale_slots,
                           .payload_bytes = membership.payload_bytes,
                           .sums_values = sums_partial_floats(membership.capabilities),
                           .adds_floats = adds_floats(membership.capabilities, membership.spec),
                           .spec = membership.spec,
                           .last = std::move(last)});
  if (!status.ok()) return status;
  return ShardJob(dataplane_.get(), job, membership.epoch);
}

std::vector<uint64_t> Shard::counters(const std::vector<std::string_view>& names) const {
  std::vector<uint64_t> values(names.size());
  for (const AggregatorCounter& counter : dataplane_->counters()) {
    const auto name = std::find(names.begin(), names.end(), counter.name);
    if (name != names.end()) values[static_cast<size_t>(name - names.begin())] = counter.value;
  }
  return values;
}

void Shard::linger(const std::function<bool(std::chrono::milliseconds)>& is_over,
                   std::chrono::steady_clock::time_point deadline) const {
  serve_until_quiet(
      hosts_root() ? kQuietOfAll : kQuiet, [this] { return counters({"packets_received"})[0]; }, is_over,
      deadline);
}

}  // namespace netsum
