#include "tools/netsum/bench_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "netsum/version.h"
#include "src/kernels/kernels.h"
#include "tools/measure/machine.h"

namespace netsum::tool {
namespace {

constexpr double kMiB = 1 << 20;

// Nearest rank: the smallest time that at least `percent` of the iterations did not pass.
int64_t percentile(const std::vector<int64_t>& sorted, int percent) {
  const size_t rank = (sorted.size() * static_cast<size_t>(percent) + 99) / 100;
  return sorted[std::max<size_t>(rank, 1) - 1];
}

// Of two in the middle, half-way between them.
double median_of_sorted(const std::vector<int64_t>& sorted) {
  const size_t middle = sorted.size() / 2;
  if (sorted.size() % 2 == 1) return static_cast<double>(sorted[middle]);
  return static_cast<double>(sorted[middle - 1] + sorted[middle]) / 2;
}

Json machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu_model},
          {"cores", machine.cores},
          {"memory_bytes", machine.memory_bytes},
          {"kernel", machine.kernel}};
}

}  // namespace

void BenchReport::on_event(int rank, const Json& event) {
  const std::string kind = event.at("event");
  if (kind == "end" && event.contains("summed_by"))
    summed_by_ = event.at("summed_by");  // shares have changed
  if (kind == "joined" && summed_by_.empty()) {
    summed_by_ = event.at("summed_by");
  } else if (kind == "iteration") {
    Iteration& iteration = iterations_[event.at("n").get<int>()];
    const uint64_t checksum = event.at("checksum");
    iteration.timed = event.at("timed");
    iteration.time_us = std::max(iteration.time_us, event.at("time_us").get<int64_t>());
    if (iteration.ranks++ == 0) iteration.checksum = checksum;
    iteration.same_bits &= iteration.checksum == checksum;
    verified_ += event.at("verified").get<uint64_t>();
    wrong_ += event.at("wrong").get<uint64_t>();
    worst_error_ = std::max(worst_error_, event.at("worst_error").get<double>());
    squared_error_ += event.at("squared_error").get<double>();
    squared_expected_ += event.at("squared_expected").get<double>();
    const std::string first_wrong = event.at("first_wrong");
    if (first_wrong_.empty() && !first_wrong.empty()) {
      first_wrong_ = fmt::format("rank {}, iteration {}, {}", rank, event.at("n").get<int>(), first_wrong);
    }
    if (first_wrong_.empty() && !iteration.same_bits) {
      first_wrong_ = fmt::format("iteration {}: rank {}'s result has other bits than another rank's",
                                 event.at("n").get<int>(), rank);
    }
    if (iteration.timed && event.contains("stamp")) stamps_[rank].push_back(event.at("stamp"));
    ++done_[rank];
  } else if (kind == "end") {
    ends_[rank] = event;
  } else if (kind == "error") {
    on_failure(rank, event.at("message"));
  }
}

void BenchReport::on_failure(int rank, const std::string& message) {
  failures_.emplace(rank, message);
}

int BenchReport::iterations_done(int rank) const {
  const auto found = done_.find(rank);
  return found == done_.end() ? 0 : found->second;
}

bool BenchReport::verified() const {
  const bool same_bits = std::all_of(iterations_.begin(), iterations_.end(),
                                     [](const auto& entry) { return entry.second.same_bits; });
  return failures_.empty() && wrong_ == 0 && verified_ > 0 && same_bits;
}

std::vector<int64_t> BenchReport::times_us() const {
  std::vector<int64_t> times;
  for (const auto& [n, iteration] : iterations_) {
    if (iteration.timed) times.push_back(iteration.time_us);
  }
  std::sort(times.begin(), times.end());
  return times;
}

std::string BenchReport::compression() const {
  if (!settings_.compression) return "";
  const auto made = Compression::make(*settings_.compression);
  return made.ok() ? made.value()->describe() : "";
}

double BenchReport::relative_error() const {
  return squared_expected_ == 0 ? 0 : std::sqrt(squared_error_ / squared_expected_);
}

double BenchReport::bandwidth() const {
  const std::vector<int64_t> times = times_us();
  if (times.empty()) return 0;
  const auto bytes = static_cast<double>(settings_.bytes) * settings_.inflight;
  return bytes / (std::max(median_of_sorted(times), 1.0) * 1e-6);
}

