#include "src/base/spin_setting.h"

#include <charconv>
#include <string>

#include "src/base/spin_wait.h"
#include "src/base/text.h"

namespace netsum {
namespace {

struct Unit {
  std::string_view name;
  double us;
};
// The name of a unit comes before the names that it ends with.
constexpr Unit kUnits[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}};

}  // namespace

Status check_spin(std::chrono::microseconds spin) {
  if (spin.count() >= 0 && spin <= kLongestSpin) return {};
  return {ErrorCode::kInvalidArgument, "spin is " + std::to_string(spin.count()) +
                                           " us; it must be 0 (never) to " +
                                           std::to_string(kLongestSpin.count()) + " us (60 s)"};
}

Result<std::chrono::microseconds> parse_spin(std::string_view text) {
  using std::chrono::microseconds;
  if (text == "0" || text == "false") return microseconds(0);
  if (text == "1" || text == "true") return microseconds(SpinWait::kSpinUs);
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    const std::string_view number = text.substr(0, text.size() - unit.name.size());
    double us = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), us);
    us *= unit.us;
    // In this form, it is false for NaN.
    const bool fits = us == 0 || (us >= 1 && us <= static_cast<double>(kLongestSpin.count()));
    if (error == std::errc() && end == number.data() + number.size() && fits)
      return microseconds(static_cast<int64_t>(us));
    break;
  }
  return Status(
      ErrorCode::kInvalidArgument,
      "'" + printable(text, 40) +
          "' is not how long to poll; expected 0 (never), 1 (up to 50 us, while that pays), or a time "
          "from 1us to 60s, such as 10ms");
}

}  // namespace netsum
