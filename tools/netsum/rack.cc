// netsum rack: a virtual rack of network namespaces on this machine.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "src/base/text.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/quantity.h"
#include "tools/netsum/rack_graph_trees.h"
#include "tools/netsum/rack_make.h"
#include "tools/netsum/rack_p4.h"
#include "tools/netsum/rack_set.h"
#include "tools/netsum/rack_status.h"
#include "tools/netsum/subcommand.h"
#include "wire/ids.h"

namespace netsum::tool {
namespace {

// Of `rack up`, besides --name and --mtu; the others have no meaning for a topology.
constexpr const char* kStarFlags[] = {"--workers",     "--racks",      "--rate",  "--worker-rate",
                                      "--spare",       "--spare-rate", "--ports", "--no-switch-aggregator",
                                      "--switch-rate", "--dataplane",  "--cores", "--spine-dataplane",
                                      "--loss",        "--multicast"};
constexpr int kMaxP4Mtu = 1135;  // of ranks: payloads of at most 1024 bytes

constexpr char kRackExamples[] =
    "Examples:\n"
    "  netsum rack up --workers 8 --rate 1gbit                 eight workers, one switch that sums\n"
    "  netsum rack up --workers 8 --rate 100mbit --dataplane xdp\n"
    "  netsum rack up --name big --workers 8 --racks 2         two racks under a spine\n"
    "  netsum rack up --workers 8 --rate 100mbit --spare 2 --no-switch-aggregator   two spare hosts sum\n"
    "  netsum rack up --workers 8 --loss 0.1%                  links that lose packets\n"
    "  netsum rack up --topology examples/graph.yaml           hosts, switches and links of any shape\n"
    "  netsum rack set 'gpu0>leaf0' --rate 50mbit              one direction of a link in it\n"
    "  netsum rack set 3 --link down                           unplugs worker 3\n"
    "  netsum rack status\n"
    "  netsum rack exec 0 -- netsum doctor\n"
    "  netsum rack exec sw -- tcpdump -ni w0 udp\n"
    "  netsum rack down --all\n"
    "\n"
    "Every worker, switch and spare host is a network namespace of this machine. `exec` sets\n"
    "NETSUM_AGGREGATOR to what runs in the switch and on spare hosts, MASTER_ADDR and\n"
    "GLOO_SOCKET_IFNAME for torchrun, and with --dataplane p4 NETSUM_VERIFY and NETSUM_MTU.\n"
    "Needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) and iproute2.\n"
    "Exit status: 0 success; 2 bad flags, or another rack of that name is up; 3 the operation failed;\n"
    "exec: that of the command.";

int report_error(const Status& status) {
  std::fprintf(stderr, "netsum rack: %s\n", status.message().c_str());
  return status.code() == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailed;
}

Status not_up(const std::string& name) {
  return Status(ErrorCode::kInvalidArgument, "rack '" + name + "' is not up: `netsum rack up`" +
                                                 (name == "rack" ? "" : " with --name " + name));
}

CLI::Validator rack_name() {
  return CLI::Validator(
      [](std::string& name) -> std::string {
        const bool fits =
            !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), [](char c) {
              return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
            });
        return fits ? "" : "'" + name + "' is no rack's name: use 1 to 32 of a-z and 0-9";
      },
      "NAME");
}

void print_graph(const RackOptions& options) {
  const RackPlan plan(options);
  const auto count = [&](RackNode::Kind kind) {
    return std::count_if(plan.nodes().begin(), plan.nodes().end(),
                         [&](const RackNode& node) { return node.kind == kind; });
  };
  std::printf("rack '%s' is up: %d workers, %td switches, %td places, %zu links in one direction, MTU %d\n",
              options.name.c_str(), options.workers, count(RackNode::Kind::kSwitch),
              count(RackNode::Kind::kSpareHost), plan.links().size(), options.mtu);
  if (!options.graph->trees.empty()) {
    const size_t trees = options.graph->trees.size();
    std::printf("%zu aggregators sum along %zu tree%s%s\n", plan.services().size(), trees,
                trees == 1 ? "" : "s", plan.relays().empty() ? "" : ", and so do workers");
  }
  const std::string name = options.name == "rack" ? "" : " --name " + options.name;
  std::printf("run something on worker 0: netsum rack exec%s 0 -- COMMAND\n", name.c_str());
}

