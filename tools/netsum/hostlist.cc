#include "tools/netsum/hostlist.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostDigits = 9;
constexpr size_t kMostNameBytes = 255;

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= kMostDigits &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

uint32_t number(std::string_view digits) {
  uint32_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

// With as many digits as `low`, if that begins with a zero.
std::string padded(uint32_t value, std::string_view low) {
  const size_t width = low.size() > 1 && low.front() == '0' ? low.size() : 1;
  return fmt::format("{:0{}}", value, width);
}

// The numbers of "0-3,12".
Status add_range(std::string_view range, std::vector<std::string>* found) {
  const size_t dash = range.find('-');
  const std::string_view low = range.substr(0, dash);
  const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
  if (!is_number(low) || !is_number(high))
    return invalid(fmt::format("'{}' is no range of numbers; use e.g. [0-3,7]", range));
  if (number(high) < number(low))
    return invalid(fmt::format("the range {} goes backwards; give the lower number first", range));
  if (number(high) - number(low) >= kMostListed) {
    return {ErrorCode::kResourceExhausted,
            fmt::format("the range {} has more than {} numbers; shorten it", range, kMostListed)};
  }
  for (uint32_t n = number(low); n <= number(high); ++n) found->push_back(padded(n, low));
  return {};
}

// The names of one entry, which may have several brackets.
Result<std::vector<std::string>> expand_entry(std::string_view entry) {
  std::vector<std::string> names = {""};
  while (!entry.empty()) {
    const size_t open = entry.find('[');
    for (std::string& name : names) name += entry.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = entry.find(']', open);
    if (close == std::string_view::npos) return invalid(fmt::format("'{}' has a '[' without a ']'", entry));
    std::vector<std::string> numbers;
    std::string_view ranges = entry.substr(open + 1, close - open - 1);
    while (true) {
      const size_t comma = ranges.find(',');
      if (Status s = add_range(ranges.substr(0, comma), &numbers); !s.ok()) return s;
      if (comma == std::string_view::npos) break;
      ranges.remove_prefix(comma + 1);
    }
    if (names.size() * numbers.size() > kMostListed) {
      return Status(ErrorCode::kResourceExhausted,
                    fmt::format("the list has more than {} names; shorten it", kMostListed));
    }
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& each : numbers) longer.push_back(name + each);
    }
    names = std::move(longer);
    entry.remove_prefix(close + 1);
  }
  for (const std::string& name : names) {
    if (!is_plain_name(name)) {
      return invalid(fmt::format("'{}' is no name: use up to {} letters, digits, '-', '_', '.' and ':'", name,
                                 kMostNameBytes));
    }
  }
  return names;
}

// "node" and "07".
std::pair<std::string_view, std::string_view> split_number(std::string_view name) {
  size_t at = name.size();
  while (at > 0 && name.size() - at < kMostDigits && name[at - 1] >= '0' && name[at - 1] <= '9') --at;
  return {name.substr(0, at), name.substr(at)};
}

}  // namespace

Result<std::vector<std::string>> parse_hostlist(std::string_view text) {
  std::vector<std::string> names;
  size_t start = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] == '[' || text[i] == ']')) depth += text[i] == '[' ? 1 : -1;
    if (depth < 0 || depth > 1) return invalid(fmt::format("'{}' has brackets that do not match", text));
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    Result<std::vector<std::string>> entry = expand_entry(text.substr(start, i - start));
    if (!entry.ok()) return entry.status();
    names.insert(names.end(), entry->begin(), entry->end());
    if (names.size() > kMostListed) {
      return Status(ErrorCode::kResourceExhausted,
                    fmt::format("the list has more than {} names; shorten it", kMostListed));
    }
    start = i + 1;
  }
  return names;
}

std::string format_hostlist(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size();) {
    const auto [prefix, digits] = split_number(names[i]);
    std::string ranges;
    size_t next = i, count = 0;
    while (next < names.size()) {
      const auto [base, low] = split_number(names[next]);
      if (base != prefix || low.empty()) break;
      size_t last = next;
      while (last + 1 < names.size() &&
             names[last + 1] ==
                 std::string(prefix) + padded(number(low) + static_cast<uint32_t>(last + 1 - next), low)) {
        ++last;
      }
      ranges += ranges.empty() ? "" : ",";
      ranges += low;
      if (last > next) ranges += "-" + std::string(split_number(names[last]).second);
      count += last + 1 - next;
      next = last + 1;
    }
    text += text.empty() ? "" : ",";
    if (count > 1) {
      text += std::string(prefix) + "[" + ranges + "]";
      i = next;
    } else {
      text += names[i++];
    }
  }
  return text;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                  c == '_' || c == '.' || c == ':';
         });
}

}  // namespace netsum::tool
