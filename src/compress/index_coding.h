// Tensors that are mostly zero, as indices and values, for paths where indices travel.
//
// After 8 bytes with the length and 8 bytes with the number k of elements that are not zero come the indices (index_stream.h), and
// then the k values. An index takes 8.6 bits at a share of 1 %, 12 at 0.1 %, and all of them never more than a bitmap.
#ifndef NETSUM_SRC_COMPRESS_INDEX_CODING_H_
#define NETSUM_SRC_COMPRESS_INDEX_CODING_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace netsum::compress {

// Of tensors of n elements, k of them not zero.
size_t coded_bytes(size_t n, size_t k);
// For any k.
size_t most_coded_bytes(size_t n);

// Writes at most most_coded_bytes(); returns how many.
size_t encode_indices(std::span<const float> values, std::byte* coded);
// The first 8 bytes are the number of bytes that may be read. False, with `values` undefined, if these are not the code of so many
// values.
bool decode_indices(const std::byte* coded, std::span<float> values);

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_INDEX_CODING_H_