int up(const RackOptions& options) {
  if (const std::string missing = missing_privilege(); !missing.empty()) {
    return report_error(Status(ErrorCode::kPermissionDenied, missing));
  }
  if (options.dataplane == "p4") {
    if (const Status status = check_p4_programs(); !status.ok()) return report_error(status);
  }
  const Result<FileDescriptor> lock = lock_rack(options.name);
  if (!lock.ok()) return report_error(lock.status());
  const std::string down = "`netsum rack down --name " + options.name + "`";
  if (const std::optional<RackNote> before = read_note(options.name)) {
    if (is_whole(*before)) {
      const std::string differs = difference(before->options, options);
      if (differs.empty()) {
        std::printf("rack '%s' is up already\n", options.name.c_str());
        return kExitOk;
      }
      return report_error(Status(ErrorCode::kInvalidArgument, "rack '" + options.name + "' is up, but with " +
                                                                  differs + ": take it down with " + down +
                                                                  ", or choose another --name"));
    }
    std::fprintf(stderr, "netsum rack: taking away what is left of an earlier rack '%s'\n",
                 options.name.c_str());
    if (const Status status = take_down(*before); !status.ok()) return report_error(status);
  }
  if (const Status status = make_rack(options); !status.ok()) return report_error(status);
  if (options.graph) {
    print_graph(options);
    return kExitOk;
  }
  std::printf(
      "rack '%s' is up: %d workers, %s, link rate %s, MTU %d, dataplane %s%s\n", options.name.c_str(),
      options.workers,
      options.racks == 1 ? "one switch" : (std::to_string(options.racks) + " racks and a spine").c_str(),
      format_rate(options.rate_bits).c_str(), options.mtu, options.dataplane.c_str(),
      options.loss ? (", links lose " + format_percent(*options.loss)).c_str() : "");
  const std::string name = options.name == "rack" ? "" : " --name " + options.name;
  std::printf("run something on worker 0: netsum rack exec%s 0 -- COMMAND\n", name.c_str());
  return kExitOk;
}

int down(const std::vector<std::string>& names) {
  if (const std::string missing = missing_privilege(); !missing.empty()) {
    return report_error(Status(ErrorCode::kPermissionDenied, missing));
  }
  if (names.empty()) std::printf("no rack is up\n");
  for (const std::string& name : names) {
    const std::vector<std::string> noted = noted_racks();
    if (std::find(noted.begin(), noted.end(), name) == noted.end()) {
      std::printf("rack '%s' is not up\n", name.c_str());
      continue;
    }
    const Result<FileDescriptor> lock = lock_rack(name);
    if (!lock.ok()) return report_error(lock.status());
    const std::optional<RackNote> note = read_note(name);
    const Status status = note ? take_down(*note) : take_down_unnoted(name);
    if (!status.ok()) return report_error(status);
    std::printf("rack '%s' is down\n", name.c_str());
  }
  return kExitOk;
}

int status(bool as_json) {
  const nlohmann::ordered_json racks = describe_racks();
  if (as_json) {
    std::printf("%s\n", racks.dump(1).c_str());
    return kExitOk;
  }
  if (racks.empty()) std::printf("no rack is up; make one with `netsum rack up --workers 4`\n");
  for (const auto& rack : racks) std::printf("%s", rack_text(rack).c_str());
  return kExitOk;
}

int set(const std::string& name, const std::string& where, const RackLinkChange& change) {
  if (const std::string missing = missing_privilege(); !missing.empty()) {
    return report_error(Status(ErrorCode::kPermissionDenied, missing));
  }
  const std::vector<std::string> noted = noted_racks();
  if (std::find(noted.begin(), noted.end(), name) == noted.end()) return report_error(not_up(name));
  const Result<FileDescriptor> lock = lock_rack(name);
  if (!lock.ok()) return report_error(lock.status());
  // Not before: what is read is changed and written again.
  std::optional<RackNote> note = read_note(name);
  if (!note) return report_error(not_up(name));
  const Status status = change_links(&*note, where, change);
  if (!status.ok()) return report_error(status);
  if (change.rate_bits) {
    for (const std::string& one : outdated_declarations(*note)) {
      std::fprintf(
          stderr,
          "netsum rack: the aggregator of %s, from which jobs plan their shares: make the rack anew with "
          "this rate to change that\n",
          one.c_str());
    }
  }
  return kExitOk;
}

// Of a worker's link; of several, their sum in the slower direction.
uint64_t link_rate_of(const RackNote& note, const RackPlan& plan, const RackNode& node) {
  uint64_t out = 0, in = 0;
  for (const RackLink& link : plan.links()) {
    if (link.node == node.id) out += state_of(note, link).rate_bits;
    if (link.receiver == node.id) in += state_of(note, link).rate_bits;
  }
  return note.options.graph ? std::min(in, out) : out;
}

