// netsum bench: its flags, and the selection of its form.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "netsum/communicator.h"
#include "src/compress/option_text.h"
#include "tools/netsum/bench_local.h"
#include "tools/netsum/bench_report.h"
#include "tools/netsum/bench_worker.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/subcommand.h"
#include "tools/netsum/trace_merge.h"

namespace netsum::tool {
namespace {

using std::chrono::milliseconds;

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) token += std::to_string(random());
  return token;
}

const std::map<std::string, DataType> kElementTypes = {{"float32", DataType::kFloat32},
                                                       {"bfloat16", DataType::kBFloat16},
                                                       {"float16", DataType::kFloat16},
                                                       {"int32", DataType::kInt32},
                                                       {"int64", DataType::kInt64}};
const std::map<std::string, BenchPattern> kPatterns = {
    {"varied", BenchPattern::kVaried}, {"steady", BenchPattern::kSteady}, {"normal", BenchPattern::kNormal}};
const std::map<std::string, ReduceOp> kOps = {{"sum", ReduceOp::kSum}, {"avg", ReduceOp::kAvg}};

constexpr char kBenchExamples[] =
    "Examples:\n"
    "  netsum bench allreduce --workers 4                        local workers, embedded shards\n"
    "  netsum bench allreduce --workers 4 --with-aggregator --bytes 64Mi --json\n"
    "  netsum bench allreduce --workers 2 --aggregator 10.0.0.9:5151 --dtype bfloat16\n"
    "  netsum bench allreduce --workers 8 --shared-memory        what ranks on one host do by default\n"
    "  netsum bench allreduce --workers 96 --bytes 64Ki          two aggregators below a third\n"
    "  netsum bench allreduce --workers 4 --with-aggregator --data normal --compress topk,ratio=0.01\n"
    "  netsum bench allreduce --rank 0 --world-size 2 --aggregator 10.0.0.9:5151    on one host\n"
    "  netsum bench allreduce --rank 1 --world-size 2 --aggregator 10.0.0.9:5151    on another\n"
    "  netsum bench allreduce --rank 0 --world-size 2 --root 10.0.0.1:5150          no aggregator\n"
    "  netsum bench allreduce --workers 4 --aggregator 10.0.0.9:5151 --on-failure failover \\\n"
    "    --fallback 10.0.0.8:5151                         continues there when the first is lost\n"
    "\n";
constexpr char kVerification[] =
    "Every result of every iteration is compared, outside the timed part, with the one recomputed\n"
    "from the ranks' seeds. Of an all-reduce each rank checks a part, and all must have the same bits.\n"
    "The time of an iteration is that of the slowest rank; each rank measures from its own start.\n"
    "sent/recv: bytes of a worker's datagrams with headers; link: bytes on its network link (with\n"
    "embedded shards including the shard's traffic, without traffic inside the process).\n"
    "Exit status: 0 success; 1 a wrong result; 2 bad flags; 3 the run could not be completed.";

// `netsum bench` for one collective.
class BenchCommand {
 public:
  BenchCommand(CLI::App& bench, const BenchCollectiveInfo& info, std::string command_line);
  bool chosen() const { return app_->parsed(); }
  int run();

 private:
  void declare_what();
  void declare_where();
  void declare_failures();
  void check_together() const;
  void load_options();
  std::vector<std::string> worker_flags() const;
  LocalBench local_bench() const;
  int run_one_rank(BenchReport* report);
  int conclude(const BenchReport& report) const;
  void complain(const std::string& message) const;
  bool one_rank() const { return rank_option_->count() > 0; }

  std::string command_line_;
  CLI::App* app_;
  CLI::Option* rank_option_ = nullptr;
  CLI::Option* workers_option_ = nullptr;
  CLI::Option* job_option_ = nullptr;

