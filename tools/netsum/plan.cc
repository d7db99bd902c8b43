// netsum plan: the performance of placements of aggregators, computed from a topology file.
#include <chrono>
#include <cstdio>
#include <optional>

#include "src/control/client.h"
#include "src/plan/job_plan.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/graph_file.h"
#include "tools/netsum/plan_cases.h"
#include "tools/netsum/plan_file.h"
#include "tools/netsum/plan_graph.h"
#include "tools/netsum/plan_jobs.h"
#include "tools/netsum/rack_topology.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

constexpr char kPlanExamples[] =
    "Examples:\n"
    "  netsum plan examples/topology.yaml\n"
    "  netsum plan cluster.yaml --html plan.html             the same as a picture\n"
    "  netsum plan --rack demo                               the rack that `netsum rack up --name demo` "
    "made\n"
    "  netsum plan --aggregator 10.0.0.9:5151 --job train    a running job, from the rates it was planned "
    "with\n"
    "  netsum plan cluster.yaml --json | jq '.cases[-1].weights'\n"
    "  netsum plan graph.yaml --html plan.html               trees for a network of any shape, drawn\n"
    "  netsum plan graph.yaml --export dot | dot -Tsvg       the same by Graphviz\n"
    "  netsum plan graph.yaml --export commands              how to run them with aggregators\n"
    "  netsum plan graph.yaml --broadcast gpu0\n"
    "  netsum plan graph.yaml --judge trees.xml              trees of ForestColl against the bound\n"
    "  netsum plan graph.yaml --export msccl > trees.xml     the same for GPUs, by MSCCL\n"
    "  netsum plan --judge trees.xml                         is this program of MSCCL right?\n"
    "  netsum plan --example fat-tree:74 --bound             no trees: of 101306 hosts, only what is "
    "possible\n"
    "  netsum plan racks.yaml --trees                        trees instead of shares, for hosts and racks\n"
    "  netsum plan --jobs jobs.yaml                          offsets for jobs that share links\n"
    "\n"
    "A topology file:\n"
    "  hosts:\n"
    "    - {name: worker, count: 8, link: 100Mbit/s}\n"
    "  places:\n"
    "    - {name: spare, link: 25G, ports: 2, cores: 4}\n"
    "    - {name: tor, kind: switch, stream: 50Mbit/s}\n"
    "\n"
    "\n"
    "A network of any shape, for trees through hosts, switches and aggregators:\n"
    "  hosts:\n"
    "    - {name: gpu, count: 8}\n"
    "  switches:\n"
    "    - {name: leaf, count: 2}\n"
    "    - {name: spine, sums: true}\n"
    "  links:\n"
    "    - {between: ['gpu[0-3]', leaf0], rate: 100G}\n"
    "    - {between: ['gpu[4-7]', leaf1], rate: 100G}\n"
    "    - {between: [leaf, spine], rate: 200G}\n"
    "\n"
    "A file of jobs, each of which sends for a part of its period; with `rate`, not all of its links, whose "
    "rates\n"
    "are then given; with `work` per period, in any unit, for the priorities:\n"
    "  jobs:\n"
    "    - {name: bert, period: 100ms, busy: 40ms, links: [uplink0]}\n"
    "    - {name: gpt, period: 100ms, busy: 40ms, links: [uplink0, uplink1], rate: 20G}\n"
    "  links:\n"
    "    - {name: uplink0, rate: 25G}\n"
    "    - {name: uplink1, rate: 25G}\n"
    "The score of a link is 1 - the mean of what jobs ask for above its rate, in parts of it: TOGETHER if "
    "all "
    "begin\n"
    "their periods at once, OFFSETS with those that are printed. They are worth it from 0.05 more.\n"
    "\n"
    "docs/placement.md describes all keys. Times are those of the links: headers, latency and processor time "
    "come\n"
    "on top.\n"
    "Exit status: 0 done; 2 the file or the command line is wrong; 3 the aggregator does not answer, or the\n"
    "picture cannot be written.";

