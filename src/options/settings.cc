// The table of settings, and what is made of it.
#include "netsum/settings.h"

#include <algorithm>

#include "src/options/setting_type.h"

namespace netsum {
namespace {

using namespace options;  // the types of settings
using O = CommunicatorOptions;

// Whether all ranks must have the same value. kJoined: and members of a job compare it when they join, although no field of
// JobSpec has it.
enum { kOwn, kSame, kJoined };

struct Row {
  const char* name;
  const char* variable;
  SettingType type;
  int same_on_all_ranks;
  const char* help;
};

bool& hierarchy(SettingValues& values) {
  return values.hierarchy;
}
std::string& job_prefix(SettingValues& values) {
  return values.job_prefix;
}
template <auto kMember>
auto& tls(SettingValues& values) {
  return values.options.tls.*kMember;
}
template <auto kMember>
auto& inject(SettingValues& values) {
  return values.options.inject.*kMember;
}

// Adding an option of a communicator: its field in options.h, and its row here.
const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"aggregators", "NETSUM_AGGREGATOR", addresses(option<&O::aggregators>, "plan:FILE"), kSame,
       "control addresses of the aggregators; chunks are divided between them and the ranks' shards "
       "(`NETSUM_SHARES`). "
       "Without any, every rank embeds a shard. "
       "`plan:FILE`: [trees through ranks](placement.md#networks-of-any-shape)"},
      {"hierarchy", "NETSUM_HIERARCHY", on_or_off(hierarchy), kSame,
       "1: `NETSUM_AGGREGATOR` is the aggregator of this rank's rack, and may differ between ranks; these "
       "aggregators have "
       "[a common parent](command.md#hierarchies---parent). Required for more than 64 ranks"},
      {"aggregator_token", "NETSUM_AGGREGATOR_TOKEN", text(option<&O::aggregator_token>), kOwn,
       "token of an aggregator that was started with one"},
      {"job_prefix", "NETSUM_JOB", text(job_prefix), kSame, "prefix of the names of jobs"},
      {"host", "NETSUM_HOST", text(option<&O::host>), kOwn,
       "identifies the ranks that share memory; the usual value is boot id, network namespace and user"},
      {"bind_address", "NETSUM_BIND_ADDRESS", text(option<&O::bind_address>), kOwn,
       "embedded shards: the address at which the other ranks can reach this one; the usual value is the "
       "address of the "
       "route to the first aggregator or, without any, to the master"},
      {"tls.ca_cert", "NETSUM_TLS_CA", contents_of_file(tls<&TlsOptions::ca_cert>), kOwn,
       "TLS for the control connection: certificates that verify the aggregator, in PEM"},
      {"tls.cert", "NETSUM_TLS_CERT", contents_of_file(tls<&TlsOptions::cert>), kOwn,
       "certificate of this rank, in PEM"},
      {"tls.private_key", "NETSUM_TLS_KEY", contents_of_file(tls<&TlsOptions::private_key>), kOwn,
       "key of the certificate, in PEM"},
      {"mtu", "NETSUM_MTU", whole(option<&O::mtu>, 144, 9000), kSame,
       "largest IP packet on the path, in bytes"},
      {"slots", "NETSUM_SLOTS", power_of_two(option<&O::slots>, 1024), kSame, "chunks in flight per stripe"},
      {"packet_io", "NETSUM_PACKET_IO",
       choice(option<&O::packet_io>, {{"udp", PacketIoKind::kUdp}, {"af_xdp", PacketIoKind::kAfXdp}}), kOwn,
       "packet I/O; without [AF_XDP](command.md#af_xdp---packet-io-af_xdp) packets use UDP, and `describe()` "
       "gives the reason"},
      {"engine_threads", "NETSUM_ENGINE_THREADS", whole(option<&O::engine_threads>, 0, 64), kOwn,
       "threads that send and receive, among which the stripes are divided; 0: as many as the rate of the "
       "link needs at 8 "
       "Gbit/s each, at most half of this rank's processor cores"},
      {"spin", "NETSUM_SPIN", polling_time(option<&O::spin>), kOwn,
       "1: waiting threads poll for up to 50 us before they sleep, while that pays; 0: they sleep at once; a "
       "time: they poll for "
       "so long after the last packet, for [ranks with a core each](operations.md#cores-for-latency)"},
      {"shared_memory", "NETSUM_SHARED_MEMORY", on_or_off(option<&O::shared_memory>), kOwn,
       "1: ranks on one host sum in shared memory first; 0: every rank enters the network by itself"},
      {"lane_bits", "NETSUM_LANE_BITS",
       one_of(option<&O::lane_bits>, {0, 8, 16, 32}, "8, 16, 32, or 0 for automatic"), kSame,
       "bits per element on the wire for bfloat16 and float16: 16, 32, or 0 for 16 with up to 16 ranks; 8: "
       "for float32, too, "
       "with a large error ([numerics.md](numerics.md#8-bits))"},
      {"shares", "NETSUM_SHARES",
       choice(option<&O::shares>,
              {{"auto", Shares::kAuto}, {"planned", Shares::kPlanned}, {"off", Shares::kOff}}),
       kSame,
       "how chunks are divided: by [a plan](placement.md#in-a-job) that the ranks correct while they run, by "
       "the plan alone, or "
       "equally between the aggregators"},
      {"verify", "NETSUM_VERIFY",
       choice(option<&O::verify>,
              {{"packet", Verify::kPacket}, {"both", Verify::kBoth}, {"sum", Verify::kSum}}),
       kSame,
       "packet: aggregators are trusted to add right; both: the ranks also [verify every "
       "sum](security.md#verified-sums); sum: "
       "they do, and packets carry a [cookie](security.md#modes) instead of a tag"},
      {"numerics", "NETSUM_NUMERICS",
       choice(option<&O::numerics>, {{"auto", Numerics::kAuto}, {"fixed", Numerics::kFixed}}), kSame,
       "auto: floating-point tensors are [added as floats](numerics.md), in the order of the ranks, wherever "
       "processors sum; fixed: all in block fixed point"},
      {"predict_scales", "NETSUM_PREDICT_SCALES", on_or_off(option<&O::predict_scales>), kJoined,
       "1: operations that recur send data without waiting for scales; results have the same bits"},
      {"link_rate_bps", "NETSUM_LINK_RATE", rate(option<&O::link_rate_bps>), kOwn,
       "for the plan: the rate of this host's link; the usual value is the speed that the interface reports"},
      {"pace_bps", "NETSUM_PACE", rate(option<&O::pace_bps>), kOwn,
       "the most that leaves this rank, apart from bursts of up to 16 packets; short queues at the price of "
       "waiting"},
      {"phase", "NETSUM_PHASE", phase(option<&O::phase_period>, option<&O::phase_offset>), kSame,
       "the period of a step and the job's offset, so that [jobs take turns](placement.md#several-jobs) on "
       "links"},
      {"connect_timeout", "NETSUM_CONNECT_TIMEOUT", seconds(option<&O::connect_timeout>), kOwn,
       "time within which all ranks must join"},
      {"liveness_timeout", "NETSUM_LIVENESS_TIMEOUT", seconds(option<&O::liveness_timeout>, true), kOwn,
       "time without heartbeats or data after which a rank or an aggregator counts as lost; the death of a "
       "process is "
       "detected at once"},
      {"on_failure", "NETSUM_ON_FAILURE",
       choice(option<&O::on_failure>,
              {{"fail", FailurePolicy::kFail}, {"failover", FailurePolicy::kFailover}}),
       kSame, "what to do if an aggregator is lost ([operations.md](operations.md#failures))"},
      {"fallback_aggregators", "NETSUM_FALLBACK_AGGREGATORS",
       addresses(option<&O::fallback_aggregators>, "hosts"), kSame,
       "with failover: places to continue, after `NETSUM_AGGREGATOR` itself; `hosts` stands for shards in "
       "the ranks"},
      {"failover_timeout", "NETSUM_FAILOVER_TIMEOUT", seconds(option<&O::failover_timeout>), kOwn,
       "with failover: time to search for a place"},
      {"when_full", "NETSUM_WHEN_FULL",
       choice(option<&O::when_full>,
              {{"fail", WhenFull::kFail}, {"wait", WhenFull::kWait}, {"hosts", WhenFull::kHosts}}),
       kSame,
       "if an aggregator has no room for the job: fail; wait in its queue, up to `NETSUM_CONNECT_TIMEOUT`; "
       "or, with hosts, sum with shards in the ranks"},
      {"metrics_address", "NETSUM_METRICS", address(option<&O::metrics_address>), kOwn,
       "serve [metrics and probes](operations.md#metrics) there; the rank's number on its host is added to "
       "the port"},
      {"trace_path", "NETSUM_TRACE", text(option<&O::trace_path>), kOwn,
       "write a trace of the operations to this file; `-{job}-rank{rank}` is inserted before the suffix "
       "unless the path "
       "contains both"},
      {"inject.loss", "NETSUM_INJECT_LOSS", probability(inject<&InjectedFaults::loss>), kOwn,
       "for tests: drop this share of the received packets"},
      {"inject.seed", "NETSUM_INJECT_SEED", whole(inject<&InjectedFaults::seed>, 0, INT64_MAX), kOwn,
       "for tests: selects the packets that are dropped"},
  };
  return rows;
}

