// Ranks that are in different operations, where all ranks see what each of them calls. All name the same rank.
#ifndef NETSUM_SRC_WORKER_MISMATCH_H_
#define NETSUM_SRC_WORKER_MISMATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "netsum/status.h"
#include "src/worker/operation.h"

namespace netsum {

// Of calls that are not all equal: the first that differs from the most frequent one. Which rank is wrong is unknown.
size_t first_unusual(std::span<const uint64_t> calls);

// kMismatch. `own`: the operation of rank `self`; `other`: the rank that is named.
Status mismatch(const Operation& own, int self, int other);

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_MISMATCH_H_
