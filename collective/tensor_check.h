// What an all-reduce refuses before anything is sent. It looks at this rank's arguments alone, so ranks that pass the
// same shapes get the same answer.
#ifndef NETSUM_COLLECTIVE_TENSOR_CHECK_H_
#define NETSUM_COLLECTIVE_TENSOR_CHECK_H_

#include <cstdint>
#include <span>

#include "netsum/communicator.h"

namespace netsum {

// Why this cannot be summed in the network with packets of `payload_bytes`, or ok. Errors: kUnsupported (type,
// operator), kInvalidArgument (null, too large, or overlapping memory).
Status check_all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options,
                        uint32_t payload_bytes);

}  // namespace netsum

#endif  // NETSUM_COLLECTIVE_TENSOR_CHECK_H_
