// Ascending indices in a stream of bits: Rice's code of the gaps between them (Rice, JPL 1979). A gap is the number of elements
// between two that are there; its upper bits are that many zeros and a one, its lower bits follow as they are. Without lower bits,
// the stream is a bitmap.
#ifndef NETSUM_SRC_COMPRESS_INDEX_STREAM_H_
#define NETSUM_SRC_COMPRESS_INDEX_STREAM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/compress/bit_stream.h"

namespace netsum::compress {

// How k of n elements are coded: with as many lower bits as make the longest code shortest.
struct IndexCode {
  IndexCode(size_t n, size_t k) : count(n), chosen(k) {
    bits = bits_with(0);  // a bitmap
    for (uint32_t low = 1; low <= 32; ++low) {
      if (bits_with(low) >= bits) continue;
      low_bits = low;
      bits = bits_with(low);
    }
  }

  size_t count;
  size_t chosen;
  uint32_t low_bits = 0;
  size_t bits = 0;  // at most: k (low_bits + 1) and (n - k) / 2^low_bits, and never more than n

 private:
  size_t bits_with(uint32_t low) const {
    return chosen == 0 ? 0 : chosen * (low + 1) + ((count - chosen) >> low);
  }
};

class IndexWriter {
 public:
  IndexWriter(const IndexCode& code, BitWriter& to) : low_bits_(code.low_bits), to_(to) {}

  // In ascending order.
  void put(size_t index) {
    const size_t gap = index - next_;
    next_ = index + 1;
    for (size_t zeros = gap >> low_bits_; zeros > 0;) {
      const auto some = static_cast<uint32_t>(std::min<size_t>(zeros, 32));
      to_.put(0, some);
      zeros -= some;
    }
    to_.put(1, 1);
    to_.put(static_cast<uint32_t>(gap & ((uint64_t{1} << low_bits_) - 1)), low_bits_);
  }

 private:
  uint32_t low_bits_;
  BitWriter& to_;
  size_t next_ = 0;
};

class IndexReader {
 public:
  IndexReader(const IndexCode& code, BitReader& from)
      : low_bits_(code.low_bits), from_(from), left_(code.count - code.chosen) {}

  // False if the stream is no such code; the reader must not be used again. Reads no more bits than the longest code has.
  bool get(size_t* index) {
    size_t upper = 0;
    while (from_.get(1) == 0)
      if (++upper << low_bits_ > left_) return false;
    const size_t gap = upper << low_bits_ | from_.get(low_bits_);
    if (gap > left_) return false;
    left_ -= gap;
    *index = next_ + gap;
    next_ = *index + 1;
    return true;
  }

 private:
  uint32_t low_bits_;
  BitReader& from_;
  size_t left_;  // elements that are not there, behind the last one that was
  size_t next_ = 0;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_INDEX_STREAM_H_
