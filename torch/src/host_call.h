// A call of c10d that Gloo runs.
#ifndef NETSUM_TORCH_SRC_HOST_CALL_H_
#define NETSUM_TORCH_SRC_HOST_CALL_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "netsum/status.h"
#include "torch/src/buffers.h"

namespace netsum::torch_backend {

struct HostCall {
  Status refusal;      // why Gloo cannot run it
  std::string reason;  // why the network does not; empty: that was said when the group was made
  std::string op;      // the operator, in messages
  bool reduces = false;
  // All dense tensors of the call. Gloo gets their memory.
  Buffers buffers;
  std::optional<double> factor;  // as of Buffers::prepare()
  std::vector<std::vector<at::Tensor>> results;
  // Passes the prepared buffers to Gloo. Null: there is nothing for it to do.
  std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend& gloo, const Buffers& buffers)> start;
  // Makes the results in the buffers of what Gloo has written. May be empty.
  std::function<void(const Buffers& buffers)> unpack;
  bool is_point_to_point = false;
  bool equal_sizes = true;  // of the first tensor, on all ranks
  bool is_sparse = false;   // the buffers are indices and values
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_HOST_CALL_H_
