#include "tools/netsum/quantity.h"

#include <spdlog/fmt/fmt.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <span>

namespace netsum::tool {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};
// In each table the name of a unit comes before the names that it ends with.
constexpr Unit kBytes[] = {{"Ki", 0x1p10}, {"ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30},
                           {"Ti", 0x1p40}, {"K", 1e3},     {"k", 1e3},     {"M", 1e6},
                           {"G", 1e9},     {"T", 1e12},    {"", 1}};
constexpr Unit kMilliseconds[] = {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"", 1000}};
constexpr Unit kBits[] = {{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}};
constexpr Unit kProbabilities[] = {{"%", 0.01}, {"", 1}};

// The number before the first unit that `text` ends with, in units of factor 1, if it is from `least` to `most`.
std::optional<double> parse_quantity(std::string_view text, std::span<const Unit> units, double least,
                                     double most) {
  for (const Unit& unit : units) {
    if (!text.ends_with(unit.name)) continue;
    const std::string_view number = text.substr(0, text.size() - unit.name.size());
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    value *= unit.factor;
    const bool whole = error == std::errc() && end == number.data() + number.size();
    // In this form, it is false for NaN.
    if (!(whole && value >= least && value <= most)) return std::nullopt;
    return value;
  }
  return std::nullopt;
}

Status is_not(std::string_view text, const char* why) {
  return Status(ErrorCode::kInvalidArgument, fmt::format("'{}' is not {}", text, why));
}

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  const std::string_view without_b = text.ends_with('B') ? text.substr(0, text.size() - 1) : text;
  // 2^53: beyond it a double no longer counts single bytes.
  const std::optional<double> bytes = parse_quantity(without_b, kBytes, 0, 0x1p53);
  if (bytes && *bytes == std::floor(*bytes)) return static_cast<uint64_t>(*bytes);
  return is_not(text,
                "a size; expected a number with K, M, G (powers of 1000) or Ki, Mi, Gi (powers of 1024), "
                "e.g. 64Mi");
}

Result<uint64_t> parse_size(std::string_view text) {
  Result<uint64_t> bytes = parse_bytes(text);
  if (bytes.ok() && *bytes == 0) return Status(ErrorCode::kInvalidArgument, "0 bytes: give at least 1");
  return bytes;
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  if (const auto ms = parse_quantity(text, kMilliseconds, 1, 1e9))
    return std::chrono::milliseconds(static_cast<int64_t>(*ms));
  return is_not(text, "a duration; expected a number with ms, s or m, 1ms or more, e.g. 30s");
}

Result<std::chrono::milliseconds> parse_duration_or_zero(std::string_view text) {
  if (parse_quantity(text, kMilliseconds, 0, 0)) return std::chrono::milliseconds(0);
  return parse_duration(text);
}

Result<uint64_t> parse_rate(std::string_view text) {
  if (text == "none") return uint64_t{0};
  if (const auto bits = parse_quantity(text, kBits, 1e6, 400e9))
    return static_cast<uint64_t>(std::llround(*bits));
  return is_not(text, "a rate from 1mbit to 400gbit; expected e.g. 100mbit, 2.5gbit, or none");
}

Result<double> parse_probability(std::string_view text) {
  if (const auto probability = parse_quantity(text, kProbabilities, 0, 1)) return *probability;
  return is_not(text, "a probability; expected 0 to 1, e.g. 0.01, or 0% to 100%");
}

std::string format_rate(uint64_t bits_per_second) {
  if (bits_per_second == 0) return "none";
  for (const Unit& unit : kBits) {
    const double value = static_cast<double>(bits_per_second) / unit.factor;
    if (value >= 1) return fmt::format("{:.10g}{}", value, unit.name);
  }
  return fmt::format("{}bit", bits_per_second);
}

std::string format_percent(double probability) {
  return fmt::format("{:.6g} %", probability * 100);
}

std::string format_duration(std::chrono::milliseconds duration) {
  return fmt::format("{:g} s", static_cast<double>(duration.count()) / 1000);
}

}  // namespace netsum::tool
