// A trace of operations for ui.perfetto.dev or chrome://tracing: Chrome's JSON trace events.
#ifndef NETSUM_SRC_TELEMETRY_TRACE_H_
#define NETSUM_SRC_TELEMETRY_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "netsum/types.h"

namespace netsum {

// One operation. Times are of the monotonic clock; 0: the operation ended before.
struct TraceRecord {
  const char* collective = "all_reduce";  // a string that is never freed
  uint64_t number = 0;                    // of the operation, the same on all ranks
  uint64_t tensor_id = 0;                 // of its first tensor (TensorView::id)
  DataType type = DataType::kFloat32;
  uint64_t elements = 0;
  int64_t submitted_us = 0;
  int64_t first_scale_us = 0;    // the first packet of scales was sent
  int64_t scales_agreed_us = 0;  // the last packet of scales was answered
  int64_t first_data_us = 0;
  int64_t done_us = 0;
  uint64_t packets = 0;  // contributions, those sent again included
  uint64_t retransmissions = 0;
  bool ok = true;
};

// Keeps the newest operations and writes them to a file in its destructor. Files of several ranks can be merged, as each
// line is one event: ranks are Chrome's processes, and times are those of the wall clock.
//
// Not thread-safe.
class TraceLog {
 public:
  static constexpr size_t kMaxRecords = 65536;  // about 6 MB

  // In `path`, "{rank}" and "{job}" stand for those of this rank; '/' in a job's name becomes '_'. The file
  // is created at once. Error: kInvalidArgument, when it cannot be.
  static Result<std::unique_ptr<TraceLog>> open(const std::string& path, const std::string& job, int rank,
                                                size_t max_records = kMaxRecords);
  // Writes the file. If the disk is full, no file is left.
  ~TraceLog();

  void add(const TraceRecord& record);
  const std::string& path() const { return path_; }

 private:
  TraceLog(std::string path, std::ofstream file, std::string job, int rank, size_t max_records);
  void write_event(const std::string& event);
  void write_record(const TraceRecord& record);

  const std::string path_;
  std::ofstream file_;
  const std::string job_;
  const int rank_;
  const size_t max_records_;
  const int64_t wall_offset_us_;  // wall clock minus monotonic clock
  std::vector<TraceRecord> records_;
  uint64_t added_ = 0;
  uint64_t retransmissions_ = 0;
  bool first_event_ = true;
};

}  // namespace netsum

#endif  // NETSUM_SRC_TELEMETRY_TRACE_H_
