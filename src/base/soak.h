// For tests: whether to run the long form, which `make soak` selects by NETSUM_SOAK=1.
#pragma once

#include <cstdlib>
#include <string_view>

namespace netsum {

inline bool soak() {
  const char* asked = std::getenv("NETSUM_SOAK");
  return asked != nullptr && std::string_view(asked) == "1";
}

}  // namespace netsum