int exec(const std::string& name, const std::string& where, std::vector<std::string> command) {
  const std::optional<RackNote> note = read_note(name);
  if (!note) return report_error(not_up(name));
  const RackPlan plan(note->options);
  const RackNode* node = plan.find_named(where);
  if (node == nullptr) {
    std::string known;
    for (const RackNode& one : plan.nodes())
      known += (known.empty() ? "" : ", ") + (one.name.empty() ? one.id : printable(one.name));
    return report_error(Status(ErrorCode::kInvalidArgument,
                               "'" + where + "' is not in rack '" + name + "', which has " + known));
  }
  if (const std::string missing = missing_privilege(); !missing.empty()) {
    return report_error(Status(ErrorCode::kPermissionDenied, missing));
  }
  if (const Status status = enter_network_namespace(node->network_namespace); !status.ok())
    return report_error(status);
  const std::string aggregators = aggregator_setting(plan, name, *node);
  if (aggregators.empty()) {
    unsetenv("NETSUM_AGGREGATOR");
  } else {
    setenv("NETSUM_AGGREGATOR", aggregators.c_str(), 1);
  }
  setenv("NETSUM_RACK", name.c_str(), 1);
  setenv("MASTER_ADDR", plan.control_address(*plan.find("w0")).c_str(), 0);
  if (plan.is_p4()) {
    setenv("NETSUM_VERIFY", "sum", 0);
    setenv("NETSUM_MTU", std::to_string(std::min(note->options.mtu, kMaxP4Mtu)).c_str(), 0);
  }
  if (node->kind == RackNode::Kind::kWorker) {
    setenv("NETSUM_WORKER", node->id.c_str() + 1, 1);
    setenv("GLOO_SOCKET_IFNAME", plan.control_interface(), 0);
    const uint64_t rate = link_rate_of(*note, plan, *node);
    if (rate > 0) setenv("NETSUM_LINK_RATE", format_rate(rate).c_str(), 0);
    if (note->options.graph && !note->options.graph->trees.empty() && plan.relays().empty())
      setenv("NETSUM_HIERARCHY", "1", 0);
  }
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "netsum rack exec: cannot run '%s': %s\n", argv[0], std::strerror(errno));
  return errno == ENOENT ? 127 : 126;  // as shells do
}

struct WorkerRates {
  int first = 0;
  int last = 0;
  uint64_t rate_bits = 0;
};

// "4-7=50mbit" or "3=1gbit".
Result<WorkerRates> parse_worker_rates(const std::string& text) {
  WorkerRates rates;
  int end = 0;
  const std::string range = text.substr(0, text.find('='));
  const auto is_whole = [&] { return static_cast<size_t>(end) == range.size(); };
  const bool two =
      std::sscanf(range.c_str(), "%3d-%3d%n", &rates.first, &rates.last, &end) == 2 && is_whole();
  const bool one = !two && std::sscanf(range.c_str(), "%3d%n", &rates.first, &end) == 1 && is_whole();
  if (one) rates.last = rates.first;
  if ((!one && !two) || range.size() == text.size() || rates.first < 0 || rates.last < rates.first) {
    return Status(ErrorCode::kInvalidArgument,
                  "'" + text + "' is not WORKER=RATE or FIRST-LAST=RATE, such as 4-7=50mbit");
  }
  const Result<uint64_t> rate = parse_rate(text.substr(range.size() + 1));
  if (!rate.ok()) return rate.status();
  rates.rate_bits = rate.value();
  return rates;
}

void add_worker_rates(CLI::App& app, std::map<int, uint64_t>& worker_rates) {
  const auto take = [&worker_rates](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      const Result<WorkerRates> parsed = parse_worker_rates(text);
      if (!parsed.ok()) throw CLI::ValidationError("--worker-rate", parsed.status().message());
      for (int w = parsed->first; w <= parsed->last; ++w) worker_rates[w] = parsed->rate_bits;
    }
  };
  app.add_option_function<std::vector<std::string>>(
         "--worker-rate", take, "Rate of some workers' links instead of --rate: 4-7=50mbit or 3=1gbit")
      ->delimiter(',');
}

// Of a rack with BMv2. Throws UsageError.
void check_p4(const RackOptions& options) {
  if (options.racks > 1 || options.spare_hosts > 0 || !options.switch_aggregator || options.multicast) {
    throw UsageError(
        "a rack with --dataplane p4 has one switch, which sums and sends results itself: leave out --racks, "
        "--spare, --no-switch-aggregator and --multicast");
  }
  if (options.workers > NETSUM_MAX_MEMBERS) {
    throw UsageError("--workers is " + std::to_string(options.workers) + ", but the P4 program has at most " +
                     std::to_string(NETSUM_MAX_MEMBERS) + " members in a job");
  }
}

