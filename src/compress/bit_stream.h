// Numbers of a fixed width of up to 32 bits, one behind the other. Bit i is bit i % 8 of byte i / 8.
#ifndef NETSUM_SRC_COMPRESS_BIT_STREAM_H_
#define NETSUM_SRC_COMPRESS_BIT_STREAM_H_

#include <bit>
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

// n numbers of up to 8 bits, from and to bytes. Return where the next ones are; if n is no multiple of 8, these are the last.
inline std::byte* pack_bits(const uint8_t* numbers, size_t n, uint32_t bits, std::byte* to) {
  static_assert(std::endian::native == std::endian::little);
  size_t i = 0;
  for (; i + 8 <= n; i += 8, to += bits) {
    uint64_t packed = 0;
    for (uint32_t j = 0; j < 8; ++j) packed |= uint64_t{numbers[i + j]} << (j * bits);
    std::memcpy(to, &packed, bits);
  }
  BitWriter rest(to);
  for (; i < n; ++i) rest.put(numbers[i], bits);
  return rest.finish();
}
inline const std::byte* unpack_bits(const std::byte* from, size_t n, uint32_t bits, uint8_t* numbers) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  size_t i = 0;
  for (; i + 8 <= n; i += 8, from += bits) {
    uint64_t packed = 0;
    std::memcpy(&packed, from, bits);
    for (uint32_t j = 0; j < 8; ++j) numbers[i + j] = static_cast<uint8_t>(packed >> (j * bits) & mask);
  }
  BitReader rest(from);
  for (; i < n; ++i) numbers[i] = static_cast<uint8_t>(rest.get(bits));
  return from;
}

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_BIT_STREAM_H_
