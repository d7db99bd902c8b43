// FNV-1a of 64 bits: a hash that is the same on all hosts and in all versions.
#ifndef NETSUM_SRC_BASE_FNV_H_
#define NETSUM_SRC_BASE_FNV_H_

#include <cstdint>

namespace netsum {

inline constexpr uint64_t kFnvBasis = 0xcbf29ce484222325;

// `hash` continued by `value`, a byte in the definition of FNV.
constexpr uint64_t fnv1a(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x100000001b3;
}

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_FNV_H_
