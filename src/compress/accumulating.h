// What methods have in common that agree on numbers of each block: the memory can be added in the same pass.
#ifndef NETSUM_SRC_COMPRESS_ACCUMULATING_H_
#define NETSUM_SRC_COMPRESS_ACCUMULATING_H_

#include "netsum/compression.h"

namespace netsum::compress {

class AccumulatingCompressor : public Compressor {
 public:
  // copy = memory; memory = decay * memory + gradient; and then agree() of the memory.
  virtual void agree_added(const CompressionContext& context, float decay, std::span<const float> gradient,
                           float* memory, float* copy, float* mine) const = 0;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_ACCUMULATING_H_
