// netsum plan: the performance of placements of aggregators, computed from a topology file.
#include <cstdio>
#include <fstream>

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
    "Exit status: 0 done; 2 the file or the command line is wrong; 3 the picture cannot be written.";

class PlanCommand : public Subcommand {
 public:
  explicit PlanCommand(CLI::App& root) {
    app_ = root.add_subcommand("plan", "Compute what each placement of aggregators would give");
    app_->add_option("topology", file_, "Topology file (YAML): hosts, links, places, racks");
    app_->add_option("--rack", rack_,
                     "Instead of a file: the virtual rack of this name that is up (netsum rack)");
    app_->add_flag("--json", json_, "Print the report as JSON");
    app_->add_option("--html", html_, "Also write a picture to this file");
    app_->footer(kExamples);
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    const std::vector<PlanCase> cases = plan_cases(topology());
    if (json_) {
      std::printf("%s\n", plan_json(cases).dump(2).c_str());
    } else {
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
  plan::Topology topology() const {
    if (file_.empty() == rack_.empty()) throw UsageError("give a topology file or --rack NAME");
    if (rack_.empty()) return load_topology(file_);
    const std::optional<RackNote> note = read_note(rack_);
    if (!note) throw UsageError("rack '" + rack_ + "' is not up: see `netsum rack status`");
    Result<plan::Topology> topology = rack_topology(*note);
    if (!topology.ok()) throw UsageError(topology.status().message());
    return std::move(topology).value();
  }

  CLI::App* app_;
  std::string file_;
  std::string rack_;
  bool json_ = false;
  std::string html_;
};

}  // namespace

std::unique_ptr<Subcommand> make_plan_command(CLI::App& root) {
  return std::make_unique<PlanCommand>(root);
}

}  // namespace netsum::tool
