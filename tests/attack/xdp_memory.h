// The memory of the XDP program's slots, as faulty memory would alter it.
#ifndef NETSUM_TESTS_ATTACK_XDP_MEMORY_H_
#define NETSUM_TESTS_ATTACK_XDP_MEMORY_H_

#include <cstdint>
#include <vector>

#include "netsum/status.h"
#include "src/base/rng.h"

namespace netsum::attack {

class XdpMemory {
 public:
  // Of the program that this process has loaded; the last one, if there are several. Error: kUnsupported.
  static Result<XdpMemory> find();

  // Flips a bit of the sum of a random round of the first `slots` slots. What the program adds to this sum at the same time
  // may be undone: another fault of memory. Returns false if the kernel has not taken it.
  bool flip(Rng* rng, uint32_t slots);

 private:
  int map_ = -1;  // the loader's own
  std::vector<uint8_t> sum_;
};

}  // namespace netsum::attack

#endif  // NETSUM_TESTS_ATTACK_XDP_MEMORY_H_
