/* Sizes and numbers of the P4 dataplane: #defines only, for the P4 programs and for the model (model/pipeline.h). */
#ifndef NETSUM_AGGREGATOR_P4_SIZES_H_
#define NETSUM_AGGREGATOR_P4_SIZES_H_

/* Which tables and actions the program has: a control plane refuses a switch whose program says another number. */
#define NETSUM_P4_PROGRAM_VERSION "1"

/* A pass of the pipeline adds so many bytes of a packet's lanes: words of 8 bytes, each with its own register. */
#define NETSUM_P4_WORDS 32
#define NETSUM_P4_PASS_BYTES 256
/* Passes that the largest payload takes: 1024 bytes. */
#define NETSUM_P4_GROUPS 4

/* What the tables and registers hold. */
#define NETSUM_P4_JOBS 64
#define NETSUM_P4_SLOTS 1024
#define NETSUM_P4_BANKS 2048          /* 2 x slots */
#define NETSUM_P4_LANE_REGISTERS 8192 /* banks x groups: elements of each word's register */
#define NETSUM_P4_MEMBERS 4096        /* jobs x 64 */

/* The UDP port of the aggregator, where the packets of a member between two passes go, the port of the control plane, the
 * multicast group of all ports, and that of job 0, which those of the other jobs follow. */
#define NETSUM_P4_DATA_PORT 5152
#define NETSUM_P4_RECIRCULATION_PORT 500
#define NETSUM_P4_CONTROL_PORT 510
#define NETSUM_P4_FLOOD_GROUP 1
#define NETSUM_P4_FIRST_JOB_GROUP 2

/* What a packet does in a pass. CONSUME: takes up to 256 bytes off the front of the payload, and adds them if the packet
 * counts. HARVEST: puts 256 bytes of the sum in front of the payload, the last ones first. FAIL: marks the round as failed. */
#define NETSUM_P4_STEP_CONSUME 0
#define NETSUM_P4_STEP_HARVEST 1
#define NETSUM_P4_STEP_FAIL 2

/* What happens to a packet. The first three leave no lanes behind; COUNTED ones are dropped at the end unless they are
 * the last of their round. The names are those of NETSUM_ACT_* in aggregator/slot/slot.h, where both have it. */
#define NETSUM_P4_VERDICT_DROP 0
#define NETSUM_P4_VERDICT_STORE 1
#define NETSUM_P4_VERDICT_ADD 2
#define NETSUM_P4_VERDICT_REPLY_RESULT 3
#define NETSUM_P4_VERDICT_REPLY_STATUS 4
#define NETSUM_P4_VERDICT_REPLY_ERROR 5
#define NETSUM_P4_VERDICT_ERROR_ALL 6
#define NETSUM_P4_VERDICT_RESULT_ALL 7
#define NETSUM_P4_VERDICT_WELCOME 8
#define NETSUM_P4_VERDICT_TO_CONTROL 9

/* What is done to the lanes' registers in a pass. */
#define NETSUM_P4_LANES_KEEP 0
#define NETSUM_P4_LANES_STORE 1
#define NETSUM_P4_LANES_ADD 2
#define NETSUM_P4_LANES_READ 3

/* How ADD combines words. */
#define NETSUM_P4_COMBINE_SUM 0
#define NETSUM_P4_COMBINE_MAX 1
#define NETSUM_P4_COMBINE_OR 2
#define NETSUM_P4_COMBINE_XOR 3

/* Indices of counters behind those of NETSUM_DROP_* (aggregator/dataplane/counters.h has their meaning). LOST_PASS: a
 * packet between two passes whose job, or round, was gone. */
#define NETSUM_P4_COUNT_CONTRIBUTIONS 32
#define NETSUM_P4_COUNT_ROUNDS_COMPLETED 33
#define NETSUM_P4_COUNT_RESULTS_REPEATED 34
#define NETSUM_P4_COUNT_STATUSES 35
#define NETSUM_P4_COUNT_MISMATCHES 36
#define NETSUM_P4_COUNT_OVERFLOWS 37
#define NETSUM_P4_COUNT_HELLOS 38
#define NETSUM_P4_COUNT_LOST_PASS 39
#define NETSUM_P4_COUNTERS 40

#endif /* NETSUM_AGGREGATOR_P4_SIZES_H_ */
