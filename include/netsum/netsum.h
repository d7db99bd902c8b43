/* The C ABI of netsum: stable, plain C99, thread rules as in communicator.h.
 *
 * Every function that can fail returns a netsum_code (0 is success) and leaves a message for this thread in
 * netsum_last_error(). Option structs start with their own size, so that later versions can add fields. */
#ifndef NETSUM_NETSUM_H_
#define NETSUM_NETSUM_H_

#include <stddef.h>
#include <stdint.h>

#include "netsum/version.h"

#if defined(__GNUC__)
#define NETSUM_API __attribute__((visibility("default")))
#else
#define NETSUM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* As netsum::ErrorCode. */
typedef enum netsum_code {
  NETSUM_OK = 0,
  NETSUM_INVALID_ARGUMENT = 1,
  NETSUM_UNSUPPORTED = 2,
  NETSUM_TIMEOUT = 3,
  NETSUM_PEER_LOST = 4,
  NETSUM_AGGREGATOR_LOST = 5,
  NETSUM_UNREACHABLE = 6,
  NETSUM_MISMATCH = 7,
  NETSUM_OVERFLOW = 8,
  NETSUM_PERMISSION_DENIED = 9,
  NETSUM_VERSION_MISMATCH = 10,
  NETSUM_RESOURCE_EXHAUSTED = 11,
  NETSUM_ADDRESS_IN_USE = 12,
  NETSUM_ABORTED = 13,
  NETSUM_INTERNAL = 14
} netsum_code;

/* As netsum::DataType and netsum::ReduceOp. */
typedef enum netsum_dtype {
  NETSUM_FLOAT32 = 1,
  NETSUM_BFLOAT16 = 2,
  NETSUM_FLOAT16 = 3,
  NETSUM_INT32 = 4,
  NETSUM_INT64 = 5
} netsum_dtype;
typedef enum netsum_redop { NETSUM_SUM = 1, NETSUM_AVG = 2 } netsum_redop;

/* As netsum::WhenFull. */
typedef enum netsum_when_full {
  NETSUM_FULL_FAIL = 0,
  NETSUM_FULL_WAIT = 1,
  NETSUM_FULL_HOSTS = 2
} netsum_when_full;

typedef struct netsum_comm netsum_comm;
typedef struct netsum_work netsum_work;

typedef struct netsum_comm_options {
  size_t struct_size; /* sizeof(netsum_comm_options) */
  int rank;
  int world_size;
  const char* job;                  /* NULL: "default" */
  const char* token;                /* of the job; NULL: none */
  const char* aggregator_token;     /* asked for by an aggregator that has one; NULL: none */
  const char* aggregators;          /* comma-separated "host:port", NULL or "": embedded shards */
  const char* root;                 /* embedded shards: "host:port" of rank 0 */
  int64_t connect_timeout_ms;       /* 0: default, 30 000 */
  int64_t timeout_ms;               /* 0: default, 30 000 */
  int mtu;                          /* 0: default, 1500 */
  int no_shared_memory;             /* 1: ranks on one host are not summed in shared memory */
  int lane_bits;                    /* of bfloat16 and float16 on the wire: 16, 32; 0: automatic */
  const char* metrics_address;      /* "host:port" to serve metrics at; NULL or "": nowhere */
  const char* trace_path;           /* trace file written at the end; NULL or "": none */
  int64_t liveness_timeout_ms;      /* 0: default, 5000; negative: never */
  int failover;                     /* 1: goes on elsewhere when the aggregator is lost */
  const char* fallback_aggregators; /* failover: comma-separated "host:port", or "hosts"; NULL or "": none */
  int64_t failover_timeout_ms;      /* failover: 0: default, 30 000 */
  netsum_when_full when_full;       /* 0: NETSUM_FULL_FAIL */
} netsum_comm_options;

/* As netsum::RegroupOptions. */
typedef struct netsum_regroup_options {
  size_t struct_size; /* sizeof(netsum_regroup_options) */
  int all;            /* 1: waits for everybody, lost ones come back; 0: goes on with the survivors */
  int min_members;    /* 0: half of them */
  int64_t gather_ms;  /* 0: default, 1000 */
  int64_t timeout_ms; /* 0: the communicator's for connecting */
  const char* root; /* embedded shards whose rank 0 is gone: the new place to meet; NULL or "": the old one */
  int hosts_root;   /* 1: this rank listens there */
} netsum_regroup_options;

NETSUM_API const char* netsum_version(void);
/* Name of a code ("timeout"); never NULL. */
NETSUM_API const char* netsum_code_name(int code);
/* Message of this thread's last failed call; valid until its next call; never NULL. */
NETSUM_API const char* netsum_last_error(void);
/* Rank that the last failed call was about, or -1. */
NETSUM_API int netsum_last_error_rank(void);

/* Joins the job and waits for all ranks. On success *comm must be given to netsum_comm_close. */
NETSUM_API int netsum_comm_connect(const netsum_comm_options* options, netsum_comm** comm);
/* Leaves the job. Operations in flight end with NETSUM_ABORTED. NULL is allowed. */
NETSUM_API void netsum_comm_close(netsum_comm* comm);
/* Ends every operation, here and on every other rank. */
NETSUM_API void netsum_comm_abort(netsum_comm* comm, const char* reason);

/* After a failure, on every rank that goes on: see netsum::Communicator::regroup. Afterwards rank and world
 * size are those of netsum_comm_rank and netsum_comm_world_size. options NULL: defaults. If former_ranks is
 * not NULL, it has room for as many as there were ranks, and gets each rank's old number. */
NETSUM_API int netsum_comm_regroup(netsum_comm* comm, const netsum_regroup_options* options,
                                   int* former_ranks);
NETSUM_API int netsum_comm_rank(const netsum_comm* comm);
NETSUM_API int netsum_comm_world_size(const netsum_comm* comm);
/* The code of the error that broke the communicator, with its message as netsum_last_error(); or 0. */
NETSUM_API int netsum_comm_status(const netsum_comm* comm);

/* Starts summing `count` elements over all ranks; `input` may equal `output`, and must not overlap it otherwise:
 * then, as for other bad arguments, the work ends at once with NETSUM_INVALID_ARGUMENT. Both must stay valid until
 * the work has ended. On success *work must be given to netsum_work_free. timeout_ms 0: the communicator's. */
NETSUM_API int netsum_all_reduce(netsum_comm* comm, const void* input, void* output, size_t count,
                                 netsum_dtype type, netsum_redop op, int64_t timeout_ms, netsum_work** work);
/* Waits for the end and returns its code. timeout_ms < 0: until the operation's own deadline. */
NETSUM_API int netsum_work_wait(netsum_work* work, int64_t timeout_ms);
/* 1 if ended, 0 if not. */
NETSUM_API int netsum_work_done(const netsum_work* work);
/* Does not cancel the operation. NULL is allowed. */
NETSUM_API void netsum_work_free(netsum_work* work);

NETSUM_API int netsum_barrier(netsum_comm* comm, int64_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* NETSUM_NETSUM_H_ */
