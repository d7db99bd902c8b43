// Which arguments of a collective are refused before anything is sent. Only this rank's arguments matter, so ranks that
// pass the same shapes get the same answer.
#ifndef NETSUM_SESSION_TENSOR_CHECK_H_
#define NETSUM_SESSION_TENSOR_CHECK_H_

#include <cstdint>

#include "netsum/status.h"
#include "src/worker/operation.h"

namespace netsum {

// Why the operation is none of a job of `world_size` ranks, or ok: its root is no rank (kInvalidArgument), it has not one
// part for each rank (kInvalidArgument), or it sums bytes (kUnsupported).
Status check_role(const OperationSpec& spec, int world_size);

// Why the operation cannot be summed with packets of `payload_bytes`, or ok. Errors: kUnsupported (type, operator),
// kInvalidArgument (null, too large, or overlapping memory).
Status check_operation(const OperationSpec& spec, uint32_t payload_bytes);

}  // namespace netsum

#endif  // NETSUM_SESSION_TENSOR_CHECK_H_
