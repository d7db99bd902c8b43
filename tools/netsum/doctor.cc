// netsum doctor: checks a machine and the paths to the others of its job, and says what to change.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>

#include "netsum/aggregator.h"
#include "netsum/version.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/doctor_rates.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/log.h"
#include "tools/netsum/plan_file.h"
#include "tools/netsum/rate_agent.h"
#include "tools/netsum/rate_flow.h"
#include "tools/netsum/stop_signals.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

using std::chrono::milliseconds;

constexpr char kDoctorExamples[] =
    "Examples:\n"
    "  netsum doctor                                   this machine\n"
    "  netsum doctor --devices                         and accelerators, as PyTorch sees them\n"
    "  netsum doctor --aggregator 10.0.0.9:5151        and the path to an aggregator\n"
    "  netsum doctor --aggregator 10.0.0.9:5151 --mtu 9000 --json\n"
    "  netsum doctor --aggregator 10.0.0.9:5151 --verify both\n"
    "                                                  and whether its sums are right\n"
    "  netsum doctor --aggregator 10.0.0.9:5151 --pace 9gbit\n"
    "                                                  and whether pacing gains\n"
    "  netsum doctor --aggregator 10.0.0.9:5151 --faults\n"
    "                                                  which link of its jobs loses packets\n"
    "  netsum doctor --aggregator 10.0.0.9:5151 --faults --topology network.yaml\n"
    "                                                  which link between the switches\n"
    "  netsum doctor --serve 10.0.0.1:5150             on one rank's host: answer another's checks\n"
    "  netsum doctor --peer 10.0.0.1:5150              on another's: check the path to the first\n"
    "  netsum doctor --serve-rates 10.0.0.1:5150       on every host: take part in measurements of rates\n"
    "  netsum doctor --rates 10.0.0.1:5150,10.0.0.2:5150 --spare-hosts 10.0.0.9:5150\n"
    "                                                  anywhere: measure the rates of their links\n"
    "  netsum doctor --rates ... --json > rates.json && netsum plan rates.json\n"
    "\n"
    "Measurements of rates fill the links of all hosts for --measure-time each: do not run them beside a "
    "job.\n"
    "Exit status: 0 nothing failed (warnings allowed); 1 a check failed; 2 bad flags;\n"
    "3 --serve or --serve-rates could not start, or rates could not be measured.";

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
  int serve_rates() const;
  int measure() const;
  void declare_rates();
  void print(const std::vector<Finding>& findings) const;

  CLI::App* app_;
  std::vector<std::string> aggregators_, peers_;
  GroupCheck check_;
  uint64_t pace_bps_ = 0;
  std::string serve_;
  milliseconds serve_for_{600'000};
  std::string serve_rates_;
  RatesCheck rates_;
  bool faults_ = false;
  std::string topology_;  // file
  milliseconds over_{0};
  bool devices_ = false;
  std::string python_;
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
  app_->add_option("--serve", serve_, "Answer other hosts' checks at this address")->check(host_port());
  app_->add_flag(
          "--faults", faults_,
          "Instead: which links or ranks of the jobs at --aggregator are at fault, and what to look at")
      ->excludes("--serve")
      ->excludes("--peer");
  CLI::Option* topology =
      app_->add_option("--topology", topology_,
                       "With --faults: the network's hosts, switches and links, as for netsum plan;\n"
                       "which of the links between switches loses packets")
          ->needs("--faults");
  add_parsed(*app_, "--over", over_, parse_duration,
             "With --topology: only by what is lost in this time, not since the job began")
      ->default_str("0s")
      ->needs(topology);
  CLI::Option* devices = app_->add_flag(
      "--devices", devices_, "Also check the accelerators that PyTorch sees, and how their tensors travel");
  app_->add_option("--python", python_, "The interpreter that has PyTorch (the one beside this command)")
      ->needs(devices);
  declare_rates();
  add_parsed(*app_, "--serve-for", serve_for_, parse_duration, "How long --serve and --serve-rates run")
      ->default_str("10m");
  app_->add_option("--mtu", check_.mtu, "Size of the packets that must pass, in bytes")
      ->check(CLI::Range(576, 9000))
      ->capture_default_str();
  add_choice(*app_, "--packet-io", check_.af_xdp, {{"udp", false}, {"af_xdp", true}},
             "With af_xdp, also try AF_XDP on the path, which briefly attaches an XDP program")
      ->envname("NETSUM_PACKET_IO");
  add_choice(*app_, "--verify", check_.verify,
             std::map<std::string, std::optional<Verify>>(kVerifyModes.begin(), kVerifyModes.end()),
             "Also sum numbers of two ranks at the aggregators and check the sums, in a job of this mode")
      ->envname("NETSUM_VERIFY");
  add_parsed(*app_, "--pace", pace_bps_, parse_rate,
             "Also sum at the aggregators with this pace and without, and recommend NETSUM_PACE if it gains");
  add_parsed(*app_, "--timeout", check_.timeout, parse_duration, "Timeout of each step of a check")
      ->default_str("5s");
  token_.declare(*app_, "File with the token that the aggregator requires");
  tls_.declare_client(*app_);
  app_->add_flag("--json", json_, "Print one JSON object");
  app_->footer(kDoctorExamples);
}

