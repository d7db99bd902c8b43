// netsum place: which hosts of a cluster a job gets, and which switches sum for it.
#include <cstdio>
#include <functional>
#include <map>

#include "src/base/text.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/hostlist.h"
#include "tools/netsum/place_job.h"
#include "tools/netsum/place_report.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

constexpr char kPlaceExamples[] =
    "Examples:\n"
    "  netsum place examples/graph.yaml --ranks 4\n"
    "  netsum place /etc/slurm/topology.conf --rates 100G,400G --ranks 16 --out nodelist\n"
    "  netsum place topology.conf --rates 100G,400G --ranks 16 --sums 'leaf[0-7],spine' --aggregators 2\n"
    "  netsum place topology.conf --job job.yaml --out aggregators\n"
    "  netsum place topology.conf --job job.yaml --out graph > job-graph.yaml && netsum plan job-graph.yaml\n"
    "  ibnetdiscover > fabric.txt && netsum place fabric.txt --ranks 64 --out hostfile\n"
    "  netsum place topology.conf --rates 100G,400G --convert volcano\n"
    "\n"
    "A job's file; all keys but ranks have defaults:\n"
    "  ranks: 16\n"
    "  gradient: 100MiB\n"
    "  compute: 200ms            # of an iteration\n"
    "  iterations: 1000\n"
    "  aggregators: 2            # at most so many switches sum\n"
    "  sums: 'leaf[0-7],spine'   # these may\n"
    "  rates: [100G, 400G]       # of a host's link, a rack's uplink, and so on upwards\n"
    "  shards:\n"
    "    - {name: part0, bytes: 10GiB, at: 'n[0-3]'}\n"
    "\n"
    "docs/placement.md describes the method. Nothing is started.\n"
    "Exit status: 0 done; 2 a file or the command line is wrong, or the job does not fit.";

using Output = std::string (*)(const PlaceReport&);

const std::map<std::string, Output> kOutputs = {{"aggregators", aggregator_commands},
                                                {"graph", place_graph},
                                                {"hostfile", place_hostfile},
                                                {"kueue", place_kueue},
                                                {"nodelist", place_nodelist},
                                                {"slurm", place_slurm},
                                                {"volcano", place_volcano}};

const std::map<std::string, ClusterFormat> kFormats = {
    {"auto", ClusterFormat::kAuto},           {"netsum", ClusterFormat::kNetsum},
    {"slurm", ClusterFormat::kSlurm},         {"slurm-yaml", ClusterFormat::kSlurmYaml},
    {"kueue", ClusterFormat::kKueue},         {"volcano", ClusterFormat::kVolcano},
    {"topograph", ClusterFormat::kTopograph}, {"ibnetdiscover", ClusterFormat::kIbnetdiscover}};

