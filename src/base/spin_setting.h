// How long threads that wait poll before they sleep (CommunicatorOptions::spin): its limits.
#ifndef NETSUM_SRC_BASE_SPIN_SETTING_H_
#define NETSUM_SRC_BASE_SPIN_SETTING_H_

#include <chrono>

#include "netsum/status.h"

namespace netsum {

inline constexpr std::chrono::microseconds kLongestSpin = std::chrono::seconds(60);

// kInvalidArgument: negative, or above kLongestSpin.
Status check_spin(std::chrono::microseconds spin);

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_SPIN_SETTING_H_
