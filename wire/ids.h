/* Numbers of the netsum wire protocol: #defines only, so that C++, BPF C and P4 can all include this file.
 * Meaning and rules: PROTOCOL.md. A number once used is never used for anything else. */
#ifndef NETSUM_WIRE_IDS_H_
#define NETSUM_WIRE_IDS_H_

#define NETSUM_MAGIC 0xA5
#define NETSUM_VERSION 2

#define NETSUM_HEADER_BYTES 32
#define NETSUM_MAX_MEMBERS 64
/* Jumbo: 9000 - 20 (IPv4) - 8 (UDP) - 32, rounded down to 32. */
#define NETSUM_MAX_PAYLOAD 8928
#define NETSUM_PAYLOAD_MULTIPLE 8

/* Packet types, low nibble of `version_type`. */
#define NETSUM_TYPE_CONTRIBUTION 1 /* worker -> aggregator: lanes to add */
#define NETSUM_TYPE_RESULT 2       /* aggregator -> workers: the finished lanes */
#define NETSUM_TYPE_PROBE 3        /* worker -> aggregator: what became of this round? */
#define NETSUM_TYPE_STATUS 4       /* aggregator -> worker: the answer; payload: who has contributed */
#define NETSUM_TYPE_ERROR 5        /* aggregator -> workers: this round has failed; payload: why */
#define NETSUM_TYPE_HELLO 6        /* worker -> aggregator: here I am; padded to the full packet size */
#define NETSUM_TYPE_WELCOME 7      /* aggregator -> worker: the answer, of the same size */

/* Lane widths, low nibble of `format`. */
#define NETSUM_LANE_NONE 0
#define NETSUM_LANE_U8 1
#define NETSUM_LANE_I16 2
#define NETSUM_LANE_I8 3
#define NETSUM_LANE_I32 4
#define NETSUM_LANE_I64 5
#define NETSUM_LANE_U32 6
#define NETSUM_LANE_U64 7
#define NETSUM_LANE_U16 8

/* Element types of values, low nibble of `format`. With SUM of values (1 to 5 are those of earlier releases): */
#define NETSUM_VALUE_I32 6
#define NETSUM_VALUE_I64 7
/* With SUM and AVG of floats: */
#define NETSUM_FLOAT_F32 1
#define NETSUM_FLOAT_BF16 2
#define NETSUM_FLOAT_F16 3

/* What the aggregator does with lanes, high nibble of `format`. */
#define NETSUM_OP_NONE 0
#define NETSUM_OP_SUM 1
#define NETSUM_OP_MAX 2
/* Integers as values in place of lanes. (4 is the mean of values of earlier releases.) */
#define NETSUM_OP_SUM_VALUES 3
/* Bit by bit. */
#define NETSUM_OP_OR 5
#define NETSUM_OP_XOR 6
/* Floats as values: the aggregator adds them in float32, in the order of the members. */
#define NETSUM_OP_SUM_FLOATS 7
#define NETSUM_OP_AVG_FLOATS 8

#define NETSUM_FORMAT(op, lane) ((op)*16 + (lane)) /* P4 has no | for numbers without a width */
#define NETSUM_FORMAT_NONE NETSUM_FORMAT(NETSUM_OP_NONE, NETSUM_LANE_NONE)
#define NETSUM_FORMAT_SUM_I8 NETSUM_FORMAT(NETSUM_OP_SUM, NETSUM_LANE_I8)
#define NETSUM_FORMAT_SUM_I16 NETSUM_FORMAT(NETSUM_OP_SUM, NETSUM_LANE_I16)
#define NETSUM_FORMAT_SUM_I32 NETSUM_FORMAT(NETSUM_OP_SUM, NETSUM_LANE_I32)
#define NETSUM_FORMAT_SUM_I64 NETSUM_FORMAT(NETSUM_OP_SUM, NETSUM_LANE_I64)
#define NETSUM_FORMAT_MAX_U8 NETSUM_FORMAT(NETSUM_OP_MAX, NETSUM_LANE_U8)
#define NETSUM_FORMAT_MAX_U16 NETSUM_FORMAT(NETSUM_OP_MAX, NETSUM_LANE_U16)
#define NETSUM_FORMAT_MAX_U32 NETSUM_FORMAT(NETSUM_OP_MAX, NETSUM_LANE_U32)
#define NETSUM_FORMAT_MAX_U64 NETSUM_FORMAT(NETSUM_OP_MAX, NETSUM_LANE_U64)
#define NETSUM_FORMAT_OR_U64 NETSUM_FORMAT(NETSUM_OP_OR, NETSUM_LANE_U64)
#define NETSUM_FORMAT_XOR_U64 NETSUM_FORMAT(NETSUM_OP_XOR, NETSUM_LANE_U64)

