// The aggregator's work for the ranks of one host, in memory.
#ifndef NETSUM_SRC_HOST_LOCAL_SUM_H_
#define NETSUM_SRC_HOST_LOCAL_SUM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/encoding/elements.h"
#include "src/encoding/encoding.h"
#include "src/worker/operation.h"

namespace netsum {

// For LocalSum::run(): elements [begin, begin + count) of all ranks' inputs, each contiguous, and of their sum, whatever the role.
// Zeros lie where a rank contributes nothing, and copy_out() drops what it does not receive.
TensorSequence sequence_of(const Operation& operation, std::span<const uint8_t* const> inputs, size_t begin,
                           size_t count, uint8_t* sum);

class LocalSum {
 public:
  // Chunks are cut and encoded as for packets of `payload_bytes`, so sums by lanes have the same bits as over the network.
  explicit LocalSum(uint32_t payload_bytes);

  // Sums all inputs of `all` into its outputs, by lanes; all tensors have both. Returns false if an integer sum does not fit.
  bool run(const Encoding& encoding, const TensorSequence& all);

 private:
  bool run_chunk(const Encoding& encoding, const Elements& chunk);

  const uint32_t payload_bytes_;
  std::array<std::vector<uint8_t>, kMaxPackets> payloads_;
  std::vector<uint8_t> agreed_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_LOCAL_SUM_H_
