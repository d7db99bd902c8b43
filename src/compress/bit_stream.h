// Numbers of a fixed width of up to 32 bits, one behind the other. Bit i is bit i % 8 of byte i / 8.
#ifndef NETSUM_SRC_COMPRESS_BIT_STREAM_H_
#define NETSUM_SRC_COMPRESS_BIT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace netsum::compress {

constexpr size_t bytes_of_bits(size_t bits) {
  return (bits + 7) / 8;
}

class BitWriter {
 public:
  explicit BitWriter(std::byte* to) : to_(to) {}

  // `number` has at most `bits` bits.
  void put(uint32_t number, uint32_t bits) {
    pending_ |= uint64_t{number} << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8) {
      *to_++ = static_cast<std::byte>(pending_);
      pending_ >>= 8;
    }
  }
  // Writes the last byte; returns the end.
  std::byte* finish() {
    if (count_ > 0) *to_++ = static_cast<std::byte>(pending_);
    pending_ = count_ = 0;
    return to_;
  }

 private:
  std::byte* to_;
  uint64_t pending_ = 0;
  uint32_t count_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const std::byte* from) : from_(from) {}

  // Reads no byte in which it needs no bit.
  uint32_t get(uint32_t bits) {
    for (; count_ < bits; count_ += 8) pending_ |= static_cast<uint64_t>(*from_++) << count_;
    const auto number = static_cast<uint32_t>(pending_ & ((uint64_t{1} << bits) - 1));
    pending_ >>= bits;
    count_ -= bits;
    return number;
  }

 private:
  const std::byte* from_;
  uint64_t pending_ = 0;
  uint32_t count_ = 0;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_BIT_STREAM_H_
