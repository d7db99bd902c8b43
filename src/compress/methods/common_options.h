// Options that several methods have.
#ifndef NETSUM_SRC_COMPRESS_METHODS_COMMON_OPTIONS_H_
#define NETSUM_SRC_COMPRESS_METHODS_COMMON_OPTIONS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/compress/option.h"

namespace netsum::compress {

inline constexpr Option kRatio = {
    .name = "ratio",
    .range = "above 0 and at most 1",
    .help = "the share of the elements that is sent, at least one element",
    .allows = [](const CompressionOptions& o) { return o.ratio > 0 && o.ratio <= 1; }};
inline constexpr Option kK = {.name = "k", .help = "elements that are sent, at most all; 0: `ratio` decides"};
// Of n elements; 1 to n. 0 of 0.
inline size_t elements_to_send(size_t n, uint64_t k, double ratio) {
  if (n == 0) return 0;
  if (k > 0) return static_cast<size_t>(std::min<uint64_t>(k, n));
  return std::clamp<size_t>(static_cast<size_t>(static_cast<double>(n) * ratio), 1, n);
}

inline constexpr size_t kMostBlock = 4096;
constexpr bool is_block(uint32_t block) {
  return block >= 1 && block <= kMostBlock;
}
inline constexpr Option kBlock = {.name = "block",
                                  .range = "between 1 and 4096",
                                  .help = "elements that share a scale",
                                  .allows = [](const CompressionOptions& o) { return is_block(o.block); }};

inline constexpr Option kSeed = {.name = "seed", .help = "of random numbers; equal on all ranks"};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_METHODS_COMMON_OPTIONS_H_
