// What the aggregator does for ranks of several hosts, done in memory for those of one.
#ifndef NETSUM_SRC_HOST_LOCAL_SUM_H_
#define NETSUM_SRC_HOST_LOCAL_SUM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/worker/operation.h"

namespace netsum {

class LocalSum {
 public:
  // Chunks are cut as for packets of `payload_bytes`: the same scales, so the same bits as over the network.
  explicit LocalSum(uint32_t payload_bytes);

  // Sums all inputs of `operation`, every summand of the job among them, into its outputs. Returns false if
  // an integer sum does not fit.
  bool run(const Operation& operation);

 private:
  bool run_chunk(const Operation& operation, size_t begin, size_t n);

  const uint32_t payload_bytes_;
  std::vector<uint8_t> lanes_;
  std::vector<uint8_t> high_lanes_;
  std::vector<uint8_t> scales_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_LOCAL_SUM_H_
