// netsum status: what aggregators are doing, live.
#include <unistd.h>

#include <cstdio>
#include <map>
#include <optional>

#include "src/base/clock.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/status_view.h"
#include "tools/netsum/stop_signals.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

using std::chrono::milliseconds;

constexpr char kStatusExamples[] =
    "Examples:\n"
    "  netsum status --aggregator 10.0.0.9:5151          live, until Ctrl-C\n"
    "  netsum status --once                              one report, of NETSUM_AGGREGATOR\n"
    "  netsum status --once --json | jq '.aggregators[0].jobs[].waiting_for'\n"
    "\n"
    "Rates are averages over the last --interval. LATE has the ranks that sums wait for.\n"
    "Exit status: 0 every aggregator answered (or Ctrl-C); 2 bad flags; 3 --once: one did not answer.";

// What an aggregator said last, and when.
struct Look {
  RemoteStatus status;
  int64_t at_us = 0;
};

class StatusCommand : public Subcommand {
 public:
  explicit StatusCommand(CLI::App& root);
  bool chosen() const override { return app_->parsed(); }
  int run() override;

 private:
  Json look(const std::string& address);
  void show(const Json& reports) const;

  CLI::App* app_;
  std::vector<std::string> aggregators_;
  milliseconds interval_{1000};
  milliseconds timeout_{5000};
  TokenFlag token_{"--token-file", "NETSUM_AGGREGATOR_TOKEN", ""};
  TlsFlags tls_;
  bool once_ = false;
  bool json_ = false;

  std::string token_text_;
  TlsOptions tls_options_;
  std::map<std::string, Look> before_;
};

StatusCommand::StatusCommand(CLI::App& root) {
  app_ = root.add_subcommand("status", "Show jobs, members, rates and late ranks of aggregators");
  add_parsed(*app_, "--aggregator", aggregators_, parse_addresses, "Aggregators, host:port[,host:port...]")
      ->envname("NETSUM_AGGREGATOR");
  app_->add_flag("--once", once_, "Print one report over one interval, and exit");
  add_parsed(*app_, "--interval", interval_, parse_duration,
             "Time between reports, over which rates are averaged")
      ->default_str("1s");
  add_parsed(*app_, "--timeout", timeout_, parse_duration, "Timeout of each query")->default_str("5s");
  token_.declare(*app_, "File with the token that the aggregators require");
  tls_.declare_client(*app_);
  app_->add_flag("--json", json_, "Print each report as one JSON object per line");
  app_->footer(kStatusExamples);
}

Json StatusCommand::look(const std::string& address) {
  Result<RemoteStatus> status = query_status(address, token_text_, tls_options_, timeout_);
  if (!status.ok()) {
    before_.erase(address);
    return status_failure(address, status.status());
  }
  const int64_t now_us = monotonic_us();
  const auto found = before_.find(address);
  const Look now{std::move(status).value(), now_us};
  const Look& then = found == before_.end() ? now : found->second;
  Json report =
      status_report(address, then.status, now.status, static_cast<double>(now_us - then.at_us) * 1e-6);
  before_[address] = now;
  return report;
}

void StatusCommand::show(const Json& reports) const {
  if (json_) {
    const Json line = {{"aggregators", reports}};
    std::printf("%s\n", line.dump(-1, ' ', true, Json::error_handler_t::replace).c_str());
  } else {
    // On a terminal each report takes the place of the one before.
    if (!once_ && isatty(STDOUT_FILENO) != 0) std::printf("\033[H\033[2J");
    for (const Json& report : reports) std::printf("%s\n", status_text(report).c_str());
  }
  std::fflush(stdout);
}

int StatusCommand::run() {
  if (aggregators_.empty()) {
    throw UsageError(
        "--aggregator host:port is needed, or the variable NETSUM_AGGREGATOR; of a plan, the address of a "
        "line 'sum'");
  }
  token_text_ = token_.load();
  tls_options_ = tls_.load();
  // Taken by waiting for them, so that Ctrl-C ends between two reports and not within one.
  const StopSignals stop;
  for (const std::string& address : aggregators_) look(address);  // rates need a look before
  while (stop.wait(interval_) == 0) {
    Json reports = Json::array();
    bool all_answered = true;
    for (const std::string& address : aggregators_) {
      reports.push_back(look(address));
      all_answered &= reports.back().at("ok").get<bool>();
    }
    show(reports);
    if (once_) return all_answered ? kExitOk : kExitFailed;
  }
  return kExitOk;
}

}  // namespace

std::unique_ptr<Subcommand> make_status_command(CLI::App& root) {
  return std::make_unique<StatusCommand>(root);
}

}  // namespace netsum::tool
