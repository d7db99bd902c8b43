/* Sizes and numbers of the P4 dataplane: #defines only, for the P4 programs and for the model (model/pipeline.h). */
#ifndef NETSUM_AGGREGATOR_P4_SIZES_H_
#define NETSUM_AGGREGATOR_P4_SIZES_H_

/* Which tables and actions the program has: a control plane refuses a switch whose program says another number. */
#define NETSUM_P4_PROGRAM_VERSION "2"

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

/* The same of the program for Tofino, whose pass takes words of 4 bytes, each with a register of two halves of 32 bits. Lanes
 * of 32 bits use one half, lanes of 8 and 16 bits both; MAX of 8 bits takes each word twice, so a group of words has two
 * elements in each register. The ports are those of pipe 0 of a Tofino 1 with four pipes; a compiler's -D changes them. */
#define NETSUM_TNA_WORDS 32
#define NETSUM_TNA_PASS_BYTES 128
#define NETSUM_TNA_GROUPS 8
#define NETSUM_TNA_SLOTS 512
#define NETSUM_TNA_BANKS 1024
#define NETSUM_TNA_LANE_REGISTERS 16384
#ifndef NETSUM_TNA_RECIRCULATION_PORT
#define NETSUM_TNA_RECIRCULATION_PORT 68
#endif
#ifndef NETSUM_TNA_CONTROL_PORT
#define NETSUM_TNA_CONTROL_PORT 192
#endif

/* What the egress of the program for Tofino does with a packet: nothing, nothing unless it would go back to where it came
 * from, or writes the address of one member, or of the member of each copy. */
#define NETSUM_TNA_PATH_AS_IT_IS 0
#define NETSUM_TNA_PATH_FLOOD 1
#define NETSUM_TNA_PATH_MEMBER 2
#define NETSUM_TNA_PATH_ALL 3

/* What a packet does in a pass. CONSUME: takes up to 256 bytes off the front of the payload, and adds them if the packet
 * counts. HARVEST: puts 256 bytes of the sum in front of the payload, the last ones first. FAIL: marks the round as failed. */
#define NETSUM_P4_STEP_CONSUME 0
#define NETSUM_P4_STEP_HARVEST 1
#define NETSUM_P4_STEP_FAIL 2

/* How far a packet's round is ahead of the current one, modulo 2^32: it is the one before. */
#define NETSUM_P4_AHEAD_BEFORE 0xFFFFFFFF

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
/* Of jobs with a parent. TAKE_RESULT: its RESULT replaces the sum. */
#define NETSUM_P4_VERDICT_SEND_UP 10
#define NETSUM_P4_VERDICT_PROBE_UP 11
#define NETSUM_P4_VERDICT_TAKE_RESULT 12

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
#define NETSUM_P4_COUNT_SENT_TO_PARENT 40
#define NETSUM_P4_COUNTERS 41

#endif /* NETSUM_AGGREGATOR_P4_SIZES_H_ */
