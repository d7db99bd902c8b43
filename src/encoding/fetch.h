// Asks for what is copied next. Tensors are in no near cache, and processors fetch ahead themselves only within a page.
#ifndef NETSUM_SRC_ENCODING_FETCH_H_
#define NETSUM_SRC_ENCODING_FETCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "netsum/types.h"
#include "src/encoding/elements.h"

namespace netsum {

template <int kToWrite>
void fetch(const uint8_t* from, size_t bytes) {
  constexpr size_t kMost = 2048, kCacheLine = 64;
  for (size_t i = 0; i < std::min(bytes, kMost); i += kCacheLine) __builtin_prefetch(from + i, kToWrite);
  asm volatile("");  // without it, GCC sees no effect, and leaves out the call
}

inline void fetch_input(const Elements& elements) {
  elements.for_each_run([&](const Run& run) {
    if (run.input != nullptr) fetch<0>(run.input, run.count * size_of(elements.type()));
  });
}

inline void fetch_output(const Elements& elements) {
  elements.for_each_run([&](const Run& run) {
    if (run.output != nullptr) fetch<1>(run.output, run.count * size_of(elements.type()));
  });
}

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_FETCH_H_
