// A communicator that joins its job when an operation pays for it. A membership costs threads, sockets and tens of milliseconds:
// too much for a group of ranks that sums a few numbers. Until it joins, small operations go through an exchange that the
// caller provides, for example MPI's or Gloo's all-gather.
#ifndef NETSUM_LATE_JOIN_H_
#define NETSUM_LATE_JOIN_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "netsum/communicator.h"
#include "netsum/export.h"
#include "netsum/options.h"
#include "netsum/status.h"

namespace netsum {

// `all`: the bytes of all ranks in the order of the ranks, valid during the call. Empty unless `status` is ok.
using Exchanged = std::function<void(const Status& status, std::span<const std::byte> all)>;

struct LateJoin {
  // Gives `own`, of the same size on all ranks, to all of them. All ranks call it in the same order. It does not block: it
  // calls `done` once, on any thread, and by itself if `timeout` passes. `own` is valid during the call only.
  std::function<void(std::span<const std::byte> own, std::chrono::milliseconds timeout, Exchanged done)>
      exchange;
  // This rank has aborted: no exchange shall wait any longer, on any rank. May be empty: other ranks then wait for the deadline.
  std::function<void(const std::string& reason)> abort;
};

// Up to so many operations go through the exchange, and those whose tensors together have at most so many bytes. The next one, and
// the first larger one, make the ranks join.
inline constexpr size_t kLateOperations = 32;
inline constexpr size_t kLateBytes = 4096;

// As Communicator::connect(), except that it neither waits for other ranks nor connects: the ranks join, in a thread of its own,
// when the first operation requires it. The operation then fails with what connect() would return. Operations do not block in any
// state.
//
// All ranks must submit the same operations: differences are told by kMismatch before and after. Sums have the bits of those of
// ranks that share memory on one host (docs/numerics.md). A job of one rank never joins.
//
// options.root, where it is required: on rank 0, where it listens, with port 0 for any; the others learn it by the exchange.
// Communicator::regroup() is not supported (kUnsupported), and neither is Verify other than kPacket (kInvalidArgument).
// Errors: kInvalidArgument.
NETSUM_EXPORT Result<std::unique_ptr<Communicator>> join_late(const CommunicatorOptions& options,
                                                              LateJoin join);

}  // namespace netsum

#endif  // NETSUM_LATE_JOIN_H_
