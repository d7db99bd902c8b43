#include "tools/netsum/plan_graph.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdio>

#include "src/base/text.h"
#include "tools/netsum/chakra.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/forest_xml.h"
#include "tools/netsum/graph_report.h"
#include "tools/netsum/msccl_xml.h"
#include "tools/netsum/mscclpp_json.h"
#include "tools/netsum/rack_graph_trees.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw UsageError(printable(result.status().message()));
  return std::move(result).value();
}

size_t root_of(const plan::Graph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.vertices.size(); ++i) {
    if (graph.vertices[i].name == name && graph.vertices[i].kind == plan::VertexKind::kRank) return i;
  }
  throw UsageError("--broadcast: there is no host '" + printable(name) + "' in the graph");
}

void print(const nlohmann::json& json) {
  std::printf("%s\n", json.dump(2, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
}

// Of an all-reduce without trees: from the closed form, if the graph has one.
int print_bounds(const plan::Graph& graph, const GraphFlags& flags, bool json) {
  nlohmann::json report;
  std::string text;
  const auto add = [&](const char* name, const char* key, const plan::Bound& bound) {
    report[key] = bound_json(bound);
    text += fmt::format("{:<14}  {:>10.4g} s per GB  {}{}\n", name, bound.time.to_double() * 8e9, bound.how,
                        bound.exact ? "" : "; the best schedule may take longer");
  };
  add("all-gather", "all_gather", value_of(all_gather_bound(graph)));
  if (!flags.root.empty())
    add("broadcast", "broadcast", value_of(broadcast_bound(graph, root_of(graph, flags.root))));
  if (const auto bound = all_reduce_bound_of_racks(graph)) {
    add("all-reduce", "all_reduce", *bound);
  } else {
    text += "all-reduce      no closed form; leave out --bound\n";
  }
  json ? print(report) : static_cast<void>(std::printf("%s", text.c_str()));
  return kExitOk;
}

constexpr std::string_view kChakra = "chakra:";

void check_schedule(const plan::Schedule& schedule) {
  if (const Status status = plan::verify(schedule);
      !status.ok() && status.code() != ErrorCode::kResourceExhausted)
    throw UsageError("the schedule of these trees is wrong: " + status.message());
}

plan::Schedule schedule_of(const GraphReport& report) {
  plan::Schedule schedule = value_of(plan::schedule_of(report.graph, report.plan));
  check_schedule(schedule);
  return schedule;
}

}  // namespace

std::string check_format(const std::string& format) {
  if (format == "dot" || format == "forestcoll" || format == "msccl" || format == "mscclpp" ||
      format == "commands" || format == "relays")
    return "";
  if (format.starts_with(kChakra) && format.size() > kChakra.size()) return "";
  return "'" + format + "' is none of dot, forestcoll, msccl, mscclpp, commands, relays, chakra:PREFIX";
}

std::optional<int> judge_program(const std::string& file, bool json) {
  std::optional<plan::Schedule> program = load_mscclpp(file);
  if (!program) program = load_msccl(file);
  if (!program) return std::nullopt;
  const plan::Schedule& schedule = *program;
  size_t blocks = 0, steps = 0;
  for (const plan::RankSchedule& rank : schedule.ranks) {
    blocks += rank.blocks.size();
    for (const plan::ThreadBlock& block : rank.blocks) steps += block.steps.size();
  }
  const Status status = plan::verify(schedule);
  static constexpr const char* kNames[] = {"all-reduce", "all-gather", "reduce-scatter"};
  const char* collective = kNames[static_cast<size_t>(schedule.collective)];
  if (json) {
    print({{"collective", collective},
           {"ranks", schedule.ranks.size()},
           {"chunks", schedule.chunks},
           {"thread_blocks", blocks},
           {"steps", steps},
           {"right", status.ok()},
           {"wrong", status.message()}});
  } else if (status.ok()) {
    std::printf(
        "%s of %zu ranks, %u chunks, %zu thread blocks, %zu steps: right. Every rank ends with the chunks it "
        "needs, "
        "each\nrank's input in them once; no deadlock with 8 messages per connection; no chunk is used out "
        "of order.\n",
        collective, schedule.ranks.size(), schedule.chunks, blocks, steps);
  } else {
    std::fprintf(stderr, "netsum plan: %s: %s\n", printable(file).c_str(),
                 printable(status.message()).c_str());
  }
  return status.ok() ? kExitOk : kExitFailed;
}

int plan_graph(plan::Graph graph, const GraphFlags& flags, bool json, const std::string& html) {
  if (const Status status = check(graph); !status.ok()) throw UsageError(printable(status.message()));
  if (flags.bound) return print_bounds(graph, flags, json);
  const bool broadcast = !flags.root.empty();
  const auto collective = broadcast ? plan::TreeCollective::kBroadcast : plan::TreeCollective::kAllReduce;
  const size_t root = broadcast ? root_of(graph, flags.root) : 0;
  GraphReport report{std::move(graph), {}, {}};
  report.plan = value_of(plan_trees(report.graph, collective, root));
  if (!flags.judged.empty()) {
    plan::TreePlan judged = load_forest(flags.judged, report.graph, collective);
    report.plan.trees = std::move(judged.trees);
    report.plan.period = judged.period;
    report.plan.time = judged.time;
    report.plan.load = std::move(judged.load);
    report.plan.sums = std::move(judged.sums);
  }
  if (Result<plan::Bound> bound = all_gather_bound(report.graph); bound.ok()) report.all_gather = *bound;
  if (flags.format == "dot") {
    std::printf("%s", graph_dot(report).c_str());
  } else if (flags.format == "forestcoll") {
    std::printf("%s", forest_xml(report.graph, report.plan).c_str());
  } else if (flags.format == "msccl") {
    std::printf("%s", msccl_xml(schedule_of(report), "netsum_trees").c_str());
  } else if (flags.format == "mscclpp") {
    const plan::Schedule puts = value_of(plan::one_sided(schedule_of(report)));
    check_schedule(puts);
    std::printf("%s", mscclpp_json(puts, "netsum_trees").c_str());
  } else if (flags.format == "commands" || flags.format == "relays") {
    if (broadcast) throw UsageError("--export " + flags.format + ": aggregators sum; leave out --broadcast");
    const std::vector<RackTree> trees = value_of(rack_trees(report.plan));
    std::printf("%s", (flags.format == "relays" ? relay_text(report.graph, trees, flags.network)
                                                : tree_commands(report.graph, trees))
                          .c_str());
  } else if (!flags.format.empty()) {
    const std::string prefix = flags.format.substr(kChakra.size());
    if (const int status = write_chakra(schedule_of(report), prefix, flags.gradient); status != kExitOk)
      return status;
    std::printf("%zu traces: %s.0.et and so on\n", report.graph.ranks().size(), prefix.c_str());
  } else if (json) {
    print(graph_json(report));
  } else {
    std::printf("%s", graph_text(report).c_str());
  }
  return html.empty() ? kExitOk : write_file(html, graph_html(report));
}

}  // namespace netsum::tool