  BenchSettings settings_;
  SettingValues values_;
  CommunicatorOptions& options_ = values_.options;
  int workers_ = 2;
  bool with_aggregator_ = false;
  int racks_ = 0;
  int aggregator_cores_ = 1;
  std::string trace_;
  TokenFlag job_token_{"--token-file", "NETSUM_TOKEN", ""};
  TokenFlag aggregator_token_{"--aggregator-token-file", "NETSUM_AGGREGATOR_TOKEN", ""};
  TlsFlags tls_;
  bool json_ = false;
  bool report_events_ = false;
};

BenchCommand::BenchCommand(CLI::App& bench, const BenchCollectiveInfo& info, std::string command_line)
    : command_line_(std::move(command_line)) {
  settings_.collective = info.collective;
  options_.job = "bench";
  options_.world_size = 0;  // not given
  app_ = bench.add_subcommand(info.name, info.summary);
  declare_what();
  declare_where();
  declare_failures();
  const std::string name = std::string("  netsum bench ") + info.name;
  const bool has_bytes = info.collective != BenchCollective::kBarrier;
  const std::string others = "Examples:\n" + name + " --workers 4 --with-aggregator" +
                             (has_bytes ? " --bytes 16Mi" : "") + "\n" + name +
                             " --rank 0 --world-size 2 --aggregator 10.0.0.9:5151\n\n";
  app_->footer((info.collective == BenchCollective::kAllReduce ? kBenchExamples : others) + kVerification);
}

void BenchCommand::declare_what() {
  if (settings_.collective == BenchCollective::kBarrier) {
    settings_.bytes = 8;  // of any type; they stay where they are
  } else {
    add_parsed(*app_, "--bytes", settings_.bytes, parse_bytes,
               "Size of a tensor, of all its parts together; 64M is 64 x 10^6, 64Mi is 64 x 2^20")
        ->default_str("64Mi");
  }
  add_choice(*app_, "--dtype", settings_.type, kElementTypes, "Element type");
  if (sums(settings_.collective)) {
    add_choice(*app_, "--op", settings_.op, kOps, "Reduction; avg for floating-point types only");
    add_setting(*app_, "--lane-bits", "lane_bits", values_);
  }
  if (settings_.collective == BenchCollective::kAllReduce) {
    add_parsed(*app_, "--compress", settings_.compression, compress::parse_compression,
               "Compress float32 tensors, and take their mean: a method, and its options behind commas, as\n"
               "in docs/compression.md. All ranks must have the same bits; the error is reported")
        ->type_name("METHOD[,OPTION=VALUE...]");
  }
  app_->add_option("--iterations", settings_.iterations, "Timed iterations")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app_->add_option("--warmup", settings_.warmup, "Iterations before the timed ones, verified but not timed")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  add_parsed(*app_, "--pause", settings_.pause, parse_duration_or_zero,
             "Time that each rank sleeps before each iteration, as if it computed")
      ->default_str("0ms");
  app_->add_option("--inflight", settings_.inflight, "Tensors submitted together in each iteration")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_choice(
      *app_, "--data", settings_.pattern, kPatterns,
      "How magnitudes change from one iteration to the next, on which --predict-scales depends:\n"
      "by powers of two (varied), not (steady), or slowly, of a normal distribution (normal; float32)");
  app_->add_option("--seed", settings_.seed, "Seed of the inputs, the same on all ranks")
      ->capture_default_str();
  app_->add_option("--trace", trace_,
                   "Write a trace of all ranks' operations to this file, for ui.perfetto.dev")
      ->type_name("FILE");
  app_->add_flag("--json", json_, "Print one JSON object");
}

