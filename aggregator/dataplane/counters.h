/* What every dataplane counts, under one name. A counter is added here, counted where it happens, and shown by
 * src/telemetry/aggregator_metrics.cc. C for BPF, C++ for the rest. */
#ifndef NETSUM_AGGREGATOR_DATAPLANE_COUNTERS_H_
#define NETSUM_AGGREGATOR_DATAPLANE_COUNTERS_H_

/* Calls COUNTER(NAME, name) for each. Bytes are those of datagrams, without UDP, IP and Ethernet headers.
 *   multicast_packets_sent  of the packets sent, those to multicast groups
 *   contributions           packets whose lanes were stored or added
 *   bytes_summed            their payload
 *   rounds_completed        results sent to all members
 *   results_repeated        results sent again to one member
 *   statuses                probes answered with STATUS
 *   mismatches              rounds that failed because members disagree
 *   overflows               rounds with a lane out of range
 *   hellos                  members' HELLOs answered with WELCOME
 *   sent_to_parent          contributions and probes, and the bytes of these datagrams */
#define NETSUM_DATAPLANE_COUNTERS(COUNTER)                \
  COUNTER(PACKETS_RECEIVED, packets_received)             \
  COUNTER(BYTES_RECEIVED, bytes_received)                 \
  COUNTER(PACKETS_SENT, packets_sent)                     \
  COUNTER(MULTICAST_PACKETS_SENT, multicast_packets_sent) \
  COUNTER(BYTES_SENT, bytes_sent)                         \
  COUNTER(CONTRIBUTIONS, contributions)                   \
  COUNTER(BYTES_SUMMED, bytes_summed)                     \
  COUNTER(ROUNDS_COMPLETED, rounds_completed)             \
  COUNTER(RESULTS_REPEATED, results_repeated)             \
  COUNTER(STATUSES, statuses)                             \
  COUNTER(MISMATCHES, mismatches)                         \
  COUNTER(OVERFLOWS, overflows)                           \
  COUNTER(HELLOS, hellos)                                 \
  COUNTER(SENT_TO_PARENT, sent_to_parent)                 \
  COUNTER(PARENT_BYTES_SENT, parent_bytes_sent)

#endif /* NETSUM_AGGREGATOR_DATAPLANE_COUNTERS_H_ */
