// Assertions that are also active in release builds: a bug stops the process instead of giving a wrong sum.
#ifndef NETSUM_SRC_BASE_ASSERT_H_
#define NETSUM_SRC_BASE_ASSERT_H_

namespace netsum {
[[noreturn]] void assert_failed(const char* condition, const char* file, int line);
}  // namespace netsum

#define NETSUM_ASSERT(condition) \
  (__builtin_expect(!!(condition), 1) ? (void)0 : ::netsum::assert_failed(#condition, __FILE__, __LINE__))

#endif  // NETSUM_SRC_BASE_ASSERT_H_
