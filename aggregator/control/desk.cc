#include "aggregator/control/desk.h"

#include <sys/random.h>

#include "src/base/assert.h"

namespace netsum {

uint64_t system_random() {
  uint64_t value = 0;
  // Reads of up to 256 bytes are never cut short.
  NETSUM_ASSERT(::getrandom(&value, sizeof(value), 0) == sizeof(value));
  return value;
}

}  // namespace netsum
