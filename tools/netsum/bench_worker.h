// One rank of `netsum bench`: joins, runs the collective, verifies, and tells what happened event by event.
#ifndef NETSUM_TOOLS_NETSUM_BENCH_WORKER_H_
#define NETSUM_TOOLS_NETSUM_BENCH_WORKER_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "netsum/compression.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "netsum/types.h"
#include "tools/netsum/bench_collective.h"
#include "tools/netsum/bench_data.h"
#include "tools/netsum/log.h"

namespace netsum::tool {

struct BenchSettings {
  BenchCollective collective = BenchCollective::kAllReduce;
  size_t bytes = 64 << 20;  // of one tensor
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int lane_bits = 0;  // as CommunicatorOptions::lane_bits
  std::optional<CompressionOptions>
      compression;                     // of an all-reduce of float32, whose result is then the mean
  int iterations = 10;                 // timed ones
  int warmup = 2;                      // verified like the others, but not timed
  int inflight = 1;                    // tensors submitted together in each iteration
  std::chrono::milliseconds pause{0};  // before each iteration
  BenchPattern pattern = BenchPattern::kVaried;
  uint64_t seed = 1;  // the same on every rank, so that each can recompute the others' inputs
  std::string
      start_gate;  // a file by which ranks on one machine start together (start_gate.h); empty: a barrier

  size_t count() const { return bytes / size_of(type); }
};

// Events, as JSON objects with a member "event":
//   root      {address}            rank 0 with embedded shards: where the other ranks connect
//   joined    {summed_by}
//   iteration {n, timed, time_us, verified, wrong, first_wrong, worst_error, squared_error, squared_expected,
//             checksum}: time_us is the slowest rank's; with a start gate also stamp: [start, end, busy before, busy after], in ns of
//             CLOCK_MONOTONIC and ticks of the whole machine
//   end       {stats of the timed part}
//   error     {code, message, rank}
using BenchEvents = std::function<void(const Json&)>;

// Runs the whole of one rank. The status returned has also been reported as an event.
Status run_bench_worker(CommunicatorOptions options, const BenchSettings& settings,
                        const BenchEvents& report);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_BENCH_WORKER_H_
