#ifndef NETSUM_API_INVALID_H_
#define NETSUM_API_INVALID_H_

#include <string>
#include <utility>

#include "netsum/status.h"

namespace netsum {

inline Status invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace netsum

#endif  // NETSUM_API_INVALID_H_
