#include "tools/netsum/bench_local.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "src/net/address.h"
#include "tools/netsum/process.h"

namespace netsum::tool {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStartLimit{20'000};
constexpr milliseconds kEndLimit{10'000};
constexpr char kAggregatorKey[] = "NETSUM_AGGREGATOR=";

// A private aggregator of one run.
class PrivateAggregator {
 public:
  static Result<std::unique_ptr<PrivateAggregator>> start(int cores, int mtu, const std::string& parent) {
    std::vector<std::string> flags = {
        // All is on this machine: no link counts.
        "aggregator",          "--in-switch", "--listen",          "127.0.0.1:0", "--cores",
        std::to_string(cores), "--mtu",       std::to_string(mtu), "--log-level", "warn"};
    if (!parent.empty()) flags.insert(flags.end(), {"--parent", parent});
    Result<std::unique_ptr<ChildProcess>> started = ChildProcess::start(flags);
    if (!started.ok()) return started.status();
    std::unique_ptr<PrivateAggregator> aggregator(new PrivateAggregator(std::move(started).value()));
    ChildProcess* process = aggregator->process_.get();
    const auto deadline = std::chrono::steady_clock::now() + kStartLimit;
    while (!process->at_end() && std::chrono::steady_clock::now() < deadline) {
      ChildProcess::read_lines(std::span(&process, 1), milliseconds(100));
      while (const std::optional<std::string> line = process->next_line()) {
        const size_t key = line->find(kAggregatorKey);
        if (key == std::string::npos) continue;
        aggregator->address_ = line->substr(key + sizeof(kAggregatorKey) - 1);
        return aggregator;
      }
    }
    const bool ended = process->at_end();
    return Status(ErrorCode::kUnreachable,
                  "the private aggregator " +
                      (ended ? "did not start: " + process->wait(kEndLimit)
                             : "was not ready within " + std::to_string(kStartLimit.count() / 1000) + " s"));
  }

  const std::string& address() const { return address_; }

  double stop() {
    process_->signal(SIGTERM);
    process_->wait(kEndLimit);
    return process_->cpu_seconds();
  }

 private:
  explicit PrivateAggregator(std::unique_ptr<ChildProcess> process) : process_(std::move(process)) {}
  std::unique_ptr<ChildProcess> process_;
  std::string address_;
};

class LocalRun {
 public:
  LocalRun(const LocalBench& bench, BenchReport* report) : bench_(bench), report_(report) {}

  // `racks`: the aggregators of a hierarchy, one for each part of the ranks; empty: all ranks share
  // `aggregators`.
  Status run(const std::vector<std::string>& aggregators, const std::vector<std::string>& racks) {
    racks_ = racks;
    std::string list;
    for (const std::string& address : aggregators) list += (list.empty() ? "" : ",") + address;
    std::vector<std::string> meet;
    if (racks_.empty()) meet = {"--aggregator", list};
    if ((aggregators.empty() && racks_.empty()) || bench_.may_use_hosts) {
      // Rank 0 chooses a free port and reports it; the others are started with it.
      if (Status status = start_rank({"--aggregator", list, "--root", "127.0.0.1:0"}); !status.ok())
        return status;
      if (!wait_for_root()) return {};
      meet.insert(meet.end(), {"--root", root_});
    }
    while (static_cast<int>(ranks_.size()) < bench_.workers) {
      if (Status status = start_rank(meet); !status.ok()) return status;
    }
    while (!all_ended()) {
      if (!step(bench_.silence_limit)) {
        fail_the_silent();
        break;
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::string how = ranks_[rank]->wait(kEndLimit);
      if (!report_->has_ended(static_cast<int>(rank))) {
        report_->on_failure(static_cast<int>(rank), "the worker process ended early: " + how);
      }
    }
    if (bench_.show_progress) std::fprintf(stderr, "\r\033[K");
    return {};
  }

 private:
  Status start_rank(const std::vector<std::string>& meet) {
    std::vector<std::string> arguments = {"bench", bench_.collective, "--report-events"};
    arguments.insert(arguments.end(), bench_.worker_flags.begin(), bench_.worker_flags.end());
    arguments.insert(arguments.end(), meet.begin(), meet.end());
    const size_t rank = ranks_.size();
    if (!racks_.empty()) {
      // Consecutive ranks share a rack.
      const size_t rack = rank * racks_.size() / static_cast<size_t>(bench_.workers);
      arguments.insert(arguments.end(), {"--aggregator", racks_[rack]});
    }
    arguments.insert(arguments.end(),
                     {"--rank", std::to_string(rank), "--world-size", std::to_string(bench_.workers)});
    Result<std::unique_ptr<ChildProcess>> started = ChildProcess::start(arguments);
    if (!started.ok()) return started.status();
    ranks_.push_back(std::move(started).value());
    return {};
  }

  bool wait_for_root() {
    while (root_.empty() && !all_ended()) {
      if (!step(kStartLimit)) {
        report_->on_failure(0, "rank 0 did not open its control service in time");
        return false;
      }
    }
    if (root_.empty() && !report_->has_ended(0)) {
      report_->on_failure(0, "the worker process ended early: " + ranks_[0]->wait(kEndLimit));
    }
    return !root_.empty();
  }

  // Reads the ranks' reports. Returns false if there was none within `limit`.
  bool step(milliseconds limit) {
    std::vector<ChildProcess*> processes;
    for (const auto& rank : ranks_) processes.push_back(rank.get());
    if (!ChildProcess::read_lines(processes, limit)) return false;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      while (const std::optional<std::string> line = ranks_[rank]->next_line()) {
        take(static_cast<int>(rank), *line);
      }
    }
    return true;
  }

  void take(int rank, const std::string& line) {
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("event")) return;
    if (event.at("event") == "root") root_ = event.at("address");
    report_->on_event(rank, event);
    if (!bench_.show_progress) return;
    int done = bench_.total_iterations;
    for (int i = 0; i < bench_.workers; ++i) done = std::min(done, report_->iterations_done(i));
    std::fprintf(stderr, "\riteration %d of %d", done, bench_.total_iterations);
  }

  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->at_end(); });
  }

  void fail_the_silent() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (report_->has_ended(static_cast<int>(rank))) continue;
      report_->on_failure(static_cast<int>(rank), "nothing heard for " +
                                                      std::to_string(bench_.silence_limit.count() / 1000) +
                                                      " s; the worker process was killed");
      ranks_[rank]->signal(SIGKILL);
    }
  }

  const LocalBench& bench_;
  BenchReport* report_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  std::vector<std::string> racks_;
  std::string root_;
};

}  // namespace

Status run_local_bench(const LocalBench& bench, BenchReport* report) {
  std::vector<std::string> aggregators = bench.aggregators, racks;
  std::vector<std::unique_ptr<PrivateAggregator>> own;  // the first is the parent of the others
  for (int i = 0; bench.with_aggregator && i < 1 + bench.racks; ++i) {
    Result<std::unique_ptr<PrivateAggregator>> started =
        PrivateAggregator::start(bench.aggregator_cores, bench.mtu, i == 0 ? "" : own.front()->address());
    if (!started.ok()) return started.status();
    own.push_back(std::move(started).value());
    if (i > 0) racks.push_back(own.back()->address());
  }
  if (!own.empty()) aggregators = {own.front()->address()};
  Status status;
  {
    LocalRun run(bench, report);
    status = run.run(aggregators, racks);
  }
  double cpu_seconds = 0;
  while (!own.empty()) {
    cpu_seconds += own.back()->stop();
    own.pop_back();
  }
  if (bench.with_aggregator) report->set_aggregator_cpu_seconds(cpu_seconds);
  return status;
}

}  // namespace netsum::tool