void BenchCommand::declare_where() {
  workers_option_ = app_->add_option("--workers", workers_, "Number of local worker processes to start")
                        ->check(CLI::Range(1, kMaxRanks))
                        ->capture_default_str();
  rank_option_ = app_->add_option("--rank", options_.rank, "Run one rank of a job that is started by hand")
                     ->check(CLI::Range(0, kMaxRanks - 1))
                     ->excludes(workers_option_);
  app_->add_option("--world-size", options_.world_size, "With --rank: number of ranks of the job")
      ->check(CLI::Range(1, kMaxRanks))
      ->needs(rank_option_);
  add_setting(*app_, "--aggregator", "aggregators", values_);
  app_->add_option("--root", options_.root,
                   "With --rank, without an aggregator: address of rank 0, host:port")
      ->check(host_port())
      ->needs(rank_option_);
  // The variable would ask for it with --workers, too.
  add_setting(*app_, "--metrics", "metrics_address", values_)->envname("")->needs(rank_option_);
  app_->add_flag("--with-aggregator", with_aggregator_, "Start an aggregator for the duration of the run")
      ->excludes(rank_option_);
  app_->add_option("--racks", racks_,
                   "Number of aggregators to start, each for a part of the workers, below a parent; "
                   "default: as many as more than " +
                       std::to_string(kMaxMembers) + " workers need")
      ->check(CLI::Range(1, kMaxMembers))
      ->excludes(rank_option_);
  app_->add_option("--aggregator-cores", aggregator_cores_, "Cores of the aggregator of --with-aggregator")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  job_option_ =
      app_->add_option("--job", options_.job, "Name of the job, the same on all ranks; default: bench");
  job_token_.declare(*app_, "File with the job's token");
  aggregator_token_.declare(*app_, "File with the token that the aggregator requires");
  tls_.declare_client(*app_);
  add_setting(*app_, "--mtu", "mtu", values_);
  add_setting(*app_, "--slots", "slots", values_);
  add_setting(*app_, "--packet-io", "packet_io", values_);
  add_setting(*app_, "--spin", "spin", values_);
  add_setting(*app_, "--engine-threads", "engine_threads", values_);
  declare_inject_flags(*app_, options_.inject, "NETSUM_INJECT_LOSS");
  options_.shared_memory = false;  // measure the network, also on one machine
  app_->add_flag("--shared-memory", options_.shared_memory,
                 "Ranks of one host sum in shared memory first, as programs do by default");
  add_parsed(*app_, "--timeout", options_.timeout, parse_duration, "Deadline of an operation")
      ->default_str("30s");
  add_setting(*app_, "--connect-timeout", "connect_timeout", values_);
  // For benchmarks beside other systems (bench/netsum_bench); with --rank, as it takes ranks on one machine.
  app_->add_option("--start-gate", settings_.start_gate)->group("")->needs(rank_option_);
  // For the ranks of --workers, which report to their parent; hidden in --help.
  app_->add_flag("--report-events", report_events_)->group("");
}

void BenchCommand::declare_failures() {
  add_setting(*app_, "--liveness-timeout", "liveness_timeout", values_);
  add_setting(*app_, "--on-failure", "on_failure", values_);
  add_setting(*app_, "--fallback", "fallback_aggregators", values_);
  add_setting(*app_, "--failover-timeout", "failover_timeout", values_);
  add_setting(*app_, "--when-full", "when_full", values_);
  add_setting(*app_, "--shares", "shares", values_);
  add_setting(*app_, "--verify", "verify", values_);
  add_setting(*app_, "--numerics", "numerics", values_);
  add_setting(*app_, "--predict-scales", "predict_scales", values_);
  add_setting(*app_, "--link-rate", "link_rate_bps", values_);
  add_setting(*app_, "--pace", "pace_bps", values_);
  add_setting(*app_, "--phase", "phase", values_);
}

