// netsum bursts: how bursty logged traffic is, and what backlog it needs.
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "src/base/text.h"
#include "src/control/client.h"
#include "tools/netsum/burst_report.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/status_view.h"
#include "tools/netsum/stop_signals.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

constexpr char kBurstsExamples[] =
    "Examples:\n"
    "  netsum bursts packets.jsonl\n"
    "  netsum bursts packets.jsonl --rate 10gbit --page bursts.html\n"
    "  tcpdump -i eth0 -s 96 -w eth0.pcap udp && netsum bursts eth0.pcap\n"
    "  netsum bursts eth0.pcap --filter 'udp and dst host 10.0.0.9' --by source --rate 100mbit\n"
    "  netsum bursts eth0.pcap --split --json | jq '.streams[].backlog'\n"
    "  netsum bursts --rack demo --for 10s --rate 100mbit   every frame on the links of a virtual rack, as "
    "root\n"
    "  netsum bursts eth0.pcap --perfetto trace.json        its rates beside the operations of --trace\n"
    "  netsum bursts --live --aggregator 10.0.0.9:5151      what each port of an aggregator has seen since "
    "start\n"
    "\n"
    "A log has a packet on each line:\n"
    "  {\"t\": 1000, \"bytes\": 1514, \"port\": \"eth0\", \"dir\": \"in\"}\n"
    "t: nanoseconds of any clock that does not step, when its last bit came; bytes: of the frame. port and "
    "dir may be\n"
    "missing; \"packets\": n stands for n packets that came together.\n"
    "\n"
    "docs/results.md says what the figures mean.\n"
    "Exit status: 0 done; 2 the file or the command line is wrong; 3 the page cannot be written, the rack "
    "cannot\n"
    "be captured, or the aggregator does not answer.";

std::string port_text(const std::string& name, double rate_bps, const Bursts& bursts) {
  std::string text = fmt::format("{}: {} bytes, at most {} in a millisecond and {} in ten\n", name,
                                 bursts.bytes, bursts.largest_ms_bytes, bursts.largest_10ms_bytes);
  if (bursts.backlog_bytes.empty())
    return text + "  the rate of the link is unknown: give it to the aggregator as --link-rate\n";
  text += fmt::format("  {:>14}  {:>18}\n", "served at", "backlog in bytes");
  const size_t rates = bursts.backlog_bytes.size();
  for (size_t i = 0; i < rates; ++i)
    text += fmt::format("  {:>14}  {:>18}\n",
                        format_rate(static_cast<uint64_t>(rate_bps * static_cast<double>(i + 1) /
                                                          static_cast<double>(rates))),
                        bursts.backlog_bytes[i]);
  return text;
}

class BurstsCommand : public Subcommand {
 public:
  explicit BurstsCommand(CLI::App& root) {
    app_ = root.add_subcommand(
        "bursts", "Show how bursty traffic is, and what backlog it needs, from a log or capture");
    CLI::Option* file =
        app_->add_option("file", file_, "Log of packets (JSON lines), or a capture (pcap, pcapng)");
    CLI::Option* live = app_->add_flag(
        "--live", live_, "Instead of a file: what the ports of an aggregator have seen since start");
    live->excludes(file);
    add_parsed(*app_, "--aggregator", aggregators_, parse_addresses, "Of --live: host:port[,host:port...]")
        ->envname("NETSUM_AGGREGATOR");
    app_->add_option("--rack", rack_,
                     "Instead of a file: capture the links of this virtual rack (netsum rack up --loss)")
        ->excludes(file)
        ->excludes(live);
    add_parsed(*app_, "--for", duration_, parse_duration, "Of --rack: how long, at most 10m")
        ->default_str("5s");
    add_parsed(*app_, "--timeout", timeout_, parse_duration, "Of --live: time to wait for the answer")
        ->default_str("5s");
    token_.declare(*app_, "Of --live: file with the token that the aggregator requires");
    tls_.declare_client(*app_);
    add_parsed(*app_, "--rate", options_.bits_per_s, parse_rate, "Rate of each port's link, such as 10gbit");
    add_microseconds("--gap-us", options_.gap_ns, "A burst ends where nothing comes for longer");
    add_microseconds("--bin-us", options_.bin_ns, "Width of bins, for periods and synchronised bins");
    app_->add_option("--filter", capture_.filter, "Of a capture: only these packets, in tcpdump's language");
    app_->add_option("--by", capture_.by, "Of a capture: a stream for each IP address that is its packets'")
        ->check(CLI::IsMember({"none", "source", "destination"}))
        ->capture_default_str();
    app_->add_option("--mtu", capture_.mtu,
                     "Of a capture: longer IP packets are units of segmentation offload")
        ->check(CLI::Range(576, 65535))
        ->capture_default_str();
    app_->add_flag("--split", capture_.split, "Of a capture: split such units into frames of this MTU");
    app_->add_flag("--json", json_, "Print the report as JSON");
    app_->add_option("--page,--html", page_, "Also write a page with curves to this file");
    app_->add_option(
            "--perfetto", trace_,
            "Also add the rates, as counter tracks, to this trace (netsum bench --trace), or make one")
        ->excludes(live);
    app_->footer(kBurstsExamples);
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    if (live_) return look();
    if (duration_ > std::chrono::minutes(10)) throw UsageError("--for: at most 10m");
    if (!rack_.empty()) {
      const StopSignals stop;
      const auto end = std::chrono::steady_clock::now() + duration_;
      bool begun = false;
      Result<BurstLog> log = capture_rack(rack_, [&] {
        if (!std::exchange(begun, true)) std::fprintf(stderr, "capturing; Ctrl-C shows what there is\n");
        return stop.wait(std::chrono::milliseconds(0)) == 0 && std::chrono::steady_clock::now() < end;
      });
      if (log.ok()) return show(burst_report("rack " + printable(rack_), std::move(log).value(), options_));
      std::fprintf(stderr, "netsum bursts: rack %s: %s\n", printable(rack_).c_str(),
                   log.status().to_string().c_str());
      return kExitFailed;
    }
    if (file_.empty()) throw UsageError("give a file, --live or --rack");
    return show(burst_report(printable(file_), load_burst_log(file_, capture_), options_));
  }

