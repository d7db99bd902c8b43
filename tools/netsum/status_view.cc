#include "tools/netsum/status_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/base/text.h"

namespace netsum::tool {
namespace {

constexpr uint64_t kNoticeableWaitMs = 250;
constexpr double kNoticeableShare = 0.05;

uint64_t counter(const AggregatorStatus& status, const std::string& name) {
  for (const AggregatorCounter& one : status.counters) {
    if (one.name == name) return one.value;
  }
  return 0;
}

uint64_t all_drops(const AggregatorStatus& status) {
  uint64_t sum = 0;
  for (const AggregatorCounter& one : status.counters) {
    if (one.name.starts_with("drop_")) sum += one.value;
  }
  return sum;
}

// Per second; 0 where a restart has set the counter back.
double rate(uint64_t before, uint64_t now, double seconds) {
  return now < before || seconds <= 0 ? 0 : static_cast<double>(now - before) / seconds;
}

double gbits(double bytes_per_s) {
  return bytes_per_s * 8e-9;
}

Json job_report(const AggregatorJobStatus& before, const AggregatorJobStatus& now, double seconds) {
  const double sums = rate(before.sums, now.sums, seconds);
  Json late = Json::array();
  for (size_t rank = 0; rank < std::min(now.waited_ms.size(), before.waited_ms.size()); ++rank) {
    const double share = std::min(1.0, rate(before.waited_ms[rank], now.waited_ms[rank], seconds) * 1e-3);
    if (share >= kNoticeableShare) late.push_back({{"rank", rank}, {"share", share}});
  }
  std::sort(late.begin(), late.end(),
            [](const Json& a, const Json& b) { return a.at("share") > b.at("share"); });
  Json faults = Json::array();
  for (const AggregatorJobStatus::Fault& fault : now.faults)
    faults.push_back({{"ranks", fault.ranks},
                      {"kind", fault.kind},
                      {"value", fault.value},
                      {"others", fault.others},
                      {"cause", fault.cause}});
  Json paths = Json::array();
  for (const AggregatorJobStatus::Path& path : now.paths)
    paths.push_back({{"ranks", path.ranks},
                     {"shard", path.shard},
                     {"kept_to", path.kept_to},
                     {"lost_to", path.lost_to},
                     {"kept_from", path.kept_from},
                     {"lost_from", path.lost_from}});
  Json members = Json::array();
  for (const int rank : now.joined) {
    const auto index = static_cast<size_t>(rank);
    members.push_back({{"rank", rank}, {"host", index < now.hosts.size() ? now.hosts[index] : ""}});
  }
  return {{"name", now.name},
          {"state", now.state},
          {"world_size", now.world_size},
          {"members", members},
          {"age_ms", now.age_ms},
          {"sums", now.sums},
          {"sums_per_s", sums},
          {"gradient_gbits_per_s", gbits(sums * now.payload_bytes)},
          {"slots", now.slots},
          {"open_slots", now.open_slots},
          {"delivery", now.delivery},
          {"plan", now.plan},
          {"verify", now.verify},
          {"waiting_for", now.waiting_for},
          {"waiting_ms", now.waiting_ms},
          {"faults", faults},
          {"paths", paths},
          {"hangs", now.hangs},
          {"away", now.away},
          {"late", late}};
}

const AggregatorJobStatus& same_job(const AggregatorStatus& before, const AggregatorJobStatus& now) {
  for (const AggregatorJobStatus& job : before.jobs) {
    // An older one under that name is another job.
    if (job.name == now.name && job.age_ms <= now.age_ms) return job;
  }
  return now;
}

// For a terminal, whatever the aggregator has sent.
std::string printable_text(const Json& text) {
  return printable(text.get<std::string>());
}

std::string list_of(const Json& ranks) {
  std::string text;
  for (const Json& rank : ranks) text += (text.empty() ? "" : ", ") + rank.dump();
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string for_long(uint64_t ms) {
  return ms < 10'000 ? fmt::format("{:.1f} s", static_cast<double>(ms) * 1e-3)
                     : fmt::format("{} s", ms / 1000);
}

std::string trouble_of(const Json& job) {
  const uint64_t waiting_ms = job.at("waiting_ms");
  const bool joining = job.at("state") == "joining";
  if (!job.at("waiting_for").empty() && (joining || waiting_ms >= kNoticeableWaitMs)) {
    return fmt::format("waits for {} since {}", list_of(job.at("waiting_for")), for_long(waiting_ms));
  }
  std::string text;
  for (const Json& one : job.at("late")) {
    text += fmt::format("{}rank {} late {:.0f} % of the time", text.empty() ? "" : ", ",
                        one.at("rank").get<int>(), one.at("share").get<double>() * 100);
  }
  return text.empty() ? "-" : text;
}

// Such as "2 wrong_sum, 1 peer_lost"; empty: none has failed.
std::string failed_jobs_of(const Json& counters) {
  constexpr std::string_view kPrefix = "jobs_failed_";
  std::string text;
  for (const auto& [name, value] : counters.items()) {
    if (!name.starts_with(kPrefix) || value == 0) continue;
    text += (text.empty() ? "" : ", ") + value.dump() + " " + printable(name.substr(kPrefix.size()));
  }
  return text;
}

}  // namespace

Json bursts_json(const Bursts& bursts) {
  return {{"backlog_bytes", bursts.backlog_bytes},
          {"bytes", bursts.bytes},
          {"largest_ms_bytes", bursts.largest_ms_bytes},
          {"largest_10ms_bytes", bursts.largest_10ms_bytes},
          {"milliseconds", bursts.milliseconds}};
}

std::string fault_text(const Json& fault) {
  const std::string kind = fault.at("kind");
  const std::string ranks = list_of(fault.at("ranks"));
  const double value = fault.at("value"), others = fault.at("others");
  if (kind == "slow") {
    const std::string cause = fault.value("cause", "");
    return fmt::format("{}: late all through operations, by {:.2f} ms, the others by {:.2f} ms: {}", ranks,
                       value * 1e3, others * 1e3,
                       cause == "host"   ? "its processor, for which packets wait in its sockets"
                       : cause == "link" ? "its link"
                                         : "link or processor");
  }
  return fmt::format("link of {}, {} the aggregator: loses {:.2f} % of its packets, the others {:.2f} %",
                     ranks, kind == "loss_to_aggregator" ? "to" : "from", value * 100, others * 100);
}

Json status_report(const std::string& address, const RemoteStatus& before, const RemoteStatus& now,
                   double seconds) {
  const AggregatorStatus& a = before.status;
  const AggregatorStatus& b = now.status;
  const auto rate_of = [&](const char* name) { return rate(counter(a, name), counter(b, name), seconds); };
  Json counters = Json::object();
  for (const AggregatorCounter& one : b.counters) counters[one.name] = one.value;
  Json jobs = Json::array();
  for (const AggregatorJobStatus& job : b.jobs) jobs.push_back(job_report(same_job(a, job), job, seconds));
  Json ports = Json::array();
  for (size_t i = 0; i < b.ports.size(); ++i) {
    const AggregatorPortStatus& now_of = b.ports[i];
    const AggregatorPortStatus& old = i < a.ports.size() ? a.ports[i] : now_of;
    ports.push_back(
        {{"address", now_of.address},
         {"link_gbits_per_s", gbits(now_of.link_rate_bps / 8)},
         {"received_gbits_per_s", gbits(rate(old.bytes_received, now_of.bytes_received, seconds))},
         {"sent_gbits_per_s", gbits(rate(old.bytes_sent, now_of.bytes_sent, seconds))},
         {"bytes_received", now_of.bytes_received},
         {"bytes_sent", now_of.bytes_sent},
         {"received", bursts_json(now_of.received)},
         {"sent", bursts_json(now_of.sent)}});
  }
  return {{"address", address},
          {"ok", true},
          {"version", b.version},
          {"dataplane", now.dataplane},
          {"data_addresses", b.data_addresses},
          {"ports", ports},
          {"draining", b.draining},
          {"verify_modes", b.verify_modes},
          {"round_trip_us", now.round_trip_us},
          {"slots_per_core", b.slots_per_core},
          {"slots_in_use", b.slots_per_core - std::min(b.slots_free, b.slots_per_core)},
          {"seconds", seconds},
          {"packets_received_per_s", rate_of("packets_received")},
          {"packets_sent_per_s", rate_of("packets_sent")},
          {"received_gbits_per_s", gbits(rate_of("bytes_received"))},
          {"sent_gbits_per_s", gbits(rate_of("bytes_sent"))},
          {"dropped_per_s", rate(all_drops(a), all_drops(b), seconds)},
          {"results_repeated_per_s", rate_of("results_repeated")},
          {"jobs", jobs},
          {"counters", counters}};
}

Json status_failure(const std::string& address, const Status& status) {
  return {{"address", address},
          {"ok", false},
          {"code", error_name(status.code())},
          {"message", status.message()}};
}

std::string status_text(const Json& report) {
  const std::string address = report.at("address");
  if (!report.at("ok").get<bool>()) return address + "  " + printable_text(report.at("message")) + "\n";
  std::string text = fmt::format(
      "{}  netsum {}, {}{}, {} of {} slots in use\n", address, printable_text(report.at("version")),
      printable_text(report.at("dataplane")), report.at("draining").get<bool>() ? ", draining" : "",
      report.at("slots_in_use").get<uint32_t>(), report.at("slots_per_core").get<uint32_t>());
  text += fmt::format(
      "  in {:.0f} packets/s, {:.3f} Gbit/s; out {:.0f} packets/s, {:.3f} Gbit/s; refused {:.0f}/s, "
      "repeated {:.0f}/s\n",
      report.at("packets_received_per_s").get<double>(), report.at("received_gbits_per_s").get<double>(),
      report.at("packets_sent_per_s").get<double>(), report.at("sent_gbits_per_s").get<double>(),
      report.at("dropped_per_s").get<double>(), report.at("results_repeated_per_s").get<double>());
  // One port has what the aggregator has.
  for (const Json& port : report.at("ports").size() > 1 ? report.at("ports") : Json::array()) {
    const double link = port.at("link_gbits_per_s");
    text +=
        fmt::format("  port {}{}: in {:.3f} Gbit/s, out {:.3f} Gbit/s\n", printable_text(port.at("address")),
                    link > 0 ? fmt::format(", {:.4g} Gbit/s", link) : "",
                    port.at("received_gbits_per_s").get<double>(), port.at("sent_gbits_per_s").get<double>());
  }
  if (const std::string failed = failed_jobs_of(report.at("counters")); !failed.empty())
    text += "  jobs failed since it started: " + failed + "\n";
  if (report.at("jobs").empty()) return text + "  no jobs\n";
  text += fmt::format("  {:<24} {:<8} {:>8} {:>8} {:>10} {:>9}  {}\n", "JOB", "STATE", "MEMBERS", "AGE",
                      "SUMS/S", "GBIT/S", "LATE");
  for (const Json& job : report.at("jobs")) {
    const std::string state = printable_text(job.at("state"));
    text += fmt::format("  {:<24} {:<8} {:>8} {:>8} {:>10.0f} {:>9.3f}  {}\n", printable_text(job.at("name")),
                        state.substr(0, state.find(':')),
                        fmt::format("{}/{}", job.at("members").size(), job.at("world_size").get<int>()),
                        for_long(job.at("age_ms").get<uint64_t>()), job.at("sums_per_s").get<double>(),
                        job.at("gradient_gbits_per_s").get<double>(), trouble_of(job));
    std::string members;
    for (const Json& member : job.at("members")) {
      members += fmt::format(" {}={}", member.at("rank").get<int>(), printable_text(member.at("host")));
    }
    if (!members.empty()) text += "    ranks" + members + "\n";
    for (const Json& fault : job.at("faults")) text += "    " + fault_text(fault) + "\n";
    for (const Json& hang : job.at("hangs")) text += "    " + printable_text(hang) + "\n";
    if (!job.at("away").empty())
      text += "    shares are away from bad links or slow hosts: " + list_of(job.at("away")) + "\n";
    if (const std::string plan = printable_text(job.at("plan")); !plan.empty()) text += "    " + plan + "\n";
    if (const std::string verify = printable_text(job.at("verify")); !verify.empty() && verify != "packet")
      text += "    the ranks verify every sum (verify: " + verify + ")\n";
    if (state.find(':') != std::string::npos) text += "    " + state + "\n";
  }
  return text;
}

}  // namespace netsum::tool
