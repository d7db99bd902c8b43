// Traces of a CompressionControl: what it was given, and what it has decided, as lines of JSON. Since decisions follow from nothing
// else, a trace can be replayed on another machine.
#ifndef NETSUM_SRC_COMPRESS_CONTROL_TRACE_H_
#define NETSUM_SRC_COMPRESS_CONTROL_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "netsum/compression_control.h"
#include "src/compress/cost_model.h"

namespace netsum::compress {

std::string trace_head(const CompressionControlOptions& options);
std::string trace_buckets(std::span<const ControlledBucket> buckets, std::span<const int64_t> state);
std::string trace_step(uint64_t step, std::span<const int32_t> agreed, const Levels& levels,
                       size_t agreement_values, std::string_view change);

// Decides again from the lines of a trace.
class ControlReplay {
 public:
  // kInvalidArgument if the line is not the next one of a trace, kMismatch if the decision differs from that of the trace.
  Status take(std::string_view line);
  // Null before the head of a trace.
  const CompressionControl* control() const { return control_.get(); }
  const CompressionControlOptions& options() const { return options_; }
  uint64_t steps() const { return steps_; }
  bool took_step() const { return took_step_; }  // the last line was a step

 private:
  Status take_head(const nlohmann::ordered_json& json);
  Status take_buckets(const nlohmann::ordered_json& json);
  Status take_step(const nlohmann::ordered_json& json);

  CompressionControlOptions options_;
  std::unique_ptr<CompressionControl> control_;
  bool has_buckets_ = false, took_step_ = false;
  uint64_t steps_ = 0;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_CONTROL_TRACE_H_
