#include "src/base/text.h"

#include <algorithm>

namespace netsum {
namespace {

constexpr std::string_view kCut = "...";

bool is_printable(char c) {
  return c >= 0x20 && c <= 0x7e;
}

void append_escaped(char c, std::string* text) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  switch (c) {
    case '\n':
      *text += "\\n";
      return;
    case '\r':
      *text += "\\r";
      return;
    case '\t':
      *text += "\\t";
      return;
    default:
      *text += "\\x";
      *text += kHex[byte >> 4];
      *text += kHex[byte & 15];
  }
}

}  // namespace

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return is_printable(c); });
}

Status check_text(const std::string& what, std::string_view text, size_t most_bytes) {
  if (text.size() > most_bytes)
    return {ErrorCode::kInvalidArgument, what + " has " + std::to_string(text.size()) + " bytes; at most " +
                                             std::to_string(most_bytes) + " are allowed"};
  if (!is_printable(text))
    return {ErrorCode::kInvalidArgument, what + " may hold printable ASCII characters only"};
  return {};
}

std::string printable(std::string_view text, size_t most_bytes) {
  std::string result;
  size_t fits = 0;  // bytes of the result after which the mark of a cut still fits
  for (const char c : text) {
    if (is_printable(c))
      result += c;
    else
      append_escaped(c, &result);
    if (result.size() > most_bytes) return result.substr(0, fits).append(kCut);
    if (result.size() + kCut.size() <= most_bytes) fits = result.size();
  }
  return result;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  // Volatile, so that the compiler cannot stop at the first difference.
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace netsum
