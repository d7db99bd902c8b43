// Chooses in every step how strongly the gradients of a training job are compressed: not at all, unless compression is predicted to
// make the steps faster. No I/O and no clock: a rank passes what it has measured, sums of which it gets from the other ranks
// (compression_control() below says how), and all ranks compute the same decision from the same numbers. docs/compression.md
// describes the cost model and the guards.
#ifndef NETSUM_COMPRESSION_CONTROL_H_
#define NETSUM_COMPRESSION_CONTROL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "netsum/export.h"
#include "netsum/status.h"

namespace netsum {

// One way to send a gradient. What it costs is what is expected until it has been measured.
struct ControlledLevel {
  std::string name;
  double bytes_per_element = 4;  // that a rank sends, or receives if that is more
  double encode_ns_per_element = 0;
  double decode_ns_per_element = 0;
};

struct CompressionControlOptions {
  // The least lossy first: that sends gradients as they are. 1 to 16.
  std::vector<ControlledLevel> levels;
  // Nothing is compressed in the first steps, in which gradients change fastest.
  uint32_t warmup_steps = 20;
  // Compression starts when the predicted step is shorter by this part. Above 0 and below 1.
  double payoff = 0.05;
  // While the norm of a bucket's gradient changes by half (Accordion: Agarwal et al., MLSys 2021), no more lossy level than this is
  // used for it.
  uint32_t critical_level = 1;
  // A bucket goes back by one level when the norm of what ranks have not sent is so many times that of its gradient. Above 0.
  double residual_cap = 50;
};

// Gradients that are summed together.
struct ControlledBucket {
  uint64_t elements = 0;     // that levels apply to
  uint64_t other_bytes = 0;  // what travels besides, whatever the level
};

// What one rank has seen of one bucket in one step. Times in microseconds, of a clock of this rank that never goes back.
struct BucketRecord {
  int64_t ready_us = 0;     // the backward pass has handed over the gradient
  int64_t handed_us = 0;    // it is encoded, and its sum has been started
  int64_t summed_us = 0;    // the sum has arrived
  int64_t done_us = 0;      // it is decoded
  uint64_t sent_bytes = 0;  // or received, if that is more; 0: not known
  // Euclidean norms. Below 0: not measured in this step.
  double gradient_norm = -1;
  double residual_norm = -1;
};

// What one rank has seen of one step.
struct StepRecord {
  int64_t begin_us = 0;   // everything of the step before was done
  int64_t agree_us = 0;   // the sum of measurements was started
  int64_t agreed_us = 0;  // and has arrived
  uint64_t packets = 0;   // that this rank has sent
  uint64_t retransmissions = 0;
  std::vector<BucketRecord> buckets;
};

struct CompressionDecision {
  std::span<const uint8_t> levels;  // of each bucket in this step
  // How many numbers the ranks agree on in this step: those of measurement(), and behind them what makes the operation so
  // long that its time tells the rate of the network. Any values.
  size_t agreement_values = 0;
  bool wants_norms = false;
};

// In every step s, every rank
//   1. calls begin_step() with what all have agreed on in step s - 1 (nothing in the first step);
//   2. starts a maximum over all ranks (ReduceOp::kMax, kInt32) of what measurement() says of step s - 1, in the first step of zeros;
//   3. compresses, sums and decodes the buckets in their order with the levels of the decision, and writes a StepRecord.
// So what is measured in a step has an effect two steps later, and nobody waits for an agreement. Not for several threads at a time.
class NETSUM_EXPORT CompressionControl {
 public:
  virtual ~CompressionControl() = default;

  // Other buckets: keeps what is known of levels and of the network, and starts from the first level.
  virtual Status set_buckets(std::span<const ControlledBucket> buckets) = 0;

  // kMismatch, on all ranks, if they have not decided alike in the step that `agreed` describes.
  virtual Status begin_step(std::span<const int32_t> agreed) = 0;
  // Valid until the next call of begin_step() or set_buckets().
  virtual CompressionDecision decision() const = 0;
  // This rank's numbers about the last step. Writes agreement_values numbers; kInvalidArgument if the record has another number of buckets.
  virtual Status measurement(const StepRecord& record, std::span<int32_t> mine) const = 0;

  // All that decisions depend on, except options and buckets: equal on all ranks.
  virtual std::vector<int64_t> state() const = 0;
  // kInvalidArgument, and nothing changes, if the state is not one of such options and buckets.
  virtual Status restore(std::span<const int64_t> state) = 0;

  virtual uint64_t step() const = 0;     // begun so far
  virtual uint64_t changes() const = 0;  // of the levels of any bucket
  // Predictions in nanoseconds; 0: nothing is known yet.
  virtual int64_t predicted_step_ns() const = 0;
  virtual int64_t uncompressed_step_ns() const = 0;
  virtual double bits_per_second() const = 0;  // of the network, as estimated; 0: not known
  // One line for a log, if the last begin_step() has changed a level; otherwise empty.
  virtual std::string_view change() const = 0;

  // Lines of a trace, without the end of line: its head, what set_buckets() or restore() has made, and the last begin_step().
  virtual std::string trace_head() const = 0;
  virtual std::string trace_buckets() const = 0;
  virtual std::string trace_step() const = 0;
};

// kInvalidArgument for options out of range.
NETSUM_EXPORT Result<std::unique_ptr<CompressionControl>> compression_control(
    const CompressionControlOptions& options);

}  // namespace netsum

#endif  // NETSUM_COMPRESSION_CONTROL_H_
