// What a stripe counts. Thread rule: one thread writes, any thread may read.
#ifndef NETSUM_SRC_WORKER_SLOTS_STRIPE_COUNTERS_H_
#define NETSUM_SRC_WORKER_SLOTS_STRIPE_COUNTERS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/base/counter.h"
#include "src/base/histogram.h"
#include "wire/ids.h"

namespace netsum {

// In StripeCounters::share: all chunks.
inline constexpr uint64_t kWholeShare = 1'000'000'000'000;

struct StripeCounters {
  Counter packets_sent;
  Counter packets_received;
  Counter bytes_sent;  // datagrams, without UDP, IP and Ethernet headers
  Counter bytes_received;
  Counter results;  // that were awaited: only these prove that the aggregator is alive
  Counter retransmissions;
  Counter probes;
  // Contributions and results that the aggregator has asked for again, by its answer to a PROBE, without those whose first copy
  // has come after all: of steps with a result, so the number also falls.
  Counter losses;
  Counter share;                // of the chunks, in parts of kWholeShare
  Counter zero_chunks;          // that all ranks agreed are zero: no data was sent for them
  Counter scales_predicted;     // chunks whose data was sent before their scales were agreed on
  Counter scales_mispredicted;  // predicted chunks that were sent again
  Counter sums_verified;        // results with a right tag
  Counter sums_refused;         // results with a wrong tag, and maxima that were no maxima
  Counter dropped;
  std::array<Counter, NETSUM_DROP_COUNT> drops;  // the same, by NETSUM_DROP_*
  Counter srtt_us;
  Counter window_packets;
  Counter waiting_for;  // bitmap of the members that are missing from the oldest step, from the latest STATUS
  Histogram round_trip;  // the samples behind srtt_us

  void drop(int reason) {
    dropped.add();
    drops[static_cast<size_t>(reason)].add();
  }
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOTS_STRIPE_COUNTERS_H_