/* What dataplanes can differ in, besides formats (Capabilities of src/job/job.proto); none of it is in a packet. 0 stands for
 * none of them. */
#define NETSUM_LANES_LITTLE_ENDIAN 1
#define NETSUM_LANES_BIG_ENDIAN 2
/* What is in the check field: PROTOCOL.md. */
#define NETSUM_TAG_KEYED 1 /* NH and SipHash of the packet */
#define NETSUM_TAG_COOKIE \
  2 /* a secret number of stripe and epoch, except in HELLO, which is tagged as above */

/* Flags. A packet with an unknown flag is refused. Bit 3 is reserved for a block of metadata.
 * PART: the second half of a chunk that travels as two packets. OVERFLOW: a lane passed its range, the sum
 * must not be used; set in a RESULT, and by an aggregator that contributes such a sum to its parent. AGAIN,
 * in a STATUS: contribute again, because the contribution is missing or to be answered with the result. EMPTY, in a
 * CONTRIBUTION or RESULT: all lanes are 0, and the payload is only their length. NO_RESULT, in a CONTRIBUTION: the sender needs
 * no lanes of the result, which then has EMPTY for it, whatever the lanes are. */
#define NETSUM_FLAG_PART 0x01
#define NETSUM_FLAG_OVERFLOW 0x02
#define NETSUM_FLAG_AGAIN 0x04
#define NETSUM_FLAG_EMPTY 0x10
#define NETSUM_FLAG_NO_RESULT 0x20
#define NETSUM_FLAGS_KNOWN 0x37

/* `member` of packets that are the same for every member. */
#define NETSUM_MEMBER_ALL 0xFFFF

/* ERROR payload: be16 code, be16 member that is to blame, be32 zero. */
#define NETSUM_ERROR_MISMATCH \
  1 /* the member's chunk, signature, format or length differs from the first one's */
#define NETSUM_ERROR_BYTES 8
/* STATUS payload: be64 bitmap of the members that have contributed. */
#define NETSUM_STATUS_BYTES 8
/* Payload with EMPTY: be64 number of the bytes that the lanes would have. */
#define NETSUM_EMPTY_BYTES 8
/* PROBE payload: zeros, the room for its answer. No answer is longer than what it answers, so a dataplane
 * never has to lengthen a packet. */
#define NETSUM_PROBE_BYTES 8

/* Why a packet was refused: index of a counter. Every refusal has exactly one reason. */
#define NETSUM_DROP_NONE 0
#define NETSUM_DROP_TOO_SHORT 1     /* shorter than a header */
#define NETSUM_DROP_BAD_MAGIC 2     /* not netsum's */
#define NETSUM_DROP_BAD_VERSION 3   /* another protocol version */
#define NETSUM_DROP_BAD_TYPE 4      /* a type that this end does not take */
#define NETSUM_DROP_BAD_FLAGS 5     /* an unknown flag */
#define NETSUM_DROP_BAD_LENGTH 6    /* payload too long, not a multiple of 8, or wrong for its type */
#define NETSUM_DROP_BAD_FORMAT 7    /* an operation or lane width that this end does not know */
#define NETSUM_DROP_UNKNOWN_JOB 8   /* no job with that index */
#define NETSUM_DROP_STALE_EPOCH 9   /* another incarnation of the job */
#define NETSUM_DROP_BAD_MEMBER 10   /* member index not below the job's member count */
#define NETSUM_DROP_BAD_SLOT 11     /* slot index not below the job's slot count */
#define NETSUM_DROP_BAD_CHECK 12    /* altered on the way, or not of this job */
#define NETSUM_DROP_STALE_ROUND 13  /* a round that is over */
#define NETSUM_DROP_FUTURE_ROUND 14 /* a round that cannot have started yet */
#define NETSUM_DROP_DUPLICATE 15    /* contribution already counted, round still open */
#define NETSUM_DROP_UNKNOWN_PEER 16 /* from an address that is not the member's (no HELLO, or spoofed) */
#define NETSUM_DROP_OVER_RATE 17 /* the job's members together send faster than the aggregator lets a job */
#define NETSUM_DROP_COUNT 18

#endif /* NETSUM_WIRE_IDS_H_ */
