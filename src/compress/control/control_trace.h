// Traces of a CompressionControl: what it was given, and what it has decided, as lines of JSON. Decisions follow from nothing
// else.
#ifndef NETSUM_SRC_COMPRESS_CONTROL_CONTROL_TRACE_H_
#define NETSUM_SRC_COMPRESS_CONTROL_CONTROL_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "netsum/compression_control.h"
#include "src/compress/control/cost_model.h"

namespace netsum::compress {

std::string trace_head(const CompressionControlOptions& options);
std::string trace_buckets(std::span<const ControlledBucket> buckets, std::span<const int64_t> state);
std::string trace_step(uint64_t step, std::span<const int32_t> agreed, const Levels& levels,
                       size_t agreement_values, std::string_view change);

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_CONTROL_CONTROL_TRACE_H_
