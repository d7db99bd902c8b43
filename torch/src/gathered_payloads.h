// Payloads that cannot be summed: every rank gets those of all ranks.
#ifndef NETSUM_TORCH_SRC_GATHERED_PAYLOADS_H_
#define NETSUM_TORCH_SRC_GATHERED_PAYLOADS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "torch/src/compressed_tensor.h"
#include "torch/src/process_group.h"

namespace netsum::torch_backend {

// One all-gather of the payloads and side values of several tensors of a bucket. A payload that varies begins with its length. If
// there is one, the ranks tell each other first how many bytes they have, and what travels of each is as long as the longest.
// Memory only grows.
class GatheredPayloads {
 public:
  struct Part {
    size_t item = 0;  // of the bucket
    Tensor* tensor = nullptr;
    std::string name;
    at::Tensor payload, side;  // of this rank
    // What has arrived of each rank.
    struct Received {
      const std::byte* payload = nullptr;
      const float* side = nullptr;
    };
    std::vector<Received> received;
  };

  GatheredPayloads(std::vector<Part> parts, int ranks);

  // Packs the payloads, and starts the all-gather. Waits for the lengths, if they vary. The ranks compare `tag`.
  c10::intrusive_ptr<c10d::Work> start(ProcessGroupNetsum& group, uint32_t tag);
  // That this rank receives: payloads, and their lengths.
  uint64_t link_bytes() const {
    return static_cast<uint64_t>(ranks_) * bytes_ + (varies_ ? sizes_.nbytes() : 0);
  }
  // When it has ended: finds the payloads in what has arrived. Throws if a rank has sent something that is none.
  void arrived();
  // Writes the mean of a tensor: of the payloads of all ranks, in their order, so that all ranks get the same bits.
  void average(size_t item, const at::Tensor& out);

 private:
  size_t packed_bytes() const;
  void grow(size_t bytes);

  std::vector<Part> parts_;
  int ranks_;
  bool varies_ = false;
  at::Tensor scratch_;  // of the longest tensor
  at::Tensor sent_, received_;
  at::Tensor size_, sizes_;
  size_t bytes_ = 0;  // that each rank sends
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_GATHERED_PAYLOADS_H_
