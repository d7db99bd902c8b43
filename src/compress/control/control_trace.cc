#include "src/compress/control/control_trace.h"

#include <nlohmann/json.hpp>

namespace netsum::compress {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHead = "netsum_compression_trace";
constexpr int kVersion = 1;

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string trace_head(const CompressionControlOptions& options) {
  Json levels = Json::array();
  for (const ControlledLevel& level : options.levels)
    levels.push_back({{"name", level.name},
                      {"bytes_per_element", level.bytes_per_element},
                      {"encode_ns_per_element", level.encode_ns_per_element},
                      {"decode_ns_per_element", level.decode_ns_per_element}});
  return line_of({{kHead, kVersion},
                  {"levels", levels},
                  {"warmup_steps", options.warmup_steps},
                  {"payoff", options.payoff},
                  {"critical_level", options.critical_level},
                  {"residual_cap", options.residual_cap}});
}

std::string trace_buckets(std::span<const ControlledBucket> buckets, std::span<const int64_t> state) {
  Json elements = Json::array(), other_bytes = Json::array();
  for (const ControlledBucket& bucket : buckets) {
    elements.push_back(bucket.elements);
    other_bytes.push_back(bucket.other_bytes);
  }
  return line_of({{"elements", elements},
                  {"other_bytes", other_bytes},
                  {"state", std::vector<int64_t>(state.begin(), state.end())}});
}

std::string trace_step(uint64_t step, std::span<const int32_t> agreed, const Levels& levels,
                       size_t agreement_values, std::string_view change) {
  Json line = {{"step", step},
               {"agreed", std::vector<int32_t>(agreed.begin(), agreed.end())},
               {"levels", levels},
               {"agreement_values", agreement_values}};
  if (!change.empty()) line["change"] = change;
  return line_of(line);
}

}  // namespace netsum::compress
