// netsum doctor: checks a machine and the ways to its group, and says what to change.
#include <algorithm>
#include <cstdio>

#include "netsum/aggregator.h"
#include "netsum/version.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/log.h"
#include "tools/netsum/stop_signals.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

using std::chrono::milliseconds;

constexpr char kExamples[] =
    "Examples:\n"
    "  netsum doctor                                   this machine\n"
    "  netsum doctor --aggregator 10.0.0.9:5151        and the path to an aggregator\n"
    "  netsum doctor --aggregator 10.0.0.9:5151 --mtu 9000 --json\n"
    "  netsum doctor --serve 10.0.0.1:5150             on one rank's host: answer another's checks\n"
    "  netsum doctor --peer 10.0.0.1:5150              on another's: check the path to the first\n"
    "\n"
    "Exit status: 0 nothing failed (warnings allowed); 1 a check failed; 2 bad flags;\n"
    "3 --serve could not start.";

const char* grade_name(Grade grade) {
  switch (grade) {
    case Grade::kOk:
      return "ok";
    case Grade::kWarn:
      return "warn";
    case Grade::kFail:
      return "fail";
  }
  return "fail";
}

class DoctorCommand : public Subcommand {
 public:
  explicit DoctorCommand(CLI::App& root);
  bool chosen() const override { return app_->parsed(); }
  int run() override;

 private:
  int serve() const;
  void print(const std::vector<Finding>& findings) const;

  CLI::App* app_;
  std::vector<std::string> aggregators_, peers_;
  GroupCheck check_;
  std::string serve_;
  milliseconds serve_for_{600'000};
  TokenFlag token_{"--token-file", "NETSUM_AGGREGATOR_TOKEN", ""};
  TlsFlags tls_;
  bool json_ = false;
};

DoctorCommand::DoctorCommand(CLI::App& root) {
  app_ = root.add_subcommand("doctor",
                             "Check this machine and its path to aggregators and ranks, and suggest changes");
  add_parsed(*app_, "--aggregator", aggregators_, parse_addresses,
             "Also check the path to these aggregators, host:port[,host:port...]")
      ->envname("NETSUM_AGGREGATOR");
  add_parsed(*app_, "--peer", peers_, parse_addresses,
             "Also check the path to these hosts, which run --serve, host:port[,...]");
  CLI::Option* serve =
      app_->add_option("--serve", serve_, "Answer other hosts' checks at this address")->check(host_port());
  add_parsed(*app_, "--serve-for", serve_for_, parse_duration, "How long --serve runs")
      ->default_str("10m")
      ->needs(serve);
  app_->add_option("--mtu", check_.mtu, "Size of the packets that must pass, in bytes")
      ->check(CLI::Range(576, 9000))
      ->capture_default_str();
  add_choice(*app_, "--packet-io", check_.af_xdp, {{"udp", false}, {"af_xdp", true}},
             "With af_xdp, also try AF_XDP on the path, which briefly attaches an XDP program")
      ->envname("NETSUM_PACKET_IO");
  add_parsed(*app_, "--timeout", check_.timeout, parse_duration, "Timeout of each step of a check")
      ->default_str("5s");
  token_.declare(*app_, "File with the token that the aggregator requires");
  tls_.declare_client(*app_);
  app_->add_flag("--json", json_, "Print one JSON object");
  app_->footer(kExamples);
}

// A peer answers with a small aggregator of its own, so the check takes the very paths that the shards take.
int DoctorCommand::serve() const {
  const StopSignals stop;
  AggregatorOptions options;
  options.listen = serve_;
  options.slots_per_core = 256;
  options.mtu = 9000;
  options.token = token_.load();
  const Result<std::unique_ptr<Aggregator>> started = Aggregator::start(options);
  if (!started.ok()) {
    std::fprintf(stderr, "netsum doctor: --serve %s: %s\n", serve_.c_str(),
                 started.status().to_string().c_str());
    return kExitFailed;
  }
  std::printf("ready: on the other host run: netsum doctor --peer %s\n",
              started.value()->control_address().c_str());
  std::fflush(stdout);
  stop.wait(serve_for_);
  return kExitOk;
}

void DoctorCommand::print(const std::vector<Finding>& findings) const {
  if (json_) {
    Json list = Json::array();
    for (const Finding& finding : findings) {
      list.push_back({{"grade", grade_name(finding.grade)},
                      {"subject", finding.subject},
                      {"found", finding.found},
                      {"advice", finding.advice}});
    }
    const bool failed = std::any_of(findings.begin(), findings.end(),
                                    [](const Finding& finding) { return finding.grade == Grade::kFail; });
    const Json report = {{"ok", !failed}, {"version", NETSUM_VERSION_STRING}, {"findings", list}};
    std::printf("%s\n", report.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return;
  }
  for (const Finding& finding : findings) {
    std::printf("%-4s  %s: %s\n", grade_name(finding.grade), finding.subject.c_str(), finding.found.c_str());
    if (!finding.advice.empty()) std::printf("      -> %s\n", finding.advice.c_str());
  }
}

int DoctorCommand::run() {
  if (!serve_.empty()) return serve();
  check_.aggregator_token = token_.load();
  check_.tls = tls_.load();
  std::vector<Finding> findings = check_machine();
  std::vector<std::string> addresses = aggregators_;
  addresses.insert(addresses.end(), peers_.begin(), peers_.end());
  for (const std::string& address : addresses) {
    check_.address = address;
    for (Finding& finding : check_group(check_)) findings.push_back(std::move(finding));
  }
  print(findings);
  const bool failed = std::any_of(findings.begin(), findings.end(),
                                  [](const Finding& finding) { return finding.grade == Grade::kFail; });
  return failed ? kExitWrong : kExitOk;
}

}  // namespace

std::unique_ptr<Subcommand> make_doctor_command(CLI::App& root) {
  return std::make_unique<DoctorCommand>(root);
}

}  // namespace netsum::tool
