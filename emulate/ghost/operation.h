// A recorded operation as the worker's protocol takes it.
#ifndef NETSUM_EMULATE_GHOST_OPERATION_H_
#define NETSUM_EMULATE_GHOST_OPERATION_H_

#include "netsum/status.h"
#include "src/encoding/without_tensors.h"
#include "src/program/program.h"
#include "src/worker/operation.h"

namespace netsum::ghost {

// Why ghosts cannot take part in it (kUnsupported; the message begins with the collective's name), or ok.
Status check_supported(const program::Operation& operation);

// What rank `rank` of a group of `size` submits, without tensors, or an aggregator for `ranks` ranks from that one on.
// check_supported(). `contribution` must outlive the operation; null: zeros.
OperationSpec spec_of(const program::Operation& operation, int rank, int size, int ranks = 1,
                      const Contribution* contribution = nullptr);

}  // namespace netsum::ghost

#endif  // NETSUM_EMULATE_GHOST_OPERATION_H_
