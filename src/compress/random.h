// Random numbers as functions of a key and a counter (SplitMix64's mixing function; Steele et al., OOPSLA'14): the same on
// every machine, in any order, without a state that anything else could disturb.
#ifndef NETSUM_SRC_COMPRESS_RANDOM_H_
#define NETSUM_SRC_COMPRESS_RANDOM_H_

#include <cstdint>
#include <initializer_list>

namespace netsum::compress {

class Random {
 public:
  // Keys that differ in any part are independent.
  explicit Random(std::initializer_list<uint64_t> key) {
    for (const uint64_t part : key) key_ = mix(key_ ^ mix(part + kStep));
  }

  uint64_t at(uint64_t counter) const { return mix(key_ + (counter + 1) * kStep); }
  // Uniform in [0, bound); bound > 0. The bias is below bound / 2^64.
  uint64_t below(uint64_t counter, uint64_t bound) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(at(counter)) * bound) >> 64);
  }
  // Uniform in [0, 1), a multiple of 2^-24.
  float unit(uint64_t counter) const { return static_cast<float>(at(counter) >> 40) * 0x1.0p-24f; }

 private:
  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;
  static constexpr uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  uint64_t key_ = 0;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_RANDOM_H_