// kInvalidArgument: there is none of this name.
Result<const Row*> find_row(std::string_view name) {
  const auto row =
      std::find_if(table().begin(), table().end(), [&](const Row& one) { return one.name == name; });
  if (row != table().end()) return &*row;
  return Status(ErrorCode::kInvalidArgument, "there is no option '" + std::string(name) + "'");
}

// "/path/trace.json" is "/path/trace-{job}-rank{rank}.json", so that every communicator of each rank has its own file.
std::string trace_path(const std::string& path) {
  if (path.empty() || (path.find("{rank}") != std::string::npos && path.find("{job}") != std::string::npos))
    return path;
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= name) dot = path.size();
  return path.substr(0, dot) + "-{job}-rank{rank}" + path.substr(dot);
}

// Adds the number of the process on its host to the port, unless that is 0. Returns false if the port becomes too large.
bool add_to_port(std::string& address, int local_rank) {
  if (address.empty()) return true;
  const size_t colon = address.rfind(':');
  const int port = std::stoi(address.substr(colon + 1));
  if (port == 0) return true;
  address = address.substr(0, colon + 1) + std::to_string(port + local_rank);
  return port + local_rank < 65536;
}

// What the settings must not be together. Returns "" or what is wrong.
std::string contradiction(const SettingValues& values) {
  const O& o = values.options;
  const bool failover = o.on_failure == FailurePolicy::kFailover;
  if (values.hierarchy && o.aggregators.empty())
    return "NETSUM_HIERARCHY=1: set NETSUM_AGGREGATOR to the aggregator of this rank's rack";
  if (failover && o.aggregators.empty())
    return "NETSUM_ON_FAILURE=failover: there is no aggregator to lose, set NETSUM_AGGREGATOR";
  if (!o.fallback_aggregators.empty() && !failover)
    return "NETSUM_FALLBACK_AGGREGATORS has no effect without NETSUM_ON_FAILURE=failover";
  if (o.tls.cert.empty() != o.tls.private_key.empty())
    return "NETSUM_TLS_CERT and NETSUM_TLS_KEY belong together: set both or neither";
  return "";
}

}  // namespace