class PlaceCommand : public Subcommand {
 public:
  explicit PlaceCommand(CLI::App& root) {
    app_ = root.add_subcommand("place", "Choose hosts and summing switches of a cluster for a job");
    app_->add_option(
            "cluster", file_,
            "File of the cluster: netsum's topology file, Slurm's topology.conf or topology.yaml, Kueue's\n"
            "Topology with nodes, Volcano's HyperNodes, topograph's graph, the output of ibnetdiscover")
        ->required();
    add_choice(*app_, "--from", format_, kFormats, "Format of this file");
    app_->add_option("--job", job_file_, "File of the job (YAML); flags take precedence");
    add_number("--ranks", "Ranks, one on each host",
               [](PlaceJob& job, int64_t n) { job.job.ranks = whole(n); });
    add_parsed(*app_, "--gradient", gradient_, parse_size, "Bytes of the gradient")->default_str("1GB");
    add_parsed(*app_, "--compute", compute_, parse_duration_or_zero, "Time of computing in an iteration")
        ->default_str("0s");
    add_number("--iterations", "Iterations of the job",
               [](PlaceJob& job, int64_t n) { job.job.iterations = n; });
    app_->add_flag("--overlap", overlap_,
                   "An iteration takes the longer of computing and all-reduce, not the sum");
    add_number("--aggregators", "At most so many switches sum",
               [](PlaceJob& job, int64_t n) { job.job.aggregators = whole(n); });
    add_parsed(*app_, "--sums", sums_, parse_hostlist, "Switches that may sum, such as 'leaf[0-3],spine'");
    add_parsed(*app_, "--exclude", exclude_, parse_hostlist, "Hosts that get no rank");
    add_parsed(*app_, "--rates", rates_, parse_rates,
               "Rates of a host's link, a rack's uplink, and so on upwards: 100G,400G,1.6T");
    add_number("--most-per-rack", "At most so many ranks in a rack",
               [](PlaceJob& job, int64_t n) { job.job.most_per_rack = whole(n); });
    CLI::Option* within =
        add_number("--within", "Prefer all ranks below one switch of this tier; a rack's is 1",
                   [](PlaceJob& job, int64_t n) { job.job.tier = whole(n); });
    app_->add_flag("--required", required_, "Fail if they do not fit there")->needs(within);
    CLI::Option* json = app_->add_flag("--json", json_, "Print the report as JSON");
    std::vector<std::string> outputs;
    for (const auto& [name, output] : kOutputs) outputs.push_back(name);
    app_->add_option("--out", out_, "Print this instead of the report")
        ->check(CLI::IsMember(outputs))
        ->excludes(json);
    app_->add_option("--convert", convert_, "Place nothing; print the cluster in this format")
        ->check(CLI::IsMember({"slurm", "slurm-yaml", "kueue", "volcano", "topograph"}))
        ->excludes(json);
    app_->footer(kPlaceExamples);
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    PlaceJob job;
    job.job.gradient_bits = static_cast<int64_t>(8 * kDefaultGradient);
    if (!job_file_.empty()) job = load_place_job(job_file_);
    for (const auto& set : numbers_) set(job);
    if (gradient_) job.job.gradient_bits = static_cast<int64_t>(8 * gradient_);
    if (compute_.count() > 0) job.job.compute_s = plan::Fraction(compute_.count(), 1000);
    job.job.overlap |= overlap_;
    job.job.required |= required_;
    if (!sums_.empty()) job.sums = sums_;
    if (!exclude_.empty()) job.exclude = exclude_;
    if (!rates_.empty()) job.rates = rates_;
    ClusterFile cluster = load_cluster(file_, format_, job.rates);
    if (!convert_.empty()) return print(converted(cluster));
    if (job.job.ranks == 0)
      throw UsageError("give the number of ranks: --ranks N, or 'ranks:' in the job's file");
    apply(&job, job_file_, &cluster.cluster);
    Result<plan::Placement> placement = place(cluster.cluster, job.job);
    if (!placement.ok()) throw UsageError(located(placement.status().message()));
    const PlaceReport report =
        place_report(std::move(cluster), std::move(job.job), std::move(placement).value());
    if (!out_.empty()) return print(kOutputs.at(out_)(report));
    if (json_)
      return print(place_json(report).dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n");
    return print(place_text(report));
  }

 private:
  static size_t whole(int64_t number) { return static_cast<size_t>(number); }

  CLI::Option* add_number(const std::string& flag, const std::string& what,
                          std::function<void(PlaceJob&, int64_t)> set) {
    const auto take = [this, set](const int64_t& number) {
      numbers_.emplace_back([set, number](PlaceJob& job) { set(job, number); });
    };
    return app_->add_option_function<int64_t>(flag, take, what)
        ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  }

  std::string converted(const ClusterFile& cluster) const {
    if (convert_ == "slurm") return write_slurm(cluster.cluster);
    if (convert_ == "slurm-yaml") return write_slurm_yaml(cluster.cluster);
    if (convert_ == "kueue") return write_kueue(cluster.cluster, cluster.levels);
    if (convert_ == "volcano") return write_volcano(cluster.cluster);
    return write_topograph(cluster.cluster);
  }

  // The lines that a placement's error names are those of shards.
  std::string located(const std::string& message) const {
    constexpr std::string_view kLine = "line ";
    if (!message.starts_with(kLine)) return printable(message);
    return job_file_ + ":" + printable(message.substr(kLine.size()));
  }

  static int print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kExitOk;
  }

  CLI::App* app_;
  std::string file_;
  ClusterFormat format_ = ClusterFormat::kAuto;
  std::string job_file_;
  std::vector<std::function<void(PlaceJob&)>> numbers_;
  uint64_t gradient_ = 0;
  std::chrono::milliseconds compute_{0};
  bool overlap_ = false;
  std::vector<std::string> sums_, exclude_;
  std::vector<int64_t> rates_;
  bool required_ = false;
  bool json_ = false;
  std::string out_;
  std::string convert_;
};

}  // namespace

std::unique_ptr<Subcommand> make_place_command(CLI::App& root) {
  return std::make_unique<PlaceCommand>(root);
}

}  // namespace netsum::tool
