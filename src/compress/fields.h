// Small numbers in 32-bit lanes, so that those of N ranks add up without a carry into a neighbour: a field has room for N times
// the largest number, and a lane as many fields as fit 31 bits, which no sum exceeds (docs/numerics.md). For one bit, the sum
// of 4 ranks needs 3 bits, so 10 elements travel in a lane; that of 8 ranks 4 bits, 7 elements.
#ifndef NETSUM_SRC_COMPRESS_FIELDS_H_
#define NETSUM_SRC_COMPRESS_FIELDS_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/base/assert.h"

namespace netsum::compress {

class Fields {
 public:
  static constexpr uint32_t kLaneBits = 31;

  // Of numbers from 0 to `largest`.
  Fields(uint32_t largest, int ranks)
      : bits_(static_cast<uint32_t>(std::bit_width(uint64_t{largest} * static_cast<uint64_t>(ranks)))),
        per_lane_(bits_ == 0 ? 0 : kLaneBits / bits_) {
    NETSUM_ASSERT(per_lane_ > 0);
  }

  uint32_t per_lane() const { return per_lane_; }
  size_t lanes(size_t count) const { return (count + per_lane_ - 1) / per_lane_; }

  // number_of(i) is the number of element i.
  template <class NumberOf>
  void pack(size_t count, int32_t* lanes, const NumberOf& number_of) const {
    for (size_t i = 0; i < count;) {
      uint32_t lane = 0;
      for (uint32_t f = 0; f < per_lane_ && i < count; ++f, ++i) lane |= number_of(i) << (f * bits_);
      *lanes++ = static_cast<int32_t>(lane);
    }
  }
  // take(i, sum): of element i.
  template <class Take>
  void unpack(size_t count, const int32_t* lanes, const Take& take) const {
    const uint32_t mask = (uint32_t{1} << bits_) - 1;
    for (size_t i = 0; i < count;) {
      const auto lane = static_cast<uint32_t>(*lanes++);
      for (uint32_t f = 0; f < per_lane_ && i < count; ++f, ++i) take(i, lane >> (f * bits_) & mask);
    }
  }

 private:
  uint32_t bits_;
  uint32_t per_lane_;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_FIELDS_H_
