#include "src/compress/index_coding.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/compress/bit_stream.h"

namespace netsum::compress {
namespace {

constexpr size_t kHeader = 2 * sizeof(uint64_t);

struct Form {
  bool is_bitmap;
  uint32_t low_bits;
  size_t low_bytes;    // of the lower bits of all indices
  size_t index_bytes;  // these, and behind them the others; or the bitmap
};

Form form_of(size_t n, size_t k) {
  const size_t bitmap = bytes_of_bits(n);
  if (k == 0) return {.is_bitmap = false, .low_bits = 0, .low_bytes = 0, .index_bytes = 0};
  // Indices of more than 32 bits keep more upper ones.
  const auto low_bits = std::min(static_cast<uint32_t>(std::bit_width(n / k)) - 1, 32u);
  const size_t low_bytes = bytes_of_bits(k * low_bits);
  const size_t index_bytes = low_bytes + bytes_of_bits(k + (n >> low_bits));
  if (index_bytes >= bitmap) return {.is_bitmap = true, .low_bits = 0, .low_bytes = 0, .index_bytes = bitmap};
  return {.is_bitmap = false, .low_bits = low_bits, .low_bytes = low_bytes, .index_bytes = index_bytes};
}

void set_bit(std::byte* bits, size_t i) {
  bits[i / 8] |= static_cast<std::byte>(1u << i % 8);
}

// take(i): the bits that are set in `bytes` bytes. Stops when it returns false.
template <class Take>
bool for_each_bit(const std::byte* bits, size_t bytes, const Take& take) {
  for (size_t b = 0; b < bytes; ++b)
    for (auto rest = static_cast<uint32_t>(bits[b]); rest != 0; rest &= rest - 1)
      if (!take(8 * b + static_cast<size_t>(std::countr_zero(rest)))) return false;
  return true;
}

}  // namespace

size_t coded_bytes(size_t n, size_t k) {
  return kHeader + form_of(n, k).index_bytes + k * sizeof(float);
}

size_t most_coded_bytes(size_t n) {
  return kHeader + bytes_of_bits(n) + n * sizeof(float);
}

size_t encode_indices(std::span<const float> values, std::byte* coded) {
  const size_t n = values.size();
  const size_t k = n - static_cast<size_t>(std::count(values.begin(), values.end(), 0.0f));
  const Form form = form_of(n, k);
  const uint64_t header[] = {coded_bytes(n, k), k};
  std::memcpy(coded, header, sizeof header);
  std::byte* const index = coded + kHeader;
  std::memset(index, 0, form.index_bytes);
  std::byte* value = index + form.index_bytes;
  BitWriter low(index);
  const uint64_t low_mask = (uint64_t{1} << form.low_bits) - 1;
  for (size_t i = 0, sent = 0; sent < k; ++i) {
    if (values[i] == 0) continue;
    std::memcpy(value, &values[i], sizeof(float));
    value += sizeof(float);
    if (form.is_bitmap) {
      set_bit(index, i);
    } else {
      low.put(static_cast<uint32_t>(i & low_mask), form.low_bits);
      set_bit(index + form.low_bytes, (i >> form.low_bits) + sent);
    }
    ++sent;
  }
  if (!form.is_bitmap) low.finish();
  return header[0];
}

bool decode_indices(const std::byte* coded, std::span<float> values) {
  const size_t n = values.size();
  uint64_t header[2] = {};
  std::memcpy(header, coded, sizeof(uint64_t));
  if (header[0] < kHeader) return false;
  std::memcpy(header, coded, sizeof header);
  const size_t k = header[1];
  if (k > n || header[0] != coded_bytes(n, k)) return false;
  std::fill(values.begin(), values.end(), 0.0f);
  const Form form = form_of(n, k);
  const std::byte* const index = coded + kHeader;
  const std::byte* const value = index + form.index_bytes;
  BitReader low(index);
  size_t found = 0;
  const bool fits = for_each_bit(index + form.low_bytes, form.index_bytes - form.low_bytes, [&](size_t bit) {
    if (found == k) return false;
    // Bits are ascending, so bit >= found.
    const size_t i = form.is_bitmap ? bit : (bit - found) << form.low_bits | low.get(form.low_bits);
    if (i >= n) return false;
    std::memcpy(&values[i], value + found * sizeof(float), sizeof(float));
    ++found;
    return true;
  });
  return fits && found == k;
}

}  // namespace netsum::compress
