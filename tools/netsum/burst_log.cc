#include "tools/netsum/burst_log.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "src/base/text.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostName = 128;
constexpr char kForm[] =
    R"(expected {"t": nanoseconds, "bytes": n}, and optionally "packets", "port", "dir")";

// pcap in both byte orders, with micro- and nanoseconds, and pcapng.
constexpr std::array<uint32_t, 5> kCaptures = {0xA1B2C3D4, 0xD4C3B2A1, 0xA1B23C4D, 0x4D3CB2A1, 0x0A0D0D0A};

class LineReader {
 public:
  LineReader(const std::string& file, BurstLogBuilder* log) : file_(file), log_(log) {}

  void read(const std::string& line) {
    ++number_;
    if (line.find_first_not_of(" \t\r") == std::string::npos) return;
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) fail(kForm);
    for (const auto& [key, value] : json.items()) {
      if (key != "t" && key != "bytes" && key != "packets" && key != "port" && key != "dir")
        fail("unknown key '" + printable(key, kMostName) + "'; " + kForm);
    }
    if (!json.contains("t") || !json["t"].is_number_integer() ||
        (json["t"].is_number_unsigned() && json["t"].get<uint64_t>() > INT64_MAX))
      fail(std::string("'t' must be a whole number of nanoseconds; ") + kForm);
    const std::string direction = text(json, "dir");
    if (!direction.empty() && direction != "in" && direction != "out") fail("'dir' must be 'in' or 'out'");
    log_->add(place(), text(json, "port"), direction, json["t"].get<int64_t>(), whole(json, "bytes"),
              json.contains("packets") ? whole(json, "packets") : 1);
  }

 private:
  std::string place() const { return "line " + std::to_string(number_); }
  [[noreturn]] void fail(const std::string& why) const {
    throw UsageError(fmt::format("{}: {}: {}", file_, place(), why));
  }
  uint64_t whole(const nlohmann::json& json, const char* key) const {
    if (!json.contains(key) || !json[key].is_number_unsigned())
      fail(fmt::format("'{}' must be a whole number from 0 on; {}", key, kForm));
    return json[key].get<uint64_t>();
  }
  std::string text(const nlohmann::json& json, const char* key) const {
    if (!json.contains(key)) return "";
    if (!json[key].is_string() || json[key].get_ref<const std::string&>().size() > kMostName)
      fail(fmt::format("'{}' must be a text of at most {} bytes", key, kMostName));
    return printable(json[key].get<std::string>());
  }

  const std::string& file_;
  BurstLogBuilder* log_;
  size_t number_ = 0;
};

}  // namespace

void BurstLogBuilder::add(const std::string& where, const std::string& port, const std::string& direction,
                          int64_t at_ns, uint64_t bytes, uint64_t packets) {
  const auto [known, fresh] = number_.try_emplace({port, direction}, log_.streams.size());
  if (fresh) {
    if (log_.streams.size() == kMostStreams)
      throw UsageError(fmt::format("{}: {}: more than {} ports; filter the packets, or log fewer ports",
                                   file_, where, kMostStreams));
    log_.streams.push_back({port, direction, {}, 0});
    latest_ns_.push_back(at_ns);
  }
  int64_t& latest_ns = latest_ns_[known->second];
  if (at_ns < latest_ns) {
    // Both may be far from 0; their difference then does not fit, and is no small disorder either.
    const uint64_t back = static_cast<uint64_t>(latest_ns) - static_cast<uint64_t>(at_ns);
    if (back > static_cast<uint64_t>(kMostDisorderNs))
      throw UsageError(
          fmt::format("{}: {}: the time is {:.6f} s before that of an earlier packet, so the clock was set "
                      "or files were joined "
                      "in the wrong order; cut the file there, or log a monotonic clock",
                      file_, where, static_cast<double>(back) * 1e-9));
    ++out_of_order_;
    most_disorder_ns_ = std::max(most_disorder_ns_, static_cast<int64_t>(back));
  }
  latest_ns = std::max(latest_ns, at_ns);
  BurstStream& stream = log_.streams[known->second];
  stream.log.push_back({at_ns, bytes});
  stream.packets += packets;
}

BurstLog BurstLogBuilder::finish() {
  if (log_.streams.empty()) {
    std::string why = "no packets";
    for (const std::string& warning : log_.warnings) why += "; " + warning;
    throw UsageError(file_ + ": " + why);
  }
  if (out_of_order_ > 0)
    warn(fmt::format("{} packets were out of order, by up to {} us; they are sorted by time", out_of_order_,
                     (most_disorder_ns_ + 999) / 1000));
  for (BurstStream& stream : log_.streams) {
    std::stable_sort(stream.log.begin(), stream.log.end(),
                     [](const bursts::Arrival& a, const bursts::Arrival& b) { return a.at_ns < b.at_ns; });
    const Status status = bursts::check_log(stream.log);
    if (!status.ok()) throw UsageError(file_ + ": port '" + stream.port + "': " + status.message());
  }
  std::sort(log_.streams.begin(), log_.streams.end(), [](const BurstStream& a, const BurstStream& b) {
    return std::tie(a.port, a.direction) < std::tie(b.port, b.direction);
  });
  return std::move(log_);
}

BurstLog load_burst_log(const std::string& file, const CaptureOptions& options) {
  std::ifstream stream(file, std::ios::binary);
  uint32_t magic = 0;
  stream.read(reinterpret_cast<char*>(&magic), sizeof magic);
  if (stream && std::find(kCaptures.begin(), kCaptures.end(), magic) != kCaptures.end())
    return load_capture(file, options);
  if (!stream && !stream.eof())
    throw UsageError(fmt::format("cannot read '{}': {}", printable(file), std::strerror(errno)));
  if (!options.filter.empty() || options.by != "none" || options.split)
    throw UsageError(printable(file) +
                     ": --filter, --by and --split are for captures, and this is a log of JSON lines");
  stream.clear();
  stream.seekg(0);
  const std::string name = printable(file);
  BurstLogBuilder log(name);
  LineReader lines(name, &log);
  for (std::string line; std::getline(stream, line);) lines.read(line);
  if (stream.bad())
    throw UsageError(fmt::format("cannot read '{}': {}", printable(file), std::strerror(errno)));
  return log.finish();
}

}  // namespace netsum::tool
