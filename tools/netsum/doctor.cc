// netsum doctor: checks a machine and the ways to its group, and says what to change.
#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "netsum/aggregator.h"
#include "netsum/version.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/log.h"
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
  std::string aggregators_;
  std::string peers_;
  std::string serve_;
  std::string serve_for_ = "10m";
  std::string timeout_ = "5s";
  int mtu_ = 1500;
  std::string packet_io_ = "udp";
  TokenFlag token_{"--token-file", "NETSUM_AGGREGATOR_TOKEN", ""};
  TlsFlags tls_;
  bool json_ = false;
};

DoctorCommand::DoctorCommand(CLI::App& root) {
  app_ = root.add_subcommand("doctor",
                             "Check this machine and its path to aggregators and ranks, and suggest changes");
  app_->add_option("--aggregator", aggregators_,
                   "Also check the path to these aggregators, host:port[,host:port...]")
      ->envname("NETSUM_AGGREGATOR")
      ->check(host_port_list());
  app_->add_option("--peer", peers_, "Also check the path to these hosts, which run --serve, host:port[,...]")
      ->check(host_port_list());
  CLI::Option* serve =
      app_->add_option("--serve", serve_, "Answer other hosts' checks at this address")->check(host_port());
  app_->add_option("--serve-for", serve_for_, "How long --serve runs")
      ->check(duration())
      ->capture_default_str()
      ->needs(serve);
  app_->add_option("--mtu", mtu_, "Size of the packets that must pass, in bytes")
      ->check(CLI::Range(576, 9000))
      ->capture_default_str();
  app_->add_option("--packet-io", packet_io_,
                   "af_xdp: also try AF_XDP on the path, which briefly attaches an XDP program")
      ->envname("NETSUM_PACKET_IO")
      ->check(CLI::IsMember({"udp", "af_xdp"}))
      ->capture_default_str();
  app_->add_option("--timeout", timeout_, "Timeout of each step of a check")
      ->check(duration())
      ->capture_default_str();
  token_.declare(*app_, "File with the token that the aggregator requires");
  tls_.declare_client(*app_);
  app_->add_flag("--json", json_, "Print one JSON object");
  app_->footer(kExamples);
}

// A peer answers with a small aggregator of its own, so the check takes the very paths that the shards take.
int DoctorCommand::serve() const {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
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
  const int64_t limit_ms = parse_duration_ms(serve_for_).value();
  const timespec limit = {limit_ms / 1000, (limit_ms % 1000) * 1'000'000};
  sigtimedwait(&stop, nullptr, &limit);
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
  GroupCheck check;
  check.aggregator_token = token_.load();
  check.tls = tls_.load();
  check.mtu = mtu_;
  check.af_xdp = packet_io_ == "af_xdp";
  check.timeout = milliseconds(parse_duration_ms(timeout_).value());
  std::vector<Finding> findings = check_machine();
  std::vector<std::string> addresses = split_list(aggregators_);
  for (const std::string& peer : split_list(peers_)) addresses.push_back(peer);
  for (const std::string& address : addresses) {
    check.address = address;
    for (Finding& finding : check_group(check)) findings.push_back(std::move(finding));
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