void BenchCommand::check_together() const {
  if (racks_ > 0 && !options_.aggregators.empty())
    throw UsageError("--racks starts aggregators of its own: leave out --aggregator (NETSUM_AGGREGATOR)");
  if (racks_ > 0 && (workers_ + racks_ - 1) / racks_ > kMaxMembers) {
    throw UsageError("--racks " + std::to_string(racks_) + ": an aggregator serves at most " +
                     std::to_string(kMaxMembers) + " of the " + std::to_string(workers_) + " workers");
  }
  if (one_rank() && options_.when_full == WhenFull::kHosts && options_.root.empty())
    throw UsageError("--when-full hosts needs --root host:port of rank 0, for the ranks to meet there");
  if (options_.on_failure == FailurePolicy::kFailover && options_.aggregators.empty() && !with_aggregator_)
    throw UsageError("--on-failure failover needs --aggregator: without one there is none to lose");
  if (!options_.fallback_aggregators.empty() && options_.on_failure != FailurePolicy::kFailover)
    throw UsageError("--fallback has no effect without --on-failure failover");
  if (settings_.bytes == 0 || settings_.bytes % size_of(settings_.type) != 0) {
    throw UsageError(
        "--bytes " + std::to_string(settings_.bytes) + ": must be a positive multiple of the element size, " +
        std::to_string(size_of(settings_.type)) + " for " + std::string(data_type_name(settings_.type)));
  }
  if (settings_.op == ReduceOp::kAvg && !is_floating(settings_.type)) {
    throw UsageError("--op avg: integers have no average of their own type; use --op sum or a float --dtype");
  }
  if (settings_.pattern != BenchPattern::kVaried && !is_floating(settings_.type))
    throw UsageError("--data: integers have no scales; leave it out, or use a float --dtype");
  if (settings_.pattern == BenchPattern::kNormal && settings_.type != DataType::kFloat32)
    throw UsageError("--data normal: its elements are exact in float32 only");
  if (settings_.compression && settings_.type != DataType::kFloat32)
    throw UsageError("--compress takes tensors of --dtype float32");
  if (settings_.compression && settings_.op == ReduceOp::kSum && app_->get_option("--op")->count() > 0)
    throw UsageError("--compress gives the mean of the ranks: use --op avg, or leave it out");
  if (!one_rank()) return;
  if (options_.world_size == 0) throw UsageError("--rank needs --world-size, the number of ranks of the job");
  if (options_.rank >= options_.world_size) {
    throw UsageError("--rank " + std::to_string(options_.rank) + ": must be below --world-size " +
                     std::to_string(options_.world_size));
  }
  if (options_.aggregators.empty() && options_.root.empty()) {
    throw UsageError("--rank needs --aggregator host:port, or --root host:port of rank 0");
  }
}

void BenchCommand::load_options() {
  options_.token = job_token_.load();
  options_.aggregator_token = aggregator_token_.load();
  options_.tls = tls_.load();
  settings_.lane_bits = options_.lane_bits;
  if (settings_.compression) settings_.op = ReduceOp::kAvg;
  options_.trace_path = trace_;
}

// The flags of this command that it passes to its ranks: all but those about starting ranks.
std::vector<std::string> BenchCommand::worker_flags() const {
  static const std::set<std::string> kOwn = {
      "--workers", "--aggregator", "--with-aggregator", "--aggregator-cores",
      "--racks",   "--job",        "--trace",           "--json"};
  std::vector<std::string> flags;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->count() == 0 || kOwn.contains(option->get_name())) continue;
    flags.push_back(option->get_name() + "=" + option->results().back());
  }
  // A unique job name, so that two users can measure at one aggregator.
  flags.push_back("--job=" + options_.job + (job_option_->count() > 0 ? "" : "-" + std::to_string(getpid())));
  if (!trace_.empty()) flags.push_back("--trace=" + trace_ + ".{rank}");
  return flags;
}

