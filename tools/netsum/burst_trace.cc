// The rates of streams as counter tracks of a trace for ui.perfetto.dev: Chrome's JSON trace events.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "src/bursts/bins.h"
#include "tools/netsum/burst_report.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostBinsShown = 20'000;  // of a stream: Perfetto reads some millions of events

// The trace of `path`, or an empty one if there is no such file.
Json read_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file && errno == ENOENT) return {{"traceEvents", Json::array()}, {"displayTimeUnit", "ms"}};
  if (!file) throw UsageError("--perfetto: " + path + ": " + std::strerror(errno));
  Json trace = Json::parse(file, nullptr, false);
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array())
    throw UsageError("--perfetto: " + path +
                     " exists and is no trace in Chrome's JSON; name a trace, or a new file");
  return trace;
}

// Behind the ranks, whose numbers are those of their processes, and behind the files that were added before.
int64_t next_process(const Json& events) {
  int64_t process = 1'000'000;
  for (const Json& event : events)
    if (event.is_object() && event.contains("pid") && event["pid"].is_number_integer())
      process = std::max(process, std::min<int64_t>(event["pid"].get<int64_t>(), INT32_MAX) + 1);
  return process;
}

// An event where the rate changes.
void add_track(const BurstReport& report, const BurstReport::Stream& stream, int64_t process, Json* events) {
  const bursts::Log log = stream.of.log;
  const int64_t width = std::max(report.options.bin_ns, stream.span_ns / kMostBinsShown + 1);
  std::vector<uint64_t> bins = bursts::bins_of(log, width, log.front().at_ns).value();
  bins.push_back(0);
  for (size_t i = 0; i < bins.size(); ++i) {
    if (i > 0 && bins[i] == bins[i - 1]) continue;
    const double at_us =
        (static_cast<double>(log.front().at_ns) + static_cast<double>(report.wall_offset_ns) +
         static_cast<double>(i) * static_cast<double>(width)) /
        1e3;
    const double mbit_s = static_cast<double>(bins[i]) * 8e3 / static_cast<double>(width);
    events->push_back({{"name", stream_name(stream)},
                       {"ph", "C"},
                       {"ts", at_us},
                       {"pid", process},
                       {"args", {{"Mbit/s", mbit_s}}}});
  }
}

}  // namespace

int write_tracks(const BurstReport& report, const std::string& path) {
  Json trace = read_trace(path);
  Json& events = trace["traceEvents"];
  const int64_t process = next_process(events);
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", process},
                    {"args", {{"name", "packets of " + report.file}}}});
  for (const BurstReport::Stream& stream : report.streams) add_track(report, stream, process, &events);
  return write_file(path, trace.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n");
}

}  // namespace netsum::tool
