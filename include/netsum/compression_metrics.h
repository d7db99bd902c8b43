// What a job's controller of compression (compression_control.h) does, in the metrics that its process serves
// (CommunicatorOptions::metrics_address): netsum_worker_compression_*. docs/operations.md says what each means.
#ifndef NETSUM_COMPRESSION_METRICS_H_
#define NETSUM_COMPRESSION_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "netsum/export.h"
#include "netsum/status.h"

namespace netsum {

// What one rank knows at the beginning of a step. Counts are since the controller was made, of the steps that it has decided on.
struct CompressionSnapshot {
  struct Level {
    std::string name;
    uint64_t buckets = 0;       // that have this level now
    uint64_t bucket_steps = 0;  // how often a bucket was sent with it
  };
  std::vector<Level> levels;
  uint64_t steps = 0;
  uint64_t changes = 0;  // of levels
  // Of the buckets: as they are without compression, and what the rank has sent, or received if that is more. Without headers.
  uint64_t gradient_bytes = 0;
  uint64_t sent_bytes = 0;
  // Seconds; 0: not known.
  double predicted_step_s = 0;     // with the levels of now
  double uncompressed_step_s = 0;  // predicted, without compression
  double measured_step_s = 0;      // the last step
  double bits_per_second = 0;      // of the network, as estimated; 0: not known
};

// Adds a controller to the metrics of an address as long as it exists. Thread rule: any thread may call publish(), one at a time.
class NETSUM_EXPORT CompressionMetrics {
 public:
  // `address`: CommunicatorStats::metrics_address of the job's communicator, whose page is shared. Its series have the labels
  // `job_name`, `rank` and, as a process may train several models, `controller`.
  // Errors: those of CommunicatorOptions::metrics_address, if the communicator does not serve it any more.
  static Result<std::unique_ptr<CompressionMetrics>> open(const std::string& address, const std::string& job,
                                                          int rank, int controller);
  virtual ~CompressionMetrics() = default;

  // What is served from now on. Copies it; waits at most while a page is being written.
  virtual void publish(const CompressionSnapshot& snapshot) = 0;
};

}  // namespace netsum

#endif  // NETSUM_COMPRESSION_METRICS_H_
