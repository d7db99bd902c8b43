// The aggregator's work for the ranks of one host, in memory.
#ifndef NETSUM_SRC_HOST_LOCAL_SUM_H_
#define NETSUM_SRC_HOST_LOCAL_SUM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/worker/operation.h"

namespace netsum {

class LocalSum {
 public:
  // Chunks are cut and encoded as for packets of `payload_bytes`, so the sums have the same bits as over the network.
  explicit LocalSum(uint32_t payload_bytes);

  // Sums all inputs of `operation` into its outputs. Returns false if an integer sum does not fit.
  bool run(const Operation& operation);

 private:
  bool run_chunk(const Operation& operation, Chunk&& chunk);

  const uint32_t payload_bytes_;
  std::array<std::vector<uint8_t>, kMaxPackets> payloads_;
  std::vector<uint8_t> agreed_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_LOCAL_SUM_H_
