// What somebody without the key makes of a packet that was observed.
#ifndef NETSUM_TESTS_ATTACK_FORGERY_H_
#define NETSUM_TESTS_ATTACK_FORGERY_H_

#include <cstdint>
#include <vector>

#include "src/base/rng.h"
#include "wire/ids.h"

namespace netsum::attack {

// `bytes`: a whole packet with lanes. What comes back never is the same packet, and never has a right check.
inline std::vector<uint8_t> forgery(Rng* rng, std::vector<uint8_t> bytes) {
  const auto random_from = [&](size_t begin) {
    for (size_t i = begin; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(rng->next());
  };
  switch (rng->below(6)) {
    case 0:  // noise
      bytes.resize(rng->below(200));
      random_from(0);
      break;
    case 1:  // cut off
      bytes.resize(rng->below(bytes.size()));
      break;
    case 2:  // made longer
      bytes.resize(bytes.size() + 8 * (1 + rng->below(8)));
      break;
    case 3:  // the right header, another tag
      for (size_t i = 24; i < NETSUM_HEADER_BYTES; ++i) bytes[i] = static_cast<uint8_t>(rng->next());
      break;
    case 4: {  // the observed tag over other lanes
      const uint64_t lane = NETSUM_HEADER_BYTES + 4 * rng->below((bytes.size() - NETSUM_HEADER_BYTES) / 4);
      bytes[lane] = static_cast<uint8_t>(bytes[lane] + 1 + rng->below(255));
      break;
    }
    default:  // the observed packet for another round, so for one that is open or next
      bytes[15] = static_cast<uint8_t>(bytes[15] + 1 + rng->below(255));
      break;
  }
  return bytes;
}

}  // namespace netsum::attack

#endif  // NETSUM_TESTS_ATTACK_FORGERY_H_