LocalBench BenchCommand::local_bench() const {
  LocalBench local;
  local.collective = app_->get_name();
  local.workers = workers_;
  local.worker_flags = worker_flags();
  local.racks = racks_;
  // More workers than one aggregator, or embedded shards, can serve need a hierarchy.
  if (racks_ == 0 && workers_ > kMaxMembers && options_.aggregators.empty())
    local.racks = (workers_ + kMaxMembers - 1) / kMaxMembers;
  local.with_aggregator = with_aggregator_ || local.racks > 0;
  local.may_use_hosts = options_.when_full == WhenFull::kHosts;
  local.aggregator_cores = aggregator_cores_;
  local.mtu = options_.mtu;
  local.total_iterations = settings_.warmup + settings_.iterations;
  local.show_progress = isatty(STDERR_FILENO) != 0;
  if (!local.with_aggregator) local.aggregators = options_.aggregators;
  // Generating and checking the inputs takes each rank a time in proportion to all ranks' data.
  constexpr int64_t kElementsPerMs = 20'000;
  const auto elements = static_cast<int64_t>(settings_.count()) * settings_.inflight;
  local.silence_limit = options_.timeout + options_.connect_timeout +
                        milliseconds(30'000 + elements * workers_ * workers_ / kElementsPerMs);
  return local;
}

int BenchCommand::run_one_rank(BenchReport* report) {
  const Status status = run_bench_worker(options_, settings_, [&](const Json& event) {
    report->on_event(options_.rank, event);
    if (!report_events_) return;
    std::printf("%s\n", event.dump().c_str());
    std::fflush(stdout);
  });
  if (report_events_) return status.ok() ? kExitOk : kExitFailed;
  return conclude(*report);
}

void BenchCommand::complain(const std::string& message) const {
  std::fprintf(stderr, "netsum bench %s: %s\n", app_->get_name().c_str(), message.c_str());
}

int BenchCommand::conclude(const BenchReport& report) const {
  if (json_) {
    std::printf("%s\n", report.to_json().dump(2).c_str());
  } else if (report.has_results()) {
    std::printf("%s\n", report.to_table().c_str());
  }
  for (const auto& [rank, message] : report.failures()) {
    complain("rank " + std::to_string(rank) + ": " + message);
  }
  if (!report.failures().empty()) return kExitFailed;
  return report.verified() ? kExitOk : kExitWrong;
}

int BenchCommand::run() {
  check_together();
  load_options();
  BenchReport report(settings_, options_.mtu, one_rank() ? options_.world_size : workers_, command_line_);
  if (one_rank()) return run_one_rank(&report);
  // So that no other process can join: the ranks read the token from their environment, which other users cannot read.
  if (options_.token.empty()) setenv(job_token_.variable.c_str(), random_token().c_str(), 1);
  if (const Status status = run_local_bench(local_bench(), &report); !status.ok()) {
    complain(status.to_string());
    return kExitFailed;
  }
  if (!trace_.empty()) {
    std::vector<std::string> parts;
    parts.reserve(static_cast<size_t>(workers_));
    for (int rank = 0; rank < workers_; ++rank) parts.push_back(trace_ + "." + std::to_string(rank));
    if (const Status merged = merge_traces(parts, trace_); !merged.ok()) {
      complain("--trace: " + merged.message());
      conclude(report);
      return kExitFailed;
    }
  }
  return conclude(report);
}

class BenchCommands final : public Subcommand {
 public:
  BenchCommands(CLI::App& root, const std::string& command_line) {
    CLI::App* bench = root.add_subcommand("bench", "Measure performance, and verify every result");
    bench->require_subcommand(1);
    bench->footer("Examples:\n  netsum bench allreduce --workers 4\n  netsum bench allreduce --help");
    for (const BenchCollectiveInfo& info : bench_collectives())
      commands_.push_back(std::make_unique<BenchCommand>(*bench, info, command_line));
  }
  bool chosen() const override { return command() != nullptr; }
  int run() override { return command()->run(); }

 private:
  BenchCommand* command() const {
    const auto found =
        std::find_if(commands_.begin(), commands_.end(), [](const auto& one) { return one->chosen(); });
    return found == commands_.end() ? nullptr : found->get();
  }

  std::vector<std::unique_ptr<BenchCommand>> commands_;  // options refer to their members
};

}  // namespace

std::unique_ptr<Subcommand> make_bench_command(CLI::App& root, std::string command_line) {
  return std::make_unique<BenchCommands>(root, command_line);
}

}  // namespace netsum::tool