Json BenchReport::to_json() const {
  Json json = {{"benchmark", bench_collective_name(settings_.collective)},
               {"verified", verified()},
               {"results_verified", verified_},
               {"results_wrong", wrong_},
               {"first_wrong", first_wrong_},
               {"worst_error", worst_error_},
               {"workers", world_size_},
               {"bytes", settings_.bytes},
               {"dtype", data_type_name(settings_.type)},
               {"op", reduce_op_name(settings_.op)},
               {"lane_bits", kernels::narrow_lane_bits(settings_.type, world_size_, settings_.lane_bits)},
               {"iterations", settings_.iterations},
               {"warmup", settings_.warmup},
               {"inflight", settings_.inflight},
               {"mtu", mtu_},
               {"seed", settings_.seed},
               {"summed_by", summed_by_}};
  if (settings_.compression) {
    json["compression"] = compression();
    json["relative_error"] = relative_error();
  }
  const std::vector<int64_t> times = times_us();
  if (!times.empty()) {
    json["time_us"] = {{"median", median_of_sorted(times)},
                       {"min", times.front()},
                       {"max", times.back()},
                       {"p99", percentile(times, 99)}};
    json["algorithm_bandwidth_bytes_per_s"] = bandwidth();
  }
  json["ranks"] = Json::array();
  for (const auto& [rank, end] : ends_) {
    Json entry = {{"rank", rank}};
    entry.update(end);
    entry.erase("event");
    if (const auto stamps = stamps_.find(rank); stamps != stamps_.end()) entry["stamps"] = stamps->second;
    json["ranks"].push_back(entry);
  }
  json["aggregator_cpu_seconds"] = aggregator_cpu_seconds_ ? Json(*aggregator_cpu_seconds_) : Json();
  json["failures"] = Json::array();
  for (const auto& [rank, message] : failures_) {
    json["failures"].push_back({{"rank", rank}, {"message", message}});
  }
  json["machine"] = machine_json(this_machine());
  json["command"] = command_;
  json["version"] = NETSUM_VERSION_STRING;
  return json;
}

std::string BenchReport::to_table() const {
  const Machine machine = this_machine();
  std::string text = fmt::format(
      "{} of {} x {:.2f} MiB {}{} over {} workers, {} iterations after {} warm-up ones\n"
      "{}\n{}; {} cores; {}; netsum {}\n{}\n\n",
      bench_collective_name(settings_.collective), settings_.inflight,
      static_cast<double>(settings_.bytes) / kMiB, data_type_name(settings_.type),
      sums(settings_.collective) ? fmt::format(" ({})", reduce_op_name(settings_.op)) : "", world_size_,
      settings_.iterations, settings_.warmup, summed_by_, machine.cpu_model, machine.cores, machine.kernel,
      NETSUM_VERSION_STRING, command_);
  const std::vector<int64_t> times = times_us();
  if (!times.empty()) {
    text += fmt::format(
        "time       median {:.3f} ms   min {:.3f}   max {:.3f}   p99 {:.3f}\n"
        "bandwidth  {:.1f} MB/s of tensors ({:.2f} Gbit/s)\n\n",
        median_of_sorted(times) / 1e3, static_cast<double>(times.front()) / 1e3,
        static_cast<double>(times.back()) / 1e3, static_cast<double>(percentile(times, 99)) / 1e3,
        bandwidth() / 1e6, bandwidth() * 8 / 1e9);
  }
  text += fmt::format("{:>4} {:>10} {:>10} {:>10} {:>10} {:>8} {:>7} {:>7} {:>7} {:>7}\n", "rank", "sent MB",
                      "recv MB", "link out", "link in", "payload", "resent", "probes", "refused", "CPU s");
  for (const auto& [rank, end] : ends_) {
    const auto megabytes = [&end = end](const char* key) { return end.at(key).get<double>() / 1e6; };
    text +=
        fmt::format("{:>4} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>7.1f}% {:>7} {:>7} {:>7} {:>7.2f}\n",
                    rank, megabytes("bytes_sent"), megabytes("bytes_received"), megabytes("link_bytes_sent"),
                    megabytes("link_bytes_received"), end.at("payload_share").get<double>() * 100,
                    end.at("retransmissions").get<uint64_t>(), end.at("probes").get<uint64_t>(),
                    end.at("packets_dropped").get<uint64_t>(), end.at("cpu_seconds").get<double>());
  }
  if (aggregator_cpu_seconds_) {
    text += fmt::format("aggregator, whole run: {:.2f} CPU seconds\n", *aggregator_cpu_seconds_);
  }
  if (settings_.compression) {
    text += fmt::format(
        "\ncompressed: {}\nrelative error of the means: {:.4f} (L2 norm, with what is kept for later)\n",
        compression(), relative_error());
  }
  text += fmt::format("\nverified: {} ({} results checked, {} wrong{}{})\n", verified() ? "true" : "false",
                      verified_, wrong_, first_wrong_.empty() ? "" : "; first: ", first_wrong_);
  return text;
}

}  // namespace netsum::tool
