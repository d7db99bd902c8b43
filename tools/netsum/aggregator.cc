// netsum aggregator: the daemon around netsum::Aggregator.
#include "netsum/aggregator.h"

#include <linux/capability.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "src/base/processors.h"
#include "src/base/thread.h"
#include "src/net/address.h"
#include "src/telemetry/aggregator_metrics.h"
#include "src/telemetry/metrics_endpoint.h"
#include "tools/measure/machine.h"
#include "tools/netsum/aggregator_log.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/log.h"
#include "tools/netsum/plan_file.h"
#include "tools/netsum/privileges.h"
#include "tools/netsum/stop_signals.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxDefaultCores = 4;
// How finely waits for a rank are seen. A look costs some hundred microseconds at most.
constexpr milliseconds kPollInterval{100};

constexpr char kAggregatorExamples[] =
    "Examples:\n"
    "  netsum aggregator\n"
    "  netsum aggregator --listen 10.0.0.9:5151 --cores 4 --data-port 6000\n"
    "  taskset -c 2-5 netsum aggregator --listen 10.0.0.9:5151 --cores 4 --pin\n"
    "  netsum aggregator --listen [::]:5151 --token-file /etc/netsum/token --log-format json\n"
    "  netsum aggregator --listen 10.0.0.9:5151,10.0.1.9,10.0.2.9 --link-rate 25gbit\n"
    "  netsum aggregator --metrics 127.0.0.1:9464\n"
    "  netsum aggregator --dataplane xdp --listen 10.0.0.254:5151 --interfaces port1,port2,port3\n"
    "  netsum aggregator --dataplane p4 --p4runtime 10.0.9.1:9559 --p4info netsum.p4info.bin \\\n"
    "      --p4-config netsum.json --p4-address 10.0.0.254 --p4-ports 1,2,3\n"
    "  netsum aggregator --listen 10.0.0.9:5151 --multicast 239.1.2.0/24\n"
    "  netsum aggregator --parent 10.0.9.1:5151        (of a rack, below a spine)\n"
    "  netsum aggregator --tls-cert agg.pem --tls-key agg.key --tls-ca ca.pem --require-client-cert\n"
    "\n"
    "The control service listens on TCP at --listen; data arrives on one UDP port per stripe.\n"
    "SIGTERM or SIGINT drains: the aggregator refuses new jobs, and stops when the running jobs\n"
    "have ended or --drain-timeout has passed. A second signal stops at once.\n"
    "Exit status: 0 drained; 2 bad flags; 3 could not start; 4 stopped with jobs still running.";

// Says once of each interface of the XDP dataplane when it is no longer there. (The kernel has detached the
// program then; an interface made anew under the name is another one.)
class InterfaceWatcher {
 public:
  InterfaceWatcher(const std::vector<std::string>& names, Log& log) : log_(log) {
    for (const std::string& name : names) {
      if (const unsigned index = if_nametoindex(name.c_str()); index != 0) interfaces_[index] = name;
    }
  }

  void look() {
    std::erase_if(interfaces_, [&](const auto& interface) {
      char name[IF_NAMESIZE];
      if (if_indextoname(interface.first, name) != nullptr) return false;
      log_.warn("interface '" + interface.second +
                "' has vanished: members behind it get no sums; start the aggregator again when it is back");
      return true;
    });
  }

 private:
  Log& log_;
  std::map<unsigned, std::string> interfaces_;  // those still there, by index
};

std::string job_names(const std::vector<AggregatorJobStatus>& jobs) {
  std::string names;
  for (const AggregatorJobStatus& job : jobs) {
    if (!names.empty()) names += ", ";
    names += "'" + job.name + "' (" + std::to_string(job.joined.size()) + " of " +
             std::to_string(job.world_size) + " ranks)";
  }
  return names;
}

MetricsEndpoint::Source metrics_of(const Aggregator& aggregator) {
  return {[&](MetricsPage* page) { add_aggregator_metrics(aggregator.status(), page); },
          [&]() -> std::string { return aggregator.status().draining ? "draining" : ""; }};
}

// Before Linux 5.19 every access to a BPF map takes CAP_BPF where only the privileged may use BPF.
bool kernel_asks_for_cap_bpf() {
  utsname name{};
  uname(&name);
  int major = 0, minor = 0;
  return std::sscanf(name.release, "%d.%d", &major, &minor) != 2 || major < 5 || (major == 5 && minor < 19);
}

