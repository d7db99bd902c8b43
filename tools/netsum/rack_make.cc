#include "tools/netsum/rack_make.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <sstream>
#include <thread>

#include "tools/netsum/rack_p4.h"
#include "tools/netsum/rack_set.h"

namespace netsum::tool {
namespace {

constexpr size_t kLinesOfLog = 25;  // in an error

// Waits until the aggregator serves.
Status wait_ready(const RackOptions& options, const RackAggregator& aggregator) {
  const std::string log = log_path(options, aggregator.id);
  const auto deadline = std::chrono::steady_clock::now() + kStartPatience;
  for (;;) {
    std::ifstream file(log);
    std::stringstream text;
    text << file.rdbuf();
    if (text.str().find("ready: ") != std::string::npos) return Status();
    const bool alive = is_alive(aggregator.process);
    if (!alive || std::chrono::steady_clock::now() >= deadline) {
      return Status(ErrorCode::kAggregatorLost,
                    "the aggregator of " + aggregator.id +
                        (alive ? " does not serve after " + std::to_string(kStartPatience.count()) + " s"
                               : std::string(" has ended")) +
                        "; the end of its log:" + tail_of_log(log));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// XDP at one end of a link sends to the other.
Status switch_receivers_on(const RackNote& note, const RackPlan& plan) {
  const bool xdp = note.options.dataplane == "xdp", spine_xdp = note.options.spine_dataplane == "xdp";
  for (const RackNode& node : plan.nodes()) {
    std::vector<std::string> receiving;
    if (node.kind == RackNode::Kind::kWorker && xdp) receiving.push_back("eth0");
    if (node.kind == RackNode::Kind::kUplink && xdp) receiving.push_back("rack");
    if (node.kind == RackNode::Kind::kUplink && spine_xdp) receiving.push_back("spine");
    for (const std::string& interface : receiving) {
      const Status status = switch_gro_on(node.network_namespace, interface);
      if (!status.ok()) return status;
    }
  }
  return Status();
}

// BMv2 takes a frame for a packet: it knows of no checksums and segments that the kernel has left to do.
Status frames_as_packets(const RackPlan& plan) {
  for (const RackLink& link : plan.links()) {
    const Status status = switch_send_offloads_off(link.lower_namespace, "eth0");
    if (!status.ok()) return status;
  }
  return Status();
}

Status start_aggregators(RackNote* note, const RackPlan& plan) {
  for (const RackService& service : plan.services()) {
    std::vector<std::string> command = {"netsum"};
    command.insert(command.end(), service.arguments.begin(), service.arguments.end());
    if (plan.is_p4()) {
      const std::vector<std::string> p4 = p4_arguments(plan);
      command.insert(command.end(), p4.begin(), p4.end());
    }
    const Result<ProcessMark> process = start_detached(plan.find(service.node)->network_namespace, command,
                                                       log_path(note->options, service.id));
    if (!process.ok()) return process.status();
    note->aggregators.push_back({service.id, process.value()});
    if (const Status status = write_note(*note); !status.ok()) return status;
  }
  for (const RackAggregator& one : note->aggregators) {
    if (const Status status = wait_ready(note->options, one); !status.ok()) return status;
  }
  note->complete = true;
  return write_note(*note);
}

Status make(RackNote* note) {
  const RackPlan plan(note->options);
  if (const std::string relays = plan.relays(); !relays.empty()) {
    const std::string file = relays_file(note->options.name);
    if (!(std::ofstream(file) << relays).flush()) return {ErrorCode::kUnreachable, "cannot write " + file};
  }
  const std::vector<RackBatch> batches = plan.batches();
  for (const RackBatch& batch : batches) {
    if (const Status status = run_batch(batch); !status.ok()) return status;
    if (&batch != &batches.front()) continue;  // the namespaces
    for (const RackParameter& one : plan.parameters()) {
      const Status status = set_network_parameter(one.network_namespace, one.name, one.value);
      if (!status.ok()) return status;
    }
  }
  if (const Status status = switch_receivers_on(*note, plan); !status.ok()) return status;
  if (note->options.loss) {
    if (const Status status = make_links_lossy(note->options); !status.ok()) return status;
  }
  if (plan.is_p4()) {
    // Lossy links carry frames already.
    const Status status = note->options.loss ? Status() : frames_as_packets(plan);
    if (!status.ok()) return status;
    if (const Status started = start_bmv2(note, plan); !started.ok()) return started;
  }
  return start_aggregators(note, plan);
}

// A namespace of somebody else that has a name of the rack's.
Status check_names(const RackPlan& plan) {
  const std::vector<std::string> taken = named_network_namespaces();
  for (const RackNode& node : plan.nodes()) {
    if (std::find(taken.begin(), taken.end(), node.network_namespace) == taken.end()) continue;
    return Status(
        ErrorCode::kAddressInUse,
        "there is a network namespace " + node.network_namespace +
            " that `netsum rack` has not made: choose another --name, or delete it with `ip netns del " +
            node.network_namespace + "`");
  }
  return Status();
}

}  // namespace

std::string tail_of_log(const std::string& path) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kLinesOfLog) lines.pop_front();
  }
  std::string tail;
  for (const std::string& line : lines) tail += "\n  " + line;
  return tail;
}

std::string log_path(const RackOptions& options, const std::string& service) {
  return rack_folder(options.name) + "/aggregator-" + service + ".log";
}

Status make_rack(const RackOptions& options) {
  if (const Status status = check_names(RackPlan(options)); !status.ok()) {
    delete_folder(options.name);
    return status;
  }
  RackNote note{.options = options, .complete = false, .aggregators = {}, .bmv2 = {}, .links = {}};
  Status status = write_note(note);
  if (status.ok()) status = make(&note);
  if (!status.ok()) static_cast<void>(take_down(note));
  return status;
}

Status take_down(const RackNote& note) {
  for (const RackAggregator& one : note.aggregators) end_process(one.process);
  end_process(note.bmv2);
  Status first;
  const RackPlan plan(note.options);
  for (const RackNode& node : plan.nodes()) {
    const Status status = delete_network_namespace(node.network_namespace);
    if (first.ok()) first = status;
  }
  if (first.ok()) delete_folder(note.options.name);
  return first;
}

Status take_down_unnoted(const std::string& name) {
  for (const std::string& one : named_network_namespaces()) {
    if (!one.starts_with("netsum-" + name + "-")) continue;
    if (const Status status = delete_network_namespace(one); !status.ok()) return status;
  }
  delete_folder(name);
  return Status();
}

bool is_whole(const RackNote& note) {
  const std::vector<std::string> names = named_network_namespaces();
  const RackPlan plan(note.options);
  for (const RackNode& node : plan.nodes()) {
    if (std::find(names.begin(), names.end(), node.network_namespace) == names.end()) return false;
  }
  if (plan.is_p4() && !is_alive(note.bmv2)) return false;
  return note.complete && std::all_of(note.aggregators.begin(), note.aggregators.end(),
                                      [](const RackAggregator& one) { return is_alive(one.process); });
}

}  // namespace netsum::tool
