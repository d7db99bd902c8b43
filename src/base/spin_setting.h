// How long threads that wait poll before they sleep (CommunicatorOptions::spin): its limits, and its text.
#ifndef NETSUM_SRC_BASE_SPIN_SETTING_H_
#define NETSUM_SRC_BASE_SPIN_SETTING_H_

#include <chrono>
#include <string_view>

#include "netsum/status.h"

namespace netsum {

inline constexpr std::chrono::microseconds kLongestSpin = std::chrono::seconds(60);

// kInvalidArgument: negative, or above kLongestSpin.
Status check_spin(std::chrono::microseconds spin);

// "0" (never), "1" (the default), or a time such as "500us", "10ms" or "1s"; also "false" and "true". kInvalidArgument: another
// text, or a time that check_spin() refuses.
Result<std::chrono::microseconds> parse_spin(std::string_view text);

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_SPIN_SETTING_H_
