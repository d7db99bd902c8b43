#include "src/base/spin_setting.h"

#include <string>

namespace netsum {

Status check_spin(std::chrono::microseconds spin) {
  if (spin.count() >= 0 && spin <= kLongestSpin) return {};
  return {ErrorCode::kInvalidArgument, "spin is " + std::to_string(spin.count()) +
                                           " us; it must be 0 (never) to " +
                                           std::to_string(kLongestSpin.count()) + " us (60 s)"};
}

}  // namespace netsum