std::vector<SettingInfo> setting_table() {
  std::vector<SettingInfo> infos;
  SettingValues usual;
  for (const Row& row : table()) {
    infos.push_back({row.name, row.variable, row.type.values, row.type.write(usual),
                     row.same_on_all_ranks != kOwn, row.help});
  }
  return infos;
}

std::vector<std::pair<std::string, std::string>> joined_options(const CommunicatorOptions& options) {
  std::vector<std::pair<std::string, std::string>> joined;
  SettingValues values{.options = options};
  for (const Row& row : table())
    if (row.same_on_all_ranks == kJoined) joined.emplace_back(row.name, row.type.write(values));
  return joined;
}

Status set_value(std::string_view name, const std::string& text, SettingValues* values) {
  const auto found = find_row(name);
  if (!found.ok()) return found.status();
  const Row* const row = *found;
  const std::string given = options::trimmed(text);
  if (row->type.read(given, *values)) return Status();
  return Status(ErrorCode::kInvalidArgument, "'" + given + "' is not " + row->type.values);
}

Status check_value(std::string_view name, const CommunicatorOptions& options) {
  const auto found = find_row(name);
  if (!found.ok()) return found.status();
  const Row* const row = *found;
  SettingValues values{.options = options};
  const std::string value = row->type.write(values);
  if (row->type.read(value, values)) return Status();
  return Status(ErrorCode::kInvalidArgument,
                std::string(name) + " is " + value + "; it must be " + row->type.values);
}