 private:
  int show(const BurstReport& report) const {
    const std::string text =
        json_ ? bursts_json(report).dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n"
              : bursts_text(report);
    print(text);
    const int status = page_.empty() ? kExitOk : write_file(page_, bursts_html(report));
    return status != kExitOk || trace_.empty() ? status : write_tracks(report, trace_);
  }

  static void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  int look() {
    if (aggregators_.empty())
      throw UsageError(
          "--live: --aggregator host:port is needed, or the variable NETSUM_AGGREGATOR; of a plan, the "
          "address of a line 'sum'");
    const std::string token = token_.load();
    const TlsOptions tls = tls_.load();
    std::string text;
    Json list = Json::array();
    for (const std::string& aggregator : aggregators_) {
      const Result<RemoteStatus> found = query_status(aggregator, token, tls, timeout_);
      if (!found.ok()) {
        std::fprintf(stderr, "netsum bursts: %s: %s\n", aggregator.c_str(),
                     printable(found.status().to_string()).c_str());
        return kExitFailed;
      }
      const std::vector<AggregatorPortStatus>& ports = found->status.ports;
      if (ports.empty()) text += aggregator + ": this dataplane does not count by port\n";
      for (const AggregatorPortStatus& port : ports) {
        text += port_text(printable(port.address) + " in", port.link_rate_bps, port.received);
        text += port_text(printable(port.address) + " out", port.link_rate_bps, port.sent);
        list.push_back({{"address", port.address},
                        {"link_rate_bps", port.link_rate_bps},
                        {"received", bursts_json(port.received)},
                        {"sent", bursts_json(port.sent)}});
      }
    }
    print(json_ ? Json{{"ports", list}}.dump(2, ' ', true, Json::error_handler_t::replace) + "\n" : text);
    return kExitOk;
  }

  void add_microseconds(const std::string& flag, int64_t& ns, const std::string& what) {
    app_->add_option_function<int64_t>(
            flag, [&ns](const int64_t& us) { ns = us * 1000; }, what)
        ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
        ->default_str(std::to_string(ns / 1000));
  }

  CLI::App* app_;
  std::string file_;
  CaptureOptions capture_;
  BurstOptions options_;
  bool json_ = false;
  std::string page_, trace_;
  bool live_ = false;
  std::vector<std::string> aggregators_;
  std::string rack_;
  std::chrono::milliseconds duration_{5000};
  std::chrono::milliseconds timeout_{5000};
  TokenFlag token_{"--token-file", "NETSUM_AGGREGATOR_TOKEN", ""};
  TlsFlags tls_;
};

}  // namespace

std::unique_ptr<Subcommand> make_bursts_command(CLI::App& root) {
  return std::make_unique<BurstsCommand>(root);
}

}  // namespace netsum::tool
