// Numbers with a unit, as people write them: sizes, rates, durations and probabilities.
#ifndef NETSUM_TOOLS_NETSUM_QUANTITY_H_
#define NETSUM_TOOLS_NETSUM_QUANTITY_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "netsum/status.h"

namespace netsum::tool {

// All errors are kInvalidArgument, and say which form is expected.
Result<uint64_t> parse_bytes(std::string_view text);  // "64M" (10^6), "64Mi" (2^20), "64MiB", "4096"
Result<uint64_t> parse_size(std::string_view text);   // bytes, and not 0
Result<std::chrono::milliseconds> parse_duration(std::string_view text);  // "1.5s", "200ms", "2m", "30" (s)
Result<std::chrono::milliseconds> parse_duration_or_zero(std::string_view text);  // "0ms", too
Result<uint64_t> parse_rate(std::string_view text);       // bit/s: "100mbit", "2.5gbit", "none" (0)
Result<double> parse_probability(std::string_view text);  // "0.01", "1%"

std::string format_duration(std::chrono::milliseconds duration);  // "1.5 s"
std::string format_rate(uint64_t bits_per_second);                // as parse_rate() takes it
std::string format_percent(double probability);                   // "1 %"

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_QUANTITY_H_
