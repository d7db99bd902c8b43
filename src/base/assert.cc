#include "src/base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace netsum {

void assert_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "netsum: bug: %s is false at %s:%d; please report this\n", condition, file, line);
  std::abort();
}

}  // namespace netsum
