#include "src/compress/index_coding.h"

#include <algorithm>
#include <cstring>

#include "src/compress/index_stream.h"

namespace netsum::compress {
namespace {

constexpr size_t kHeader = 2 * sizeof(uint64_t);

}  // namespace

size_t coded_bytes(size_t n, size_t k) {
  return kHeader + bytes_of_bits(IndexCode(n, k).bits) + k * sizeof(float);
}

size_t most_coded_bytes(size_t n) {
  return kHeader + bytes_of_bits(n) + n * sizeof(float);
}

size_t encode_indices(std::span<const float> values, std::byte* coded) {
  const size_t n = values.size();
  const size_t k = n - static_cast<size_t>(std::count(values.begin(), values.end(), 0.0f));
  const IndexCode code(n, k);
  const uint64_t header[] = {coded_bytes(n, k), k};
  std::memcpy(coded, header, sizeof header);
  std::byte* const index = coded + kHeader;
  std::byte* const sent = index + bytes_of_bits(code.bits);
  BitWriter bits(index);
  IndexWriter indices(code, bits);
  std::byte* to = sent;
  for (size_t i = 0; to != sent + k * sizeof(float); ++i) {
    if (values[i] == 0) continue;
    indices.put(i);
    std::memcpy(to, &values[i], sizeof(float));
    to += sizeof(float);
  }
  std::fill(bits.finish(), sent, std::byte{0});
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
  const IndexCode code(n, k);
  const std::byte* value = coded + kHeader + bytes_of_bits(code.bits);
  BitReader bits(coded + kHeader);
  IndexReader indices(code, bits);
  for (size_t found = 0, i = 0; found < k; ++found, value += sizeof(float)) {
    if (!indices.get(&i)) return false;
    std::memcpy(&values[i], value, sizeof(float));
  }
  return true;
}

}  // namespace netsum::compress
