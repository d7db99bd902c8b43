// What a rank keeps of a tensor between steps.
#ifndef NETSUM_SRC_COMPRESS_MEMORY_H_
#define NETSUM_SRC_COMPRESS_MEMORY_H_

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "netsum/compression.h"
#include "src/compress/option.h"

namespace netsum::compress {

class Memory {
 public:
  virtual ~Memory() = default;

  // Adds a gradient to what was kept, of which a copy stays. Returns what is to be compressed, which stays where it is until the
  // next call.
  virtual const float* compensate(const float* gradient, int ranks) = 0;
  // From the copy: what was kept before the last gradient was added.
  virtual void take_back() {}
  // Of a memory that is decay * memory + gradient, and then what remains of it: the decay. Otherwise null. Who adds the gradient
  // instead of compensate() writes the copy of residual() to copy().
  virtual const float* decay() const { return nullptr; }
  virtual float* copy() { return nullptr; }
  // Where the compressor leaves what it has not sent, which may be what compensate() returned; or null.
  virtual float* residual() = 0;
  // After each compression. `sent`: the payload, if it is as long as the tensor; otherwise null.
  virtual void compressed(const float* /*sent*/) {}
  virtual std::vector<CompressionState> state() = 0;
};

// A kind of memory, as CompressionOptions::memory names it.
// "none"; "residual": m <- decay m + g, of which the residual stays (Seide et al., Interspeech 2014); "dgc": momentum
// correction and factor masking, u <- momentum u + g, v <- v + u; where v is sent, both become 0 (Lin et al., ICLR 2018). The
// gradient is first scaled to an L2 norm of at most clip_norm / sqrt(N), for each tensor by itself, since other tensors are
// not known yet; the paper takes the norm over all of them. "momentum": m <- momentum m + (1 - momentum) g is what is compressed, of
// which nothing is taken away (Signum: Bernstein et al., ICML 2018).
struct MemoryForm {
  std::string_view name;
  std::unique_ptr<Memory> (*make)(const CompressionOptions& options, size_t count);
  std::array<const Option*, 2> options{};  // null after the last
};
std::span<const MemoryForm> memories();

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_MEMORY_H_
