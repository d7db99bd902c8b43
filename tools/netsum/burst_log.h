// The logs of packets that netsum bursts reads: JSON lines, and captures.
#ifndef NETSUM_TOOLS_NETSUM_BURST_LOG_H_
#define NETSUM_TOOLS_NETSUM_BURST_LOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "netsum/status.h"
#include "src/bursts/bursts.h"

namespace netsum::tool {

// What passed one port in one direction.
struct BurstStream {
  std::string port;
  std::string direction;  // "in", "out", or empty: not known
  std::vector<bursts::Arrival> log;
  uint64_t packets = 0;
};

struct BurstLog {
  std::vector<BurstStream> streams;
  std::vector<std::string> warnings;
  int64_t wall_offset_ns = 0;  // to be added to its times for those of the wall clock
};

// Collects the packets of a file. Packets of several CPUs may be out of order by a little; a clock that was set makes all
// times useless.
class BurstLogBuilder {
 public:
  static constexpr size_t kMostStreams = 1024;
  static constexpr int64_t kMostDisorderNs = 10'000'000;

  explicit BurstLogBuilder(std::string file) : file_(std::move(file)) {}

  // `where` is the place in the file, such as "line 7". Throws UsageError.
  void add(const std::string& where, const std::string& port, const std::string& direction, int64_t at_ns,
           uint64_t bytes, uint64_t packets = 1);
  void warn(std::string text) { log_.warnings.push_back(std::move(text)); }
  void set_wall_offset(int64_t ns) { log_.wall_offset_ns = ns; }
  // Sorts and checks. Throws UsageError.
  BurstLog finish();

 private:
  std::string file_;
  BurstLog log_;
  std::map<std::pair<std::string, std::string>, size_t, std::less<>> number_;
  std::vector<int64_t> latest_ns_;  // of each stream
  uint64_t out_of_order_ = 0;
  int64_t most_disorder_ns_ = 0;
};

struct CaptureOptions {
  std::string filter;       // of tcpdump; empty: all packets
  std::string by = "none";  // streams by IP address: "source", "destination"
  uint32_t mtu = 1500;      // a longer IP packet is a unit of segmentation offload
  bool split = false;       // into frames of this MTU; otherwise refused
};

// Reads either kind of file. Throws UsageError, whose message starts with the file.
BurstLog load_burst_log(const std::string& file, const CaptureOptions& options);
// burst_capture.cc, or without_capture.cc where libpcap is missing.
BurstLog load_capture(const std::string& file, const CaptureOptions& options);
// What the links of a virtual rack carry as long as `goes_on`: each is a port of its switch (burst_rack.cc). Throws UsageError
// for a rack that cannot be captured. Errors: those of capture_frames().
Result<BurstLog> capture_rack(const std::string& name, const std::function<bool()>& goes_on);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_BURST_LOG_H_