void DoctorCommand::declare_rates() {
  CLI::Option* serve =
      app_->add_option("--serve-rates", serve_rates_,
                       "Take part in measurements of rates: send and receive at this address")
          ->check(host_port())
          ->excludes("--serve");
  CLI::Option* rates =
      add_parsed(*app_, "--rates", rates_.hosts, parse_addresses,
                 "Measure the rates of the links of these hosts, which run --serve-rates,\n"
                 "host:port,host:port[,...]: each pair, and all others to and from each host")
          ->excludes(serve)
          ->excludes("--serve");
  add_parsed(*app_, "--spare-hosts", rates_.spares, parse_addresses,
             "Also measure these, which have no ranks, and list them as places")
      ->needs(rates);
  add_parsed(*app_, "--measure-time", rates_.time, parse_duration,
             "Duration of each measurement, 100ms to 10s")
      ->default_str("1s")
      ->needs(rates);
  add_parsed(*app_, "--deadline", rates_.deadline, parse_duration, "Time limit of all measurements together")
      ->default_str("10m")
      ->needs(rates);
}

int DoctorCommand::serve_rates() const {
  const StopSignals stop;
  const Result<std::unique_ptr<RateAgent>> started = RateAgent::start(serve_rates_, token_.load());
  if (!started.ok()) {
    std::fprintf(stderr, "netsum doctor: --serve-rates %s: %s\n", serve_rates_.c_str(),
                 started.status().to_string().c_str());
    return kExitFailed;
  }
  std::printf("ready: measure with netsum doctor --rates %s,...\n", started.value()->address().c_str());
  std::fflush(stdout);
  stop.wait(serve_for_);
  return kExitOk;
}

// Nothing is printed to standard output unless every measurement has succeeded.
int DoctorCommand::measure() const {
  RatesCheck check = rates_;
  check.token = token_.load();
  check.mtu = check_.mtu;
  check.timeout = check_.timeout;
  if (check.time < kMinRateTime || check.time > kMaxRateTime)
    throw UsageError("--measure-time " + format_duration(check.time) + " is not from 100 ms to 10 s");
  if (const Status status = check_rates_request(check); !status.ok())
    throw UsageError("--rates: " + status.message());
  const StopSignals signals;
  std::fprintf(stderr, "netsum doctor: %zu measurements of %s, each with full links\n", check.steps(),
               format_duration(check.time).c_str());
  std::future<Result<RateSurvey>> measured =
      std::async(std::launch::async, [&check] { return measure_rates(check); });
  while (measured.wait_for(milliseconds(0)) != std::future_status::ready) {
    if (signals.wait(milliseconds(50)) == 0) continue;
    std::fprintf(stderr, "netsum doctor: --rates: interrupted; nothing was measured in full, run it again\n");
    // The agents stop when their connections close.
    std::_Exit(kExitFailed);
  }
  const Result<RateSurvey> survey = measured.get();
  if (!survey.ok()) {
    std::fprintf(stderr, "netsum doctor: --rates: %s\n", survey.status().to_string().c_str());
    return kExitFailed;
  }
  std::printf("%s", json_ ? (survey->json().dump(2) + "\n").c_str() : survey->text().c_str());
  return kExitOk;
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
  if (!serve_rates_.empty()) return serve_rates();
  if (!rates_.hosts.empty()) return measure();
  check_.aggregator_token = token_.load();
  check_.tls = tls_.load();
  check_.pace_bps = static_cast<double>(pace_bps_);
  if (pace_bps_ > 0 && (faults_ || aggregators_.empty()))
    throw UsageError(
        "--pace: give --aggregator host:port, or the variable NETSUM_AGGREGATOR, without --faults");
  if (faults_ && aggregators_.empty())
    throw UsageError(
        "--faults: --aggregator host:port is needed, or the variable NETSUM_AGGREGATOR; of a plan, the "
        "address of a line 'sum'");
  std::vector<Finding> findings;
  if (!faults_) findings = check_machine();
  if (devices_)
    for (Finding& finding : check_devices(python_)) findings.push_back(std::move(finding));
  std::vector<std::string> addresses = aggregators_;
  addresses.insert(addresses.end(), peers_.begin(), peers_.end());
  if (!topology_.empty()) {
    findings = check_paths(check_, addresses, load_graph(topology_), over_);
    addresses.clear();
  }
  for (const std::string& address : addresses) {
    check_.address = address;
    for (Finding& finding : faults_ ? check_links(check_) : check_group(check_))
      findings.push_back(std::move(finding));
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
