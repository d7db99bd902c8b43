#include "src/compress/control_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace netsum::compress {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHead = "netsum_compression_trace";
constexpr int kVersion = 1;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status invalid(std::string why) {
  return {ErrorCode::kInvalidArgument, std::move(why)};
}

}  // namespace

std::string trace_head(const CompressionControlOptions& options) {
  Json levels = Json::array();
  for (const ControlledLevel& level : options.levels)
    levels.push_back({{"name", level.name},
                      {"bytes_per_element", level.bytes_per_element},
                      {"encode_ns_per_element", level.encode_ns_per_element},
                      {"decode_ns_per_element", level.decode_ns_per_element}});
  return text_of({{kHead, kVersion},
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
  return text_of({{"elements", elements},
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
  return text_of(line);
}

Status ControlReplay::take(std::string_view line) {
  took_step_ = false;
  try {
    const Json json = Json::parse(line);
    if (!json.is_object()) return invalid("a line of the trace is no object");
    if (json.contains(kHead)) return take_head(json);
    if (json.contains("elements")) return take_buckets(json);
    if (json.contains("step")) return take_step(json);
  } catch (const Json::exception& error) {
    return invalid(std::string("a line of the trace cannot be read: ") + error.what());
  }
  return invalid("a line of the trace is neither its head, nor its buckets, nor a step");
}

Status ControlReplay::take_head(const nlohmann::ordered_json& json) {
  if (json.at(kHead) != kVersion)
    return invalid("the trace has version " + text_of(json.at(kHead)) + "; this is version " +
                   std::to_string(kVersion));
  CompressionControlOptions options{.levels = {},
                                    .warmup_steps = json.at("warmup_steps"),
                                    .payoff = json.at("payoff"),
                                    .critical_level = json.at("critical_level"),
                                    .residual_cap = json.at("residual_cap")};
  for (const Json& level : json.at("levels"))
    options.levels.push_back({.name = level.at("name"),
                              .bytes_per_element = level.at("bytes_per_element"),
                              .encode_ns_per_element = level.at("encode_ns_per_element"),
                              .decode_ns_per_element = level.at("decode_ns_per_element")});
  auto made = compression_control(options);
  if (!made.ok()) return made.status();
  options_ = std::move(options);
  control_ = std::move(made).value();
  has_buckets_ = false;
  return {};
}

Status ControlReplay::take_buckets(const nlohmann::ordered_json& json) {
  if (control_ == nullptr) return invalid("the trace has buckets before its head");
  const auto elements = json.at("elements").get<std::vector<uint64_t>>();
  const auto other_bytes = json.at("other_bytes").get<std::vector<uint64_t>>();
  if (elements.size() != other_bytes.size()) return invalid("the trace has lists of different lengths");
  std::vector<ControlledBucket> buckets;
  for (size_t i = 0; i < elements.size(); ++i)
    buckets.push_back({.elements = elements[i], .other_bytes = other_bytes[i]});
  if (Status status = control_->set_buckets(buckets); !status.ok()) return status;
  has_buckets_ = true;
  return control_->restore(json.at("state").get<std::vector<int64_t>>());
}

Status ControlReplay::take_step(const nlohmann::ordered_json& json) {
  if (!has_buckets_) return invalid("the trace has a step before its buckets");
  const auto agreed = json.at("agreed").get<std::vector<int32_t>>();
  if (Status status = control_->begin_step(agreed); !status.ok()) return status;
  ++steps_;
  took_step_ = true;
  const std::string mine =
      trace_step(control_->step(), agreed,
                 Levels(control_->decision().levels.begin(), control_->decision().levels.end()),
                 control_->decision().agreement_values, control_->change());
  if (Json::parse(mine) != json)
    return {ErrorCode::kMismatch, "the trace has " + text_of(json) + ", and this version decides " + mine};
  return {};
}

}  // namespace netsum::compress