class AggregatorCommand : public Subcommand {
 public:
  explicit AggregatorCommand(CLI::App& root);
  bool chosen() const override { return app_->parsed(); }
  int run() override;

 private:
  std::vector<unsigned> capabilities_to_keep() const;
  void take_link_rates(const std::vector<std::string>& rates);
  void set_addresses();
  int report_start_failure(const Status& status, Log& log) const;
  void announce(const Aggregator& aggregator, const MetricsSource* metrics) const;
  void warn_of_faults(Log& log) const;
  void warn_of_shared_processors(Log& log) const;
  int drain(Aggregator& aggregator, const StopSignals& signals, Log& log) const;

  CLI::App* app_;
  AggregatorOptions options_;
  std::vector<std::string> listen_ = {options_.listen};
  std::vector<double> link_rates_;
  TlsFlags tls_;
  TokenFlag token_{"--token-file", "NETSUM_AGGREGATOR_TOKEN", ""};
  TokenFlag parent_token_{"--parent-token-file", "NETSUM_PARENT_TOKEN", ""};
  std::string metrics_;
  milliseconds drain_timeout_{60'000};
  std::string log_level_ = "info";
  bool log_json_ = false;
};

AggregatorCommand::AggregatorCommand(CLI::App& root) {
  app_ = root.add_subcommand("aggregator", "Run an aggregator, which sums the packets of all workers");
  options_.cores = std::min(this_machine().cores, kMaxDefaultCores);
  app_->add_option(
          "--listen", listen_,
          "Address of the control service, host:port; port 0: any free port. Data arrives there,\n"
          "too, and at further addresses of this host, one for each further interface: host:port,host...")
      ->delimiter(',')
      ->capture_default_str();
  app_->add_option_function<std::vector<std::string>>(
          "--link-rate", [this](const std::vector<std::string>& rates) { take_link_rates(rates); },
          "Rate of the links, such as 25gbit, from which jobs plan their shares: one for all addresses of\n"
          "--listen, or one for each, separated by commas. Default: what the interfaces report or, if one "
          "reports\n"
          "none, those of the slowest member. With --in-switch and --parent: of the link to the parent")
      ->delimiter(',');
  app_->add_option("--data-port", options_.data_port,
                   "First UDP data port, followed by one per further stripe; 0: free ports")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app_->add_option(
          "--cores", options_.cores,
          "Data-path threads, each a stripe with its own slots; with more addresses than cores, each\n"
          "address is a stripe")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  add_parsed(
      *app_, "--spin", options_.spin,
      [](const std::string& text) -> Result<std::chrono::microseconds> {
        SettingValues values;
        if (Status status = set_value("spin", text, &values); !status.ok()) return status;
        return values.options.spin;
      },
      "For how long threads that wait poll before they sleep. 1: up to 50 us, while that pays; 0: never;\n"
      "a time up to 60s, such as 10ms: always, for aggregators with a core for each thread")
      ->default_str("1");
  app_->add_flag("--pin", options_.pin,
                 "Each data-path thread stays on a processor core of its own, of those that the process may\n"
                 "use (taskset, cpusets); needs at least --cores of them");
  app_->add_option("--slots", options_.slots_per_core, "Slots per stripe, a power of two; bounds the memory")
      ->check(CLI::Range(8, 65536))
      ->check(power_of_two())
      ->capture_default_str();
  app_->add_option("--max-jobs", options_.max_jobs, "Maximum number of jobs at the same time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app_->add_option("--job-slots", options_.job_slots,
                   "Quota: slots of a job per core, including 16 for scales; 0: no limit")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  add_parsed(*app_, "--job-memory", options_.job_memory_bytes, parse_bytes,
             "Quota: memory of a job's slots per core, such as 1Mi; 0: no limit")
      ->default_str("0");
  app_->add_option("--job-packet-rate", options_.job_packets_per_second,
                   "Quota: packets per second and core from all members of a job together; more are\n"
                   "dropped (drop_over_rate), and the members slow down as after loss. 0: no limit")
      ->check(CLI::Range(int64_t{0}, int64_t{100'000'000}))
      ->capture_default_str();
  app_->add_option("--tenant-jobs", options_.tenant_jobs,
                   "Quota: jobs at the same time whose first rank has joined from one address; 0: no limit")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app_->add_option("--tenant-slots", options_.tenant_slots,
                   "Quota: slots per core of these jobs together, with 16 of each for scales; 0: no limit")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  app_->add_option("--mtu", options_.mtu, "Largest IP packet accepted, in bytes")
      ->check(CLI::Range(576, 9000))
      ->capture_default_str();
  add_choice(*app_, "--dataplane", options_.dataplane,
             {{"user", DataplaneKind::kUser}, {"xdp", DataplaneKind::kXdp}, {"p4", DataplaneKind::kP4}},
             "Dataplane: threads of this process, a program in the kernel, which needs root, or a P4 switch");
  app_->add_option("--interfaces", options_.interfaces,
                   "For xdp: the interfaces at which workers' packets arrive, separated by commas")
      ->delimiter(',');
  app_->add_option("--p4runtime", options_.p4.server,
                   "For p4: the P4Runtime server of the switch, host:port or unix:PATH");
  app_->add_option("--p4-device", options_.p4.device_id, "For p4: its device number")->capture_default_str();
  app_->add_option("--p4info", options_.p4.p4info_path,
                   "For p4: file of p4c with the P4Info of aggregator/p4 in binary form; with --p4-config.\n"
                   "Default: the switch has the program already");
  app_->add_option("--p4-config", options_.p4.config_path,
                   "For p4: file of p4c with the program for the switch");
  app_->add_option("--p4-address", options_.p4.address,
                   "For p4: IPv4 address of the aggregator, which the switch answers for");
  app_->add_option("--p4-ports", options_.p4.ports,
                   "For p4: the ports of the switch, separated by commas, for frames to unknown addresses")
      ->delimiter(',');
  add_parsed(*app_, "--sum-rate", options_.sum_rate_bps, parse_link_rate,
             "The most that this aggregator can sum, from each member; default: no limit");
  app_->add_flag("--in-switch", options_.in_switch,
                 "Every member has a link of its own to this aggregator, as in a switch; always so with\n"
                 "xdp on several interfaces");
  app_->add_option("--multicast", options_.multicast,
                   "Send each result once, to a multicast group of the job from this IPv4 prefix; the\n"
                   "network must deliver it to all members. Default: one copy per member");
  app_->add_option("--multicast-ttl", options_.multicast_ttl, "TTL of multicast packets")
      ->check(CLI::Range(1, 255))
      ->capture_default_str();
  token_.declare(*app_, "File with the token that members must present");
  app_->add_option("--parent", options_.parent,
                   "Hierarchy: aggregator that sums the results of this one, such as that of a spine")
      ->check(host_port());
  parent_token_.declare(*app_, "File with the token that the parent requires");
  tls_.declare_server(*app_);
  add_parsed(*app_, "--drain-timeout", drain_timeout_, parse_duration,
             "How long to wait for running jobs when draining")
      ->default_str("60s");
  app_->add_option("--metrics", metrics_,
                   "Address of /metrics (Prometheus), /healthz and /readyz over HTTP; default: none")
      ->check(host_port());
  declare_inject_flags(*app_, options_.inject);
  add_parsed(
      *app_, "--inject-flips", options_.inject.flipped_bits, parse_probability,
      "Fault injection, for rehearsals of alarms: share of the sums in which one bit is flipped. Jobs\n"
      "that do not verify their sums get wrong results. Only with --dataplane user")
      ->default_str("0");
  app_->add_option("--log-level", log_level_, "Minimum level of log lines")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  add_choice(*app_, "--log-format", log_json_, {{"text", false}, {"json", true}},
             "Format of the log on standard error");
  app_->footer(kAggregatorExamples);
}

void AggregatorCommand::take_link_rates(const std::vector<std::string>& rates) {
  for (const std::string& text : rates) {
    const Result<double> rate = parse_link_rate(text);
    if (!rate.ok()) throw CLI::ValidationError("--link-rate", rate.status().message());
    link_rates_.push_back(*rate);
  }
}

// --listen and --link-rate together say what the ports are.
void AggregatorCommand::set_addresses() {
  options_.listen = listen_.front();
  const Result<HostPort> first = split_host_port(options_.listen);
  if (!first.ok()) throw UsageError("--listen: " + first.status().message());
  const size_t count = listen_.size();
  if (link_rates_.size() > 1 && link_rates_.size() != count) {
    throw UsageError("--link-rate: " + std::to_string(link_rates_.size()) + " rates for " +
                     std::to_string(count) + " addresses of --listen: give one for all, or one for each");
  }
  if (count == 1) {
    if (!link_rates_.empty()) options_.link_rate_bps = link_rates_.front();
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const std::string& address = i == 0 ? first->host : listen_[i];
    // An IPv6 address has more than one colon.
    if (i > 0 &&
        (address.empty() || address.front() == '[' || std::count(address.begin(), address.end(), ':') == 1))
      throw UsageError("--listen: '" + address +
                       "' must be an address without a port; only the first has one");
    const double rate = link_rates_.empty() ? 0 : link_rates_[link_rates_.size() == 1 ? 0 : i];
    options_.ports.push_back({address, rate});
  }
}

int AggregatorCommand::report_start_failure(const Status& status, Log& log) const {
  std::string message = status.to_string();
  // That of a P4 switch is no port: another control plane has it.
  if (status.code() == ErrorCode::kAddressInUse && options_.dataplane != DataplaneKind::kP4) {
    const Result<HostPort> listen = split_host_port(options_.listen);
    const int port = listen.ok() ? listen.value().port : 0;
    const bool control = port != 0 && status.message().find(":" + std::to_string(port)) != std::string::npos;
    message = control ? "port " + std::to_string(port) +
                            " is in use by another process: stop it or choose another with --listen host:port"
                      : "a data port is in use by another process: stop it or choose others with --data-port";
    message += " (" + status.message() + ")";
  }
  log.error(message);
  return status.code() == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailed;
}

void AggregatorCommand::announce(const Aggregator& aggregator, const MetricsSource* metrics) const {
  std::string control = aggregator.control_address();
  std::string data;
  for (const std::string& address : aggregator.status().data_addresses) {
    data += (data.empty() ? "" : ", ") + address;
  }
  // A wildcard is no address to send to: put this host's name there.
  std::string reachable = control;
  if (const Result<Address> parsed = Address::parse(control); parsed.ok() && parsed.value().is_wildcard()) {
    char name[256] = "localhost";
    gethostname(name, sizeof(name) - 1);
    reachable = std::string(name) + ":" + std::to_string(parsed.value().port);
  }
  std::printf("ready: control %s, data %s\n", control.c_str(), data.c_str());
  const std::vector<AggregatorPortStatus> ports = aggregator.status().ports;
  for (const AggregatorPortStatus& port : ports) {
    if (ports.size() == 1) break;
    const std::string rate =
        port.link_rate_bps > 0 ? format_rate(static_cast<uint64_t>(port.link_rate_bps)) : "unknown";
    std::printf("port: %s, link rate %s\n", port.address.c_str(), rate.c_str());
  }
  if (metrics != nullptr) std::printf("metrics: http://%s/metrics\n", metrics->address().c_str());
  std::printf("set on workers: NETSUM_AGGREGATOR=%s\n", reachable.c_str());
  std::fflush(stdout);
}

int AggregatorCommand::drain(Aggregator& aggregator, const StopSignals& signals, Log& log) const {
  const std::vector<AggregatorJobStatus> jobs = aggregator.status().jobs;
  if (!jobs.empty()) {
    log.info("draining: waiting at most " + format_duration(drain_timeout_) + " for " + job_names(jobs) +
             "; a second signal stops at once");
  }
  std::atomic<bool> done = false;
  bool all_left = false;
  const auto drain = [&] {
    all_left = aggregator.drain(drain_timeout_);
    done = true;
  };
  std::thread drainer;
  // Without a thread, a second signal has no effect.
  if (!start_thread("to drain", drain, &drainer).ok()) drain();
  // drain() returns by its own deadline, so this loop does too.
  std::string waiting_for = job_names(jobs);
  while (!done) {
    if (signals.wait(milliseconds(50)) != 0) {
      log.warn("second signal: stopping at once");
      log.flush();
      // The drainer cannot be interrupted; members see their connections close, as after any death.
      std::_Exit(kExitUndrained);
    }
    const std::string left = job_names(aggregator.status().jobs);
    if (!left.empty() && left != waiting_for) log.info("draining: still waiting for " + left);
    waiting_for = left;
  }
  if (drainer.joinable()) drainer.join();
  if (all_left) {
    log.info("drained: every job had left");
    return kExitOk;
  }
  log.warn("stopped after " + format_duration(drain_timeout_) + " with jobs still running: " + waiting_for);
  return kExitUndrained;
}

std::vector<unsigned> AggregatorCommand::capabilities_to_keep() const {
  std::vector<unsigned> kept;
  for (const std::string& address : {options_.listen, metrics_}) {
    const Result<HostPort> parsed = split_host_port(address);
    // These sockets are opened after the capabilities are dropped.
    if (parsed.ok() && parsed.value().port > 0 && parsed.value().port < 1024)
      kept.push_back(CAP_NET_BIND_SERVICE);
  }
  if (options_.dataplane == DataplaneKind::kXdp && kernel_asks_for_cap_bpf()) kept.push_back(CAP_BPF);
  return kept;
}

// A connection for each member, and sockets for each job and core, are soon more than the usual 1024.
void raise_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void AggregatorCommand::warn_of_faults(Log& log) const {
  if (options_.inject.loss > 0) {
    log.warn("FAULTS ARE INJECTED (--inject-loss): " + format_percent(options_.inject.loss) +
             " of the packets received are dropped on purpose; not for production");
  }
  if (options_.inject.flipped_bits > 0) {
    log.warn("FAULTS ARE INJECTED (--inject-flips): in " + format_percent(options_.inject.flipped_bits) +
             " of the sums one bit is flipped on purpose, so jobs that do not verify their sums get wrong "
             "results; for rehearsals only");
  }
}

void AggregatorCommand::warn_of_shared_processors(Log& log) const {
  const size_t usable = usable_processors().size();
  if (options_.dataplane != DataplaneKind::kUser || static_cast<size_t>(options_.cores) <= usable) return;
  log.warn(std::to_string(options_.cores) + " data-path threads (--cores) share " + std::to_string(usable) +
           " processor core" + (usable == 1 ? "" : "s") + ": more threads than cores do not sum faster");
}

int AggregatorCommand::run() {
  raise_open_files();
  set_addresses();
  options_.token = token_.load();
  options_.parent_token = parent_token_.load();
  options_.tls = tls_.load();
  const StopSignals signals;
  Log log(log_level_, log_json_);
  options_.drop_privileges = [this] { return drop_capabilities(capabilities_to_keep()); };
  options_.on_event = [&log](const AggregatorEvent& event) { log_event(event, &log); };
  Result<std::unique_ptr<Aggregator>> started = Aggregator::start(options_);
  if (!started.ok()) return report_start_failure(started.status(), log);
  Aggregator& aggregator = *started.value();
  std::unique_ptr<MetricsSource> metrics;
  if (!metrics_.empty()) {
    auto opened = MetricsSource::open(metrics_, metrics_of(aggregator));
    if (!opened.ok()) {
      log.error("--metrics " + metrics_ + ": " + opened.status().message());
      return opened.status().code() == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailed;
    }
    metrics = std::move(opened).value();
  }
  announce(aggregator, metrics.get());
  warn_of_faults(log);
  warn_of_shared_processors(log);

  WaitLog waits(&log);
  FaultLog faults(&log);
  LengthLog lengths(&log);
  InterfaceWatcher interfaces(options_.interfaces, log);
  while (signals.wait(kPollInterval) == 0) {
    const AggregatorStatus status = aggregator.status();
    waits.look(status);
    faults.look(status);
    lengths.look(status);
    interfaces.look();
  }

  const int code = drain(aggregator, signals, log);
  Json counters = Json::object();
  for (const AggregatorCounter& counter : aggregator.status().counters) {
    if (counter.value != 0) counters[counter.name] = counter.value;
  }
  log.info("counters", counters);
  return code;
}

}  // namespace

std::unique_ptr<Subcommand> make_aggregator_command(CLI::App& root) {
  return std::make_unique<AggregatorCommand>(root);
}

}  // namespace netsum::tool