Result<Settings> Settings::read(const Lookup& lookup, int local_rank) {
  Settings settings;
  SettingValues& values = settings.values_;
  for (const Row& row : table()) {
    const std::string given = options::trimmed(lookup(row.variable));
    if (given.empty() || row.type.read(given, values)) continue;
    return Status(ErrorCode::kInvalidArgument,
                  std::string(row.variable) + "=\"" + given + "\": must be " + row.type.values);
  }
  values.options.trace_path = trace_path(values.options.trace_path);
  if (const std::string given = values.options.metrics_address;
      !add_to_port(values.options.metrics_address, local_rank)) {
    return Status(ErrorCode::kInvalidArgument,
                  "NETSUM_METRICS=\"" + given + "\": the number of this rank on its host, " +
                      std::to_string(local_rank) + ", is added to the port, which then is above 65535");
  }
  if (std::string wrong = contradiction(values); !wrong.empty())
    return Status(ErrorCode::kInvalidArgument, std::move(wrong));
  settings.aggregators_ = options::joined(values.options.aggregators);
  settings.fallback_aggregators_ = options::joined(values.options.fallback_aggregators);
  return settings;
}

int Settings::most_ranks() const {
  return hierarchy() ? kMaxRanks : kMaxMembers;
}

bool Settings::needs_root() const {
  const auto& fallbacks = options().fallback_aggregators;
  return options().aggregators.empty() || options().when_full == WhenFull::kHosts ||
         std::find(fallbacks.begin(), fallbacks.end(), "hosts") != fallbacks.end();
}

std::string Settings::shared() const {
  std::string lines;
  SettingValues values = values_;
  for (const Row& row : table()) {
    if (row.same_on_all_ranks == kOwn) continue;
    // In a hierarchy, only the number of aggregators is the same.
    const bool of_racks = hierarchy() && std::string_view(row.variable) == "NETSUM_AGGREGATOR";
    const std::string value = of_racks ? std::to_string(options().aggregators.size()) + " in this rank's rack"
                                       : row.type.write(values);
    lines += std::string(row.variable) + "=" + value + "\n";
  }
  return lines;
}

std::string Settings::difference(std::string_view theirs, std::string_view first, std::string_view where) {
  const auto their_lines = options::split(theirs, '\n');
  const auto first_lines = options::split(first, '\n');
  for (size_t i = 0; i < std::max(their_lines.size(), first_lines.size()); ++i) {
    const std::string their_line = i < their_lines.size() ? their_lines[i] : "";
    const std::string first_line = i < first_lines.size() ? first_lines[i] : "";
    if (their_line == first_line) continue;
    const size_t equals = std::min(their_line.find('='), their_line.size());
    if (their_line.empty() || first_line.substr(0, equals) != their_line.substr(0, equals))
      return "the ranks use different versions of netsum: install the same on all of them";
    return their_line.substr(0, equals) + " is \"" + their_line.substr(equals + 1) + "\" " +
           std::string(where) + " but \"" + first_line.substr(equals + 1) +
           "\" on rank 0; set it to the same on every rank";
  }
  return "";
}

}  // namespace netsum
