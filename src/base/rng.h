// A small deterministic generator (SplitMix64, Steele et al., OOPSLA'14), for simulation, tests and jitter.
// Not for secrets: those come from the system (getrandom).
#ifndef NETSUM_SRC_BASE_RNG_H_
#define NETSUM_SRC_BASE_RNG_H_

#include <cstdint>

namespace netsum {

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound); bound > 0. The bias is below bound / 2^64.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
  // Uniform in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  bool chance(double probability) { return unit() < probability; }

 private:
  uint64_t state_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_RNG_H_