// What no single flag shows. Throws UsageError.
void check_placement(const RackOptions& options) {
  if (!options.worker_rates.empty() && options.worker_rates.rbegin()->first >= options.workers) {
    throw UsageError("--worker-rate names worker " + std::to_string(options.worker_rates.rbegin()->first) +
                     ", but the workers are 0 to " + std::to_string(options.workers - 1));
  }
  if (options.racks > 1 &&
      (options.spare_hosts > 0 || !options.switch_aggregator || options.switch_rate_bits > 0)) {
    throw UsageError(
        "--spare, --no-switch-aggregator and --switch-rate need a single switch: leave out --racks");
  }
  if (options.spare_hosts == 0 && (options.spare_ports > 1 || options.spare_rate_bits)) {
    throw UsageError("--ports and --spare-rate are of spare hosts: give --spare");
  }
  if (options.dataplane == "p4" || options.spine_dataplane == "p4") check_p4(options);
  if (options.switch_rate_bits > 0 && (!options.switch_aggregator || options.dataplane != "user")) {
    throw UsageError(
        "--switch-rate limits the switch's aggregator in user space: leave out --no-switch-aggregator and "
        "--dataplane xdp");
  }
}

class RackCommand : public Subcommand {
 public:
  explicit RackCommand(CLI::App& root);
  bool chosen() const override { return app_->parsed(); }
  int run() override;

 private:
  CLI::App *app_, *up_, *status_, *set_, *exec_, *down_;
  RackOptions options_;
  RackLinkChange change_;
  std::string topology_;
  bool trees_ = false, relays_ = false;
  std::string where_;
  std::vector<std::string> command_;
  bool json_ = false;
  bool all_ = false;
  CLI::Option* spine_dataplane_;
};

