// What netsum bursts prints: a table for a person, JSON, and a page with the three curves.
#ifndef NETSUM_TOOLS_NETSUM_BURST_REPORT_H_
#define NETSUM_TOOLS_NETSUM_BURST_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/netsum/burst_log.h"

namespace netsum::tool {

struct BurstOptions {
  uint64_t bits_per_s = 0;  // of the link of a port; 0: not known
  int64_t gap_ns = 100'000;
  int64_t bin_ns = 100'000;
};

struct BurstReport {
  struct Window {
    int64_t tau_ns = 0;
    uint64_t bytes = 0;
    std::optional<double> peak_to_mean;
  };
  struct Server {
    uint64_t bytes_per_s = 0;
    double backlog = 0;
  };
  struct Stream {
    BurstStream of;
    uint64_t bytes = 0;
    int64_t span_ns = 0;
    std::optional<double> mean;    // bytes per second
    std::vector<Window> windows;   // up to the span
    std::vector<Server> servers;   // 16ths of the link's rate, or multiples of the mean
    std::vector<uint64_t> bursts;  // bytes, ascending
    std::vector<int64_t> lengths;  // of bursts, ascending
    std::vector<int64_t> gaps;     // between arrivals, ascending
    std::optional<int64_t> period_ns;
    double period_correlation = 0;
  };
  std::string file;
  BurstOptions options;
  std::vector<std::string> warnings;
  int64_t wall_offset_ns = 0;  // as of the log
  std::vector<Stream> streams;
  // Of bins in which more than half of the streams have more than half of their link; none without a rate, or with one stream.
  std::optional<std::vector<size_t>> synchronised;
  size_t bins = 0;
  int64_t from_ns = 0;  // of the first bin
};

// Throws UsageError if the bins are too short.
BurstReport burst_report(std::string file, BurstLog log, const BurstOptions& options);
// For a person.
std::string stream_name(const BurstReport::Stream& stream);
std::string bursts_text(const BurstReport& report);
nlohmann::ordered_json bursts_json(const BurstReport& report);
std::string bursts_html(const BurstReport& report);  // burst_page.cc
// Adds the rate of each stream, in bins of at least `bin_ns`, as a counter track to the trace in this file, or makes one
// (burst_trace.cc). Returns the exit status. Throws UsageError for a file that is no trace.
int write_tracks(const BurstReport& report, const std::string& path);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_BURST_REPORT_H_
