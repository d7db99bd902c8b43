// netsum plan: the performance of placements of aggregators, computed from a topology file.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>

#include "src/control/client.h"
#include "src/plan/job_plan.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/plan_cases.h"
#include "tools/netsum/plan_file.h"
#include "tools/netsum/rack_topology.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

constexpr char kExamples[] =
    "Examples:\n"
    "  netsum plan examples/topology.yaml\n"
    "  netsum plan cluster.yaml --html plan.html             the same as a picture\n"
    "  netsum plan --rack demo                               the rack that `netsum rack up --name demo` "
    "made\n"
    "  netsum plan --aggregator 10.0.0.9:5151 --job train    a running job, from the rates it was planned "
    "with\n"
    "  netsum plan cluster.yaml --json | jq '.cases[-1].weights'\n"
    "\n"
    "A topology file:\n"
    "  hosts:\n"
    "    - {name: worker, count: 8, link: 100Mbit/s}\n"
    "  places:\n"
    "    - {name: spare, link: 25G, ports: 2, cores: 4}\n"
    "    - {name: tor, kind: switch, stream: 50Mbit/s}\n"
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
    app_->footer(kExamples);
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    if (!file_.empty() + !rack_.empty() + !aggregators_.empty() != 1) {
      throw UsageError("give a topology file, --rack NAME or --aggregator HOST:PORT");
    }
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
    if (html_.empty()) return kExitOk;
    std::ofstream stream(html_, std::ios::binary);
    stream << plan_html(cases);
    stream.close();
    if (stream) return kExitOk;
    std::fprintf(stderr, "netsum plan: %s: cannot be written; check the folder and its permissions\n",
                 html_.c_str());
    return kExitFailed;
  }

 private:
  static int report_no_answer(const Status& status) {
    std::fprintf(stderr, "netsum plan: %s\n", status.message().c_str());
    return status.code() == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailed;
  }

  plan::Topology topology(const std::optional<RemoteTopology>& job) const {
    if (job) return topology_of(*job);
    if (rack_.empty()) return load_topology(file_);
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
};

}  // namespace

std::unique_ptr<Subcommand> make_plan_command(CLI::App& root) {
  return std::make_unique<PlanCommand>(root);
}

}  // namespace netsum::tool