class PlanCommand : public Subcommand {
 public:
  explicit PlanCommand(CLI::App& root) {
    app_ = root.add_subcommand("plan", "Compute what each placement of aggregators would give");
    app_->add_option("topology", file_, "Topology file (YAML): hosts, links, places, racks");
    app_->add_option("--rack", rack_,
                     "Instead of a file: the virtual rack of this name that is up (netsum rack)");
    CLI::Option* asked = add_parsed(
        *app_, "--aggregator", aggregators_, parse_addresses,
        "Instead of a file: the job that runs at these aggregators, host:port[,host:port...], in the\n"
        "order in which its ranks name them; the first one is asked");
    app_->add_option("--job", job_, "Name of this job, if several are running")->needs(asked);
    add_parsed(*app_, "--timeout", timeout_, parse_duration, "Timeout of the query")->default_str("5s");
    token_.declare(*app_, "File with the token that the aggregator requires");
    tls_.declare_client(*app_);
    app_->add_flag("--json", json_, "Print the report as JSON");
    app_->add_option("--html", html_, "Also write a picture to this file");
    app_->add_option("--jobs", jobs_,
                     "Instead of a file: offsets and priorities for the jobs in this file (YAML)");
    app_->add_flag("--trees", graph_.trees,
                   "Plan trees through hosts instead of shares, also for hosts and racks");
    app_->add_option("--example", graph_.example,
                     "Instead of a file: fat-tree:K, tiers:PODSxRACKSxHOSTS, torus:ROWSxCOLUMNS");
    app_->add_option("--broadcast", graph_.root,
                     "Of a graph: plan a broadcast from this host instead of an all-reduce");
    CLI::Option* bound =
        app_->add_flag("--bound", graph_.bound, "Of a graph: compute bounds only, without trees");
    app_->add_option(
            "--export", graph_.format,
            "Of a graph: print the trees as dot (Graphviz), forestcoll (XML), msccl (XML), mscclpp (JSON of\n"
            "MSCCL++), commands (the aggregators to start, and the ranks' environment) or relays (a file "
            "for\n"
            "NETSUM_AGGREGATOR=plan:FILE, by which ranks sum themselves), or write chakra:PREFIX, a trace "
            "for\n"
            "each rank")
        ->check(check_format)
        ->excludes(bound);
    app_->add_option(
            "--judge", graph_.judged,
            "Of a graph: report on the trees of this ForestColl file instead of the best ones; without\n"
            "a graph: say whether this program of MSCCL or MSCCL++ is right")
        ->excludes(bound);
    add_parsed(*app_, "--gradient", graph_.gradient, parse_size, "Bytes of the gradient in Chakra's traces")
        ->default_str("1GB");
    app_->footer(kPlanExamples);
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    if (file_.empty() && rack_.empty() && graph_.example.empty() && !graph_.judged.empty()) {
      if (const std::optional<int> status = judge_program(graph_.judged, json_)) return *status;
    }
    if (!file_.empty() + !rack_.empty() + !aggregators_.empty() + !graph_.example.empty() + !jobs_.empty() !=
        1) {
      throw UsageError("give a topology file, --rack NAME, --aggregator HOST:PORT or --jobs FILE");
    }
    if (!jobs_.empty()) {
      if (graph_.asked() || !html_.empty()) throw UsageError("--jobs takes no other flag than --json");
      return plan_jobs(jobs_, json_);
    }
    if (!file_.empty()) input_ = load_plan_input(file_);
    graph_.network = !file_.empty() ? file_.substr(file_.rfind('/') + 1)
                                    : (rack_.empty() ? graph_.example : "rack:" + rack_);
    if (input_.graph || graph_.asked()) return run_graph();
    std::optional<RemoteTopology> job;
    if (!aggregators_.empty()) {
      Result<RemoteTopology> asked =
          query_topology(aggregators_.front(), job_, token_.load(), tls_.load(), timeout_);
      if (!asked.ok()) return report_no_answer(asked.status());
      job = std::move(asked).value();
    }
    const std::vector<PlanCase> cases = plan_cases(topology(job));
    if (json_) {
      nlohmann::json report = plan_json(cases);
      if (job) report["job"] = {{"name", job->job}, {"plan", job->plan}};
      std::printf("%s\n", report.dump(2, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
    } else {
      if (job) std::printf("job '%s' runs with %s\n\n", job->job.c_str(), job->plan.c_str());
      std::printf("%s", plan_text(cases).c_str());
    }
    return html_.empty() ? kExitOk : write_file(html_, plan_html(cases));
  }

 private:
  int run_graph() const {
    if (!aggregators_.empty())
      throw UsageError("--aggregator plans shares; give a file, --rack or --example for trees");
    if (!input_.graph && graph_.example.empty()) {
      Result<plan::Graph> graph = graph_of(topology({}));
      if (!graph.ok()) throw UsageError(graph.status().message());
      return plan_graph(std::move(graph).value(), graph_, json_, html_);
    }
    if (input_.graph) return plan_graph(*input_.graph, graph_, json_, html_);
    Result<plan::Graph> example = example_graph(graph_.example);
    if (!example.ok()) throw UsageError("--example: " + example.status().message());
    return plan_graph(std::move(example).value(), graph_, json_, html_);
  }

  static int report_no_answer(const Status& status) {
    std::fprintf(stderr, "netsum plan: %s\n", status.message().c_str());
    return status.code() == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailed;
  }

  plan::Topology topology(const std::optional<RemoteTopology>& job) const {
    if (job) return topology_of(*job);
    if (rack_.empty()) return *input_.topology;
    const std::optional<RackNote> note = read_note(rack_);
    if (!note) throw UsageError("rack '" + rack_ + "' is not up: see `netsum rack status`");
    Result<plan::Topology> topology = rack_topology(*note);
    if (!topology.ok()) throw UsageError(topology.status().message());
    return std::move(topology).value();
  }

  static plan::Topology topology_of(const RemoteTopology& job) {
    const plan::JobTopology said{.links = job.links, .shards = job.shards, .places = job.places};
    Result<plan::Topology> topology = plan::topology_of(said, job.shards, nullptr);
    const Status status = topology.ok() ? check(*topology) : topology.status();
    if (!status.ok()) throw UsageError("the aggregator's answer cannot be planned: " + status.message());
    return std::move(topology).value();
  }

  CLI::App* app_;
  std::string file_;
  std::string rack_;
  std::vector<std::string> aggregators_;
  std::string job_;
  std::chrono::milliseconds timeout_{5000};
  TokenFlag token_{"--token-file", "NETSUM_AGGREGATOR_TOKEN", ""};
  TlsFlags tls_;
  bool json_ = false;
  std::string html_;
  std::string jobs_;
  GraphFlags graph_;
  PlanInput input_;
};

}  // namespace

std::unique_ptr<Subcommand> make_plan_command(CLI::App& root) {
  return std::make_unique<PlanCommand>(root);
}

}  // namespace netsum::tool