RackCommand::RackCommand(CLI::App& root) {
  app_ = root.add_subcommand("rack", "Create a virtual rack of network namespaces: hosts, switches, links");
  app_->require_subcommand(1);
  app_->footer(kRackExamples);
  const auto name_flag = [&](CLI::App* app) {
    app->add_option("--name", options_.name, "Name of the rack")->check(rack_name())->capture_default_str();
  };

  up_ = app_->add_subcommand("up", "Create a rack with an aggregator in each switch");
  name_flag(up_);
  up_->add_option("--workers", options_.workers, "Number of workers")
      ->check(CLI::Range(1, kMaxRackWorkers))
      ->capture_default_str();
  up_->add_option("--racks", options_.racks,
                  "Number of switches for the workers; more than one are below a spine")
      ->check(CLI::Range(1, kMaxRacks))
      ->capture_default_str();
  add_parsed(*up_, "--rate", options_.rate_bits, parse_rate,
             "Rate of every link in each direction: 100mbit, 1gbit, none (unshaped)")
      ->default_str("none");
  add_worker_rates(*up_, options_.worker_rates);
  up_->add_option("--spare", options_.spare_hosts, "Number of spare hosts, each with an aggregator")
      ->check(CLI::Range(0, kMaxSpareHosts))
      ->capture_default_str();
  add_parsed(*up_, "--spare-rate", options_.spare_rate_bits, parse_rate,
             "Rate of each link of a spare host (default: that of --rate)");
  up_->add_option("--ports", options_.spare_ports,
                  "Links of each spare host, each with an address of its own")
      ->check(CLI::Range(1, kMaxSparePorts))
      ->capture_default_str();
  up_->add_flag("!--no-switch-aggregator", options_.switch_aggregator, "The switch only forwards");
  add_parsed(*up_, "--switch-rate", options_.switch_rate_bits, parse_rate,
             "Rate that the switch's aggregator can sum from each worker (for --dataplane user)")
      ->default_str("none");
  up_->add_option("--mtu", options_.mtu, "Largest IP packet, in bytes")
      ->check(CLI::Range(576, 9000))
      ->capture_default_str();
  up_->add_option("--dataplane", options_.dataplane,
                  "Dataplane of the switches: a daemon (user), XDP in the kernel (xdp), or BMv2 (p4),\n"
                  "for which p4c-bm2-ss and simple_switch_grpc must be on the PATH")
      ->check(CLI::IsMember({"user", "xdp", "p4"}))
      ->capture_default_str();
  up_->add_option("--cores", options_.cores, "Threads of the daemon in each switch (for --dataplane user)")
      ->check(CLI::Range(1, kMaxRackCores))
      ->capture_default_str();
  spine_dataplane_ = up_->add_option("--spine-dataplane", options_.spine_dataplane,
                                     "Dataplane of the spine (default: as in the racks)")
                         ->check(CLI::IsMember({"user", "xdp"}));
  add_parsed(*up_, "--loss", options_.loss, parse_probability,
             "Share of packets that every link loses in each direction: 0.01, 1%. Also with 0,\n"
             "`rack set --loss` can change it; without the flag it cannot");
  up_->add_flag("--multicast", options_.multicast, "Aggregators send results to workers by IP multicast");
  CLI::Option* topology = up_->add_option(
      "--topology", topology_,
      "Topology file of `netsum plan`: hosts, switches, places and their links, at most 32 of them in all");
  for (const char* flag : kStarFlags) topology->excludes(up_->get_option(flag));
  CLI::Option* trees = up_->add_flag(
      "--trees", trees_,
      "With --topology: aggregators on hosts, places and switches that sum along the trees that\n"
      "`netsum plan` computes, instead of one in each place and switch that sums");
  trees->needs(topology);
  up_->add_flag("--relays", relays_, "With --trees: those on hosts are inside the ranks")->needs(trees);
  up_->footer(
      "Examples:\n  netsum rack up --workers 8 --rate 1gbit --dataplane xdp\n  netsum rack up --name big "
      "--workers 16 --racks 4\n  netsum rack up --topology examples/graph.yaml --trees");

  status_ = app_->add_subcommand("status", "Show the racks that are up");
  status_->add_flag("--json", json_, "Print a JSON array");
  status_->footer("Examples:\n  netsum rack status\n  netsum rack status --json");

  set_ = app_->add_subcommand("set", "Change the links of a rack that is up");
  name_flag(set_);
  set_->add_option("WHERE", where_,
                   "Whose link: a worker's number, s0 (a spare host; s0-p1: its port 1), up0 (rack 0's\nto "
                   "the spine), a name in the topology file, 'a>b' (the link from a to b), or all")
      ->required();
  add_parsed(*set_, "--rate", change_.rate_bits, parse_rate,
             "Rate in each direction, if the rack was created with --rate");
  add_parsed(*set_, "--loss", change_.loss, parse_probability,
             "Share of lost packets in each direction, if the rack was created with --loss");
  add_choice(*set_, "--link", change_.up, {{"down", false}, {"up", true}},
             "Unplug the link, or plug it in again");
  set_->footer("Examples:\n  netsum rack set 3 --link down\n  netsum rack set all --loss 0.01 --rate 50mbit");

  exec_ = app_->add_subcommand("exec",
                               "Run a command on a worker (by number), a spare host (s0), a switch (sw, sw1, "
                               "spine), or a name in the\n"
                               "topology file");
  name_flag(exec_);
  exec_->add_option("WHERE", where_, "Worker's number, spare host, or switch")->required();
  exec_->add_option("COMMAND", command_, "Command to run, after `--`")->required();
  exec_->footer("Examples:\n  netsum rack exec 0 -- netsum doctor\n  netsum rack exec sw -- ip -s link");

  down_ = app_->add_subcommand("down", "Remove a rack and end all processes in it");
  CLI::Option* all = down_->add_flag("--all", all_, "Remove every rack, including remains after a crash");
  name_flag(down_);
  down_->get_option("--name")->excludes(all);
  down_->footer("Examples:\n  netsum rack down\n  netsum rack down --all");
}

int RackCommand::run() {
  if (up_->parsed()) {
    if (spine_dataplane_->count() == 0) options_.spine_dataplane = options_.dataplane;
    if (options_.workers < options_.racks) {
      throw UsageError("--workers is " + std::to_string(options_.workers) + ", fewer than --racks " +
                       std::to_string(options_.racks) + ": every rack needs a worker");
    }
    check_placement(options_);
    if (!topology_.empty()) {
      options_.graph = load_rack_graph(topology_, trees_);
      options_.graph->relays = relays_;
      options_.workers = static_cast<int>(options_.graph->graph.ranks().size());
    }
    return up(options_);
  }
  if (status_->parsed()) return status(json_);
  if (set_->parsed()) {
    if (!change_.rate_bits && !change_.loss && !change_.up) {
      throw UsageError("nothing to set: give --rate, --loss or --link");
    }
    return set(options_.name, where_, change_);
  }
  if (exec_->parsed()) return exec(options_.name, where_, command_);
  return down(all_ ? noted_racks() : std::vector<std::string>{options_.name});
}

}  // namespace

std::unique_ptr<Subcommand> make_rack_command(CLI::App& root) {
  return std::make_unique<RackCommand>(root);
}

}  // namespace netsum::tool
