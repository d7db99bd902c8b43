// One tensor: a compressor, its memory, and the count of steps.
#ifndef NETSUM_SRC_COMPRESS_TENSOR_H_
#define NETSUM_SRC_COMPRESS_TENSOR_H_

#include <cstddef>
#include <memory>

#include "netsum/compression.h"
#include "src/compress/memory.h"

namespace netsum::compress {

// `is_coded`: the payloads of a kSparse method travel as indices and values.
std::unique_ptr<CompressedTensor> make_tensor(std::shared_ptr<const Compressor> compressor,
                                              std::unique_ptr<Memory> memory, size_t count,
                                              const CompressionContext& context, bool is_coded);

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_TENSOR_H_
