/* The C ABI of netsum: stable, plain C99.
 *
 * Errors: a function that can fail returns a netsum_code as int; 0 (NETSUM_OK) is success. It also sets this
 * thread's last error: netsum_last_error() and netsum_last_error_rank(). A NULL that is not allowed is
 * NETSUM_INVALID_ARGUMENT.
 *
 * Threads: any thread may call any function, with two exceptions. netsum_comm_close() and netsum_work_free() must
 * be the last call for their object, and no other call on a communicator may run during netsum_comm_regroup().
 * All ranks must submit the same operations in the same order, so a caller with several threads must order its
 * submissions.
 *
 * Options: a caller initialises an option struct with zeros and sets struct_size to its size. A zero in any other
 * field selects the default. Strings are NUL-terminated and copied.
 *
 * Versions: structs grow only at their end, in whole multiples of their alignment. A program that was compiled with an
 * older header passes a smaller struct_size, and the library treats the missing fields as zero. A program that was
 * compiled with a newer header passes a larger one. The library accepts it if the fields that it does not know are
 * zero, and otherwise returns NETSUM_INVALID_ARGUMENT. */
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

/* Equal to netsum::ErrorCode, which describes each code (status.h). */
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
  NETSUM_INTERNAL = 14,
  NETSUM_WRONG_SUM = 15
} netsum_code;

/* Equal to netsum::DataType (without kByte) and netsum::ReduceOp. NETSUM_AVG is for floating-point types only, the bitwise
 * operators for integer types only. */
typedef enum netsum_dtype {
  NETSUM_FLOAT32 = 1,
  NETSUM_BFLOAT16 = 2,
  NETSUM_FLOAT16 = 3,
  NETSUM_INT32 = 4,
  NETSUM_INT64 = 5
} netsum_dtype;
typedef enum netsum_redop {
  NETSUM_SUM = 1,
  NETSUM_AVG = 2,
  NETSUM_MIN = 3,
  NETSUM_MAX = 4,
  NETSUM_BIT_AND = 6,
  NETSUM_BIT_OR = 7,
  NETSUM_BIT_XOR = 8
} netsum_redop;

/* Equal to netsum::WhenFull. */
typedef enum netsum_when_full {
  NETSUM_FULL_FAIL = 0,
  NETSUM_FULL_WAIT = 1,
  NETSUM_FULL_HOSTS = 2
} netsum_when_full;

/* Equal to netsum::PacketIoKind. */
typedef enum netsum_packet_io { NETSUM_IO_UDP = 0, NETSUM_IO_AF_XDP = 1 } netsum_packet_io;

/* How chunks are divided between aggregators and embedded shards: netsum::Shares. */
typedef enum netsum_shares {
  NETSUM_SHARES_DEFAULT = 0, /* that of netsum::CommunicatorOptions */
  NETSUM_SHARES_OFF = 1,     /* equally */
  NETSUM_SHARES_AUTO = 2, /* by a plan from the rates of the links, which the ranks correct while they run */
  NETSUM_SHARES_PLANNED = 3 /* by a plan that holds until the job ends */
} netsum_shares;

/* Equal to netsum::Numerics. */
typedef enum netsum_numerics { NETSUM_NUMERICS_AUTO = 0, NETSUM_NUMERICS_FIXED = 1 } netsum_numerics;

/* Equal to netsum::Verify. */
typedef enum netsum_verify {
  NETSUM_VERIFY_PACKET = 0,
  NETSUM_VERIFY_BOTH = 1,
  NETSUM_VERIFY_SUM = 2
} netsum_verify;

typedef struct netsum_comm netsum_comm;             /* one rank's membership in a job */
typedef struct netsum_work netsum_work;             /* an operation in progress */
typedef struct netsum_watermarks netsum_watermarks; /* of an operation whose input arrives piece by piece */

/* netsum::CommunicatorOptions describes each option in detail (options.h). Times are in milliseconds. */
typedef struct netsum_comm_options {
  size_t struct_size;           /* sizeof(netsum_comm_options) */
  int rank;                     /* 0 to world_size - 1 */
  int world_size;               /* 1 to 512 */
  const char* job;              /* the same on every rank; NULL: "default" */
  const char* token;            /* shared secret of the job's ranks; NULL: none */
  const char* aggregator_token; /* required by an aggregator that was started with one; NULL: none */
  const char* aggregators;      /* comma-separated "host:port"; NULL or "": embedded shards */
  const char* root;             /* "host:port" at which rank 0 listens; required for embedded shards */
  int64_t connect_timeout_ms;   /* 0: default, 30 000 */
  int64_t timeout_ms;           /* deadline of an operation; 0: default, 30 000 */
  int mtu;                      /* largest IP packet in bytes; 0: default, 1500 */
  int no_shared_memory;         /* 1: ranks on one host do not sum in shared memory */
  int lane_bits; /* wire bits of elements: 16 or 32 (bfloat16, float16), 8 (also float32); 0: automatic */
  const char* metrics_address;      /* "host:port" at which to serve metrics; NULL or "": none */
  const char* trace_path;           /* trace file to write at the end; NULL or "": none */
  int64_t liveness_timeout_ms;      /* 0: default, 5000; negative: never */
  int failover;                     /* 1: continue at another aggregator when the aggregator is lost */
  const char* fallback_aggregators; /* failover: comma-separated "host:port", or "hosts"; NULL or "": none */
  int64_t failover_timeout_ms;      /* failover: 0: default, 30 000 */
  netsum_when_full when_full;       /* what to do if an aggregator has no room; 0: NETSUM_FULL_FAIL */
  /* The first version of this struct ended here. */
  const char* bind_address; /* embedded shards: this rank's address; NULL or "": by the route to root */
  const char* host;         /* equal on ranks that share memory; NULL or "": detected */
  const char* tls_ca_cert;  /* these three: PEM text; NULL or "": none */
  const char* tls_cert;
  const char* tls_private_key;
  /* Called on rank 0 with the address at which it listens (root may have port 0), during netsum_comm_connect(), on the
   * same thread. NULL: not called. */
  void (*on_root_bound)(void* user_data, const char* address);
  void* on_root_bound_data;
  int slots;                  /* packets in flight per stripe, a power of two; 0: default, 256 */
  netsum_packet_io packet_io; /* 0: NETSUM_IO_UDP */
  double inject_loss;         /* tests only: probability that a received packet is dropped */
  uint64_t inject_seed;
  double link_rate_bps;  /* of this host's link, bits per second; 0: what its interface reports */
  netsum_shares shares;  /* the same on every rank; 0: NETSUM_SHARES_DEFAULT */
  int no_spin;           /* 1: threads that wait sleep at once, which saves energy */
  netsum_verify verify;  /* what protects the sums; the same on every rank; 0: NETSUM_VERIFY_PACKET */
  int engine_threads;    /* that send and receive, up to 64; 0: default, 1; -1: as many as the link needs */
  int no_predict_scales; /* 1: data always waits until scales are agreed on; the same on every rank */
  int64_t spin_us;       /* that threads which wait poll before they sleep; 0: default, 50 */
  netsum_numerics numerics; /* how floats are summed; the same on every rank; 0: NETSUM_NUMERICS_AUTO */
  double pace_bps;          /* the most that leaves this rank, bits per second; 0: no limit */
} netsum_comm_options;

/* netsum::RegroupOptions describes each option in detail (communicator.h). */
typedef struct netsum_regroup_options {
  size_t struct_size; /* sizeof(netsum_regroup_options) */
  int all;            /* 1: wait for all ranks, lost ones return; 0: continue with the survivors */
  int min_members;    /* 0: half of the ranks */
  int64_t gather_ms;  /* 0: default, 1000 */
  int64_t timeout_ms; /* 0: connect_timeout_ms of the communicator */
  const char* root;   /* embedded shards that lost rank 0: the new meeting point; NULL or "": unchanged */
  int hosts_root;     /* 1: this rank listens there */
} netsum_regroup_options;

/* A contiguous array to reduce; see netsum::TensorView (communicator.h). */
typedef struct netsum_tensor {
  const void* input;
  void* output;
  size_t count;         /* elements */
  uint64_t id;          /* identifies the tensor across operations, equal on all ranks; 0: no identity */
  uint64_t reserved[2]; /* 0 */
} netsum_tensor;

/* Bytes that a collective moves unchanged; see netsum::BufferView (communicator.h). */
typedef struct netsum_buffer {
  const void* input; /* where this rank contributes them */
  void* output;      /* where it receives them; may equal `input`, or be NULL if this rank has them */
  size_t bytes;
  uint64_t reserved[2]; /* 0 */
} netsum_buffer;

/* Of all collectives that sum. */
typedef struct netsum_all_reduce_options {
  size_t struct_size; /* sizeof(netsum_all_reduce_options) */
  netsum_dtype type;  /* 0: NETSUM_FLOAT32 */
  netsum_redop op;    /* 0: NETSUM_SUM */
  int64_t timeout_ms; /* 0: timeout_ms of the communicator */
  /* The first version of this struct ended here. */
  netsum_watermarks* watermarks; /* NULL: all of the input is there */
  int32_t priority;              /* the larger, the more urgent; see netsum::ReduceOptions (communicator.h) */
  int32_t reserved;              /* 0 */
} netsum_all_reduce_options;

/* Of the collectives that move bytes. */
typedef enum netsum_move_kind {
  NETSUM_BROADCAST = 1,
  NETSUM_ALL_GATHER = 2,
  NETSUM_GATHER = 3,
  NETSUM_SCATTER = 4
} netsum_move_kind;
typedef struct netsum_move_options {
  size_t struct_size;            /* sizeof(netsum_move_options) */
  int64_t timeout_ms;            /* 0: timeout_ms of the communicator */
  netsum_watermarks* watermarks; /* NULL: all of the input is there */
} netsum_move_options;

/* netsum::CommunicatorStats describes each number (communicator.h). */
typedef struct netsum_stats {
  size_t struct_size; /* sizeof(netsum_stats), set by the caller */
  uint64_t operations_submitted;
  uint64_t operations;
  uint64_t operations_failed;
  uint64_t gradient_bytes;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t packets_sent;
  uint64_t packets_received;
  uint64_t retransmissions;
  uint64_t probes;
  uint64_t packets_dropped;
  uint64_t stripes;
  uint64_t failovers;
  uint64_t shard_bytes_received;
  uint64_t shard_bytes_sent;
  uint64_t shared_memory_bytes_written;
  uint64_t shared_memory_bytes_read;
  double srtt_us;
  uint64_t zero_chunks;
  uint64_t share_changes;
  uint64_t sparse_operations; /* these six: netsum::SparseStats (sparse.h) */
  uint64_t sparse_dense;
  uint64_t sparse_elements;
  uint64_t sparse_sent_elements;
  uint64_t sparse_index_bytes;
  uint64_t sparse_spared_bytes;
  uint64_t sums_verified;
  uint64_t sums_refused;
  uint64_t scales_predicted;
  uint64_t scales_mispredicted;
  uint64_t sends_refused;
} netsum_stats;

/* netsum::CommunicatorStats::WrongSums: results of one stripe that were refused because their sums were wrong. */
typedef struct netsum_wrong_sums {
  const char* aggregator; /* as in the options; "hosts": an embedded shard */
  const char* address;    /* of the stripe */
  uint64_t stripe;
  uint64_t results;
} netsum_wrong_sums;

/* Equal to netsum::SparseMode. */
typedef enum netsum_sparse_mode {
  NETSUM_SPARSE_AUTO = 0, /* by an index of what is not zero, if that sends fewer bytes */
  NETSUM_SPARSE_ON = 1,
  NETSUM_SPARSE_OFF = 2
} netsum_sparse_mode;

/* netsum::SparseOptions describes each option in detail (sparse.h). */
typedef struct netsum_sparse_options {
  size_t struct_size;      /* sizeof(netsum_sparse_options) */
  netsum_dtype type;       /* 0: NETSUM_FLOAT32 */
  netsum_redop op;         /* 0: NETSUM_SUM */
  netsum_sparse_mode mode; /* 0: NETSUM_SPARSE_AUTO */
  size_t unit;             /* elements for each bit of the index of a dense tensor; 0: 1 */
  int64_t timeout_ms;      /* 0: timeout_ms of the communicator */
} netsum_sparse_options;

/* A sparse tensor: stored rows of a table; see netsum::CooView (sparse.h). */
typedef struct netsum_coo {
  const int64_t* indices; /* need not be sorted; equal ones are added up */
  const void* values;     /* count x row_elements elements */
  size_t count;           /* of stored rows; may differ between ranks */
  uint64_t rows;          /* of the table, 2^40 at most; equal on all ranks */
  size_t row_elements;    /* equal on all ranks */
  uint64_t id;            /* as netsum_tensor */
  uint64_t reserved[2];   /* 0 */
} netsum_coo;

/* Sets *indices and *values to memory for the `count` rows of a result, or leaves them NULL if there is none; see
 * netsum::CooAllocator. Called once, on a thread of the library. */
typedef void (*netsum_coo_allocate)(void* user_data, size_t count, int64_t** indices, void** values);

/* What all ranks have in common: a method of compression, its memory and its path (docs/compression.md). */
typedef struct netsum_compression netsum_compression;
/* One tensor of this rank under a compression: what it keeps for later steps. */
typedef struct netsum_compressed_tensor netsum_compressed_tensor;

/* netsum::CompressionOptions describes each option in detail (compression.h). An option that the method does not have must be 0. */
typedef struct netsum_compression_options {
  size_t struct_size; /* sizeof(netsum_compression_options) */
  const char* method; /* one of netsum_compression_methods(); NULL: "none" */
  const char* memory; /* "none", "residual", "dgc" or "momentum"; NULL: the method's own */
  const char* path;   /* "dense", "union" or "gather"; NULL: the method's own */
  const char* fit;    /* NULL: "exponential" */
  double ratio;       /* 0: 0.01 */
  double threshold;   /* the method "threshold" needs it */
  double decay;       /* 0: 1, no decay (0 itself cannot be asked for) */
  double momentum;    /* 0: 0.9 */
  double clip_norm;   /* 0: not clipped */
  double error_bound; /* 0: 2^-12 */
  uint64_t k;         /* 0: `ratio` decides */
  uint64_t warmup_steps;
  uint64_t seed;    /* 0: 1 */
  uint32_t block;   /* 0: 256 */
  uint32_t rank;    /* of the matrix that powersgd sends; 0: 4 */
  uint32_t levels;  /* 0: 7 */
  uint32_t buckets; /* 0: 16 */
  int32_t sampled;  /* not 0: the threshold is estimated from a sample */
  int32_t rotated;  /* not 0: blocks are rotated */
  /* Not 0: dcttopk divides the sum of a coefficient by the number of ranks that have sent it. */
  int64_t count_senders;
} netsum_compression_options;

/* A part of the state of a tensor, such as its residual. */
typedef struct netsum_compression_state {
  const char* name;
  float* values;
  size_t count; /* of values */
} netsum_compression_state;

/* Receives the end of an operation: its code, its message ("" for NETSUM_OK) and the rank that caused the error, or -1.
 * `message` is valid during the call only. */
typedef void (*netsum_callback)(void* user_data, int code, const char* message, int rank);

/* The library's version, such as "0.1.0". Never NULL. */
NETSUM_API const char* netsum_version(void);

/* Writes at most `size` bytes, up to 512, which say where the main thread of this process is, such as "solve.c:41", and returns how many. */
typedef size_t (*netsum_stack_hint)(char* text, size_t size, void* user_data);
/* `hint` is called, on a thread of its own, when other ranks have waited for this process for a second, and then again with each
 * heartbeat: their error messages and `netsum status` have what it says. One for all communicators; NULL: none. When this returns,
 * the one before is called no more, unless its call takes longer than a second. */
NETSUM_API void netsum_set_stack_hint(netsum_stack_hint hint, void* user_data);
/* Name of a code, such as "timeout". Never NULL. */
NETSUM_API const char* netsum_code_name(int code);
/* Message of this thread's last call that returned a code, or that returns none and failed; "" if that call succeeded. Valid until
 * the thread's next call. Never NULL. */
NETSUM_API const char* netsum_last_error(void);
/* Rank that caused this thread's last error, or -1. */
NETSUM_API int netsum_last_error_rank(void);

/* Joins the job, and returns when all ranks have joined and every data path has been verified, or after
 * connect_timeout_ms. On success, sets *comm; the caller must release it with netsum_comm_close(). */
NETSUM_API int netsum_comm_connect(const netsum_comm_options* options, netsum_comm** comm);
/* Leaves the job and frees `comm`, which may be NULL. Operations in flight get a second to end, because other ranks may need this
 * rank's part of them, and then end with NETSUM_ABORTED. */
NETSUM_API void netsum_comm_close(netsum_comm* comm);
/* Ends all operations of the job with NETSUM_ABORTED, here and on every other rank. `reason` appears in their
 * error messages; it may be NULL. */
NETSUM_API void netsum_comm_abort(netsum_comm* comm, const char* reason);

/* Continues after a failure; see netsum::Communicator::regroup(). Every rank that continues must call it.
 * Afterwards netsum_comm_rank() and netsum_comm_world_size() return the new values. `options` NULL: defaults.
 * `former_ranks` may be NULL; otherwise it must have room for the old world size, and on success
 * former_ranks[r] is the old number of the new rank r. */
NETSUM_API int netsum_comm_regroup(netsum_comm* comm, const netsum_regroup_options* options,
                                   int* former_ranks);
/* This process's rank and the number of ranks; -1 and 0 if `comm` is NULL. */
NETSUM_API int netsum_comm_rank(const netsum_comm* comm);
NETSUM_API int netsum_comm_world_size(const netsum_comm* comm);
/* The error that broke the communicator, or 0. A broken communicator stays broken until it regroups. */
NETSUM_API int netsum_comm_status(const netsum_comm* comm);

/* Writes this rank's counts to *stats, whose struct_size the caller has set. Fields that the library does not know
 * become 0. */
NETSUM_API int netsum_comm_stats(const netsum_comm* comm, netsum_stats* stats);
/* Writes the first `most` stripes with wrong sums since netsum_comm_connect() to `stripes`, and returns how many there are. Texts are
 * valid until this thread's next call of this function. `stripes` may be NULL if `most` is 0. Returns 0 if `comm` is NULL. */
NETSUM_API size_t netsum_comm_wrong_sums(const netsum_comm* comm, netsum_wrong_sums* stripes, size_t most);
/* One line for humans that says where the sums are made and why; "" if `comm` is NULL. Valid until this thread's next call of
 * this function. Never NULL. */
NETSUM_API const char* netsum_comm_describe(const netsum_comm* comm);

/* Starts an all-reduce: output[i] becomes the reduction of input[i] over all ranks, for 0 <= i < count. `count` is
 * the number of elements of `type` and must be the same on all ranks. `input` may equal `output`; otherwise they
 * must not overlap. Both must stay valid, and the caller must not modify them, until the work has ended.
 * timeout_ms 0: the communicator's timeout_ms.
 * On success, sets *work; the caller must release it with netsum_work_free(). Invalid tensors, types or operators
 * are reported by the work, which then ends at once. */
NETSUM_API int netsum_all_reduce(netsum_comm* comm, const void* input, void* output, size_t count,
                                 netsum_dtype type, netsum_redop op, int64_t timeout_ms, netsum_work** work);
/* Like netsum_all_reduce(), for several tensors in one operation. The tensors share packets, so many small tensors cost
 * as much as one of their total size. The number of tensors and their counts must be the same on all ranks. The array
 * `tensors` is copied. `options` NULL: defaults. */
NETSUM_API int netsum_all_reduce_tensors(netsum_comm* comm, const netsum_tensor* tensors, size_t tensor_count,
                                         const netsum_all_reduce_options* options, netsum_work** work);
/* The other collectives; netsum::Communicator describes them (communicator.h). All ranks submit the same collectives with
 * the same root, number of parts and sizes, in the same order. Arrays of buffers and tensors are copied; the memory that
 * they point to must stay valid, and the caller must not modify it, until the work has ended. Where there are parts,
 * `count` is the number of ranks, and parts[r] belongs to rank r; sizes may be 0 and may differ between parts. As for
 * netsum_all_reduce(), timeout_ms 0 is the communicator's, *work is the caller's to free, and invalid arguments are
 * reported by the work. */

/* The bytes of rank `root` arrive at all ranks. The buffers share packets. */
NETSUM_API int netsum_broadcast(netsum_comm* comm, const netsum_buffer* buffers, size_t count, int root,
                                int64_t timeout_ms, netsum_work** work);
/* parts[r] is contributed by rank r and arrives at all ranks. */
NETSUM_API int netsum_all_gather(netsum_comm* comm, const netsum_buffer* parts, size_t count,
                                 int64_t timeout_ms, netsum_work** work);
/* parts[r] is contributed by rank r and arrives at rank `root`. */
NETSUM_API int netsum_gather(netsum_comm* comm, const netsum_buffer* parts, size_t count, int root,
                             int64_t timeout_ms, netsum_work** work);
/* Rank `root` contributes all parts, and parts[r] arrives at rank r. */
NETSUM_API int netsum_scatter(netsum_comm* comm, const netsum_buffer* parts, size_t count, int root,
                              int64_t timeout_ms, netsum_work** work);
/* Any of these four, with options; `options` NULL: defaults. `root` is ignored where there is none. */
NETSUM_API int netsum_move(netsum_comm* comm, netsum_move_kind kind, const netsum_buffer* buffers,
                           size_t count, int root, const netsum_move_options* options, netsum_work** work);
/* Like netsum_all_reduce_tensors(), but the result is written at rank `root` alone. */
NETSUM_API int netsum_reduce(netsum_comm* comm, const netsum_tensor* tensors, size_t tensor_count, int root,
                             const netsum_all_reduce_options* options, netsum_work** work);
/* parts[r] is summed over all ranks, and the sum is written at rank r alone. */
NETSUM_API int netsum_reduce_scatter(netsum_comm* comm, const netsum_tensor* parts, size_t count,
                                     const netsum_all_reduce_options* options, netsum_work** work);

/* Receives the watermark `delivered` of an operation. */
typedef void (*netsum_on_delivered)(void* user_data, size_t delivered);
/* Makes the watermarks of one operation, which the caller must release with netsum_watermarks_free(). netsum::Watermarks describes
 * them, their units and the calls of `on_delivered`, which may be NULL (watermarks.h). */
NETSUM_API int netsum_watermarks_make(size_t step, netsum_on_delivered on_delivered, void* user_data,
                                      netsum_watermarks** watermarks);
/* Input below `bytes` can be read. */
NETSUM_API int netsum_watermarks_make_available(netsum_watermarks* watermarks, size_t bytes);
/* Ends the operation, and with it the job, with `code` and `message`, which may be NULL. */
NETSUM_API int netsum_watermarks_fail(netsum_watermarks* watermarks, int code, const char* message);
/* Results below are in the outputs; 0 if `watermarks` is NULL. */
NETSUM_API size_t netsum_watermarks_delivered(const netsum_watermarks* watermarks);
/* Frees `watermarks`, which may be NULL, at any time: the operation goes on with what is available. */
NETSUM_API void netsum_watermarks_free(netsum_watermarks* watermarks);

/* Starts an all-reduce of a tensor most of whose elements are zero: what is zero on all ranks does not travel. See
 * Communicator::sparse_all_reduce() (communicator.h). `options` NULL: defaults. */
NETSUM_API int netsum_sparse_all_reduce(netsum_comm* comm, const netsum_tensor* tensor,
                                        const netsum_sparse_options* options, netsum_work** work);
/* The same for a sparse tensor. `allocate` is asked for the memory of the result, which has the rows that any rank has
 * stored, sorted by index. */
NETSUM_API int netsum_sparse_all_reduce_coo(netsum_comm* comm, const netsum_coo* input,
                                            netsum_coo_allocate allocate, void* user_data,
                                            const netsum_sparse_options* options, netsum_work** work);

/* The names of the methods of compression, in alphabetical order, separated by ", ". Never NULL. */
NETSUM_API const char* netsum_compression_methods(void);
/* Makes a compression, which the caller must release with netsum_compression_free(). NETSUM_INVALID_ARGUMENT for values out of range, options
 * that the method does not have, and combinations that would give wrong results. */
NETSUM_API int netsum_compression_make(const netsum_compression_options* options,
                                       netsum_compression** compression);
/* Frees `compression`, which may be NULL. Its tensors stay valid. */
NETSUM_API void netsum_compression_free(netsum_compression* compression);
/* One line with the method and its options, equal if and only if two compressions have the same ones (netsum::Compression::describe());
 * "" if `compression` is NULL. Valid as long as `compression`. */
NETSUM_API const char* netsum_compression_describe(const netsum_compression* compression);
/* NETSUM_MISMATCH on all ranks unless all have passed the same text, such as that of netsum_compression_describe(). Blocks. timeout_ms 0: the
 * communicator's. */
NETSUM_API int netsum_check_same_on_all_ranks(netsum_comm* comm, const char* text, int64_t timeout_ms);

/* Makes the state of a tensor of `count` float32 numbers on this rank of `comm`, which the caller must release with
 * netsum_compressed_tensor_free(). `id` identifies the tensor, equal on all ranks and different for each tensor. `rows`: of a matrix, for
 * methods that see one in the tensor; it must divide `count`, and 0 means 1. */
NETSUM_API int netsum_compressed_tensor_make(const netsum_compression* compression, const netsum_comm* comm,
                                             uint64_t id, size_t count, size_t rows,
                                             netsum_compressed_tensor** tensor);
/* Frees `tensor`, which may be NULL. */
NETSUM_API void netsum_compressed_tensor_free(netsum_compressed_tensor* tensor);
/* Compresses `input`, sums over all ranks, and writes the mean to `output`, which may be `input`. Blocks until the operations have
 * ended. All ranks call it for the same tensors in the same order, and on one communicator one call at a time. timeout_ms 0: the
 * communicator's, for each operation. After an error, the tensor and `output` are as before the call, so it can be repeated.
 * NETSUM_MISMATCH also if the ranks are in different steps of the tensor (netsum_agree_on_steps()). */
NETSUM_API int netsum_compressed_all_reduce(netsum_comm* comm, netsum_compressed_tensor* tensor,
                                            const float* input, float* output, int64_t timeout_ms);

/* How many steps the tensor has made; 0 if `tensor` is NULL. */
NETSUM_API uint64_t netsum_compressed_tensor_step(const netsum_compressed_tensor* tensor);
/* Writes the first `most` parts of the state to `parts`, and returns how many there are. The values are the state itself, which the
 * caller may read, and write between steps; valid as long as `tensor`. If `parts` is NULL, nothing is written. Returns 0 if `tensor` is NULL. */
NETSUM_API size_t netsum_compressed_tensor_state(netsum_compressed_tensor* tensor,
                                                 netsum_compression_state* parts, size_t most);
/* Continues from a saved state, whose values are copied. NETSUM_INVALID_ARGUMENT, and nothing changes, if names or counts are others. */
NETSUM_API int netsum_compressed_tensor_restore(netsum_compressed_tensor* tensor, uint64_t step,
                                                const netsum_compression_state* parts, size_t count);
/* Multiplies what the tensor keeps of gradients, for example when the scale of a loss has changed. */
NETSUM_API int netsum_compressed_tensor_scale_memory(netsum_compressed_tensor* tensor, float factor);
/* After netsum_comm_regroup(): the new rank and number of ranks. What the tensor keeps stays. */
NETSUM_API int netsum_compressed_tensor_set_ranks(netsum_compressed_tensor* tensor, const netsum_comm* comm);
/* Takes the last step back: the state and the step are what they were before it. For a step that this rank has completed and others
 * have not; after an error of netsum_compressed_all_reduce() there is nothing to take back. */
NETSUM_API int netsum_compressed_tensor_give_up(netsum_compressed_tensor* tensor);
/* After netsum_comm_regroup() or a readmission: netsum_compressed_tensor_set_ranks() for all of `tensors`, and the step of each becomes the
 * largest of all ranks. Blocks. All ranks pass the same tensors in the same order; a rank that is new passes new ones. timeout_ms
 * 0: the communicator's. After an error, nothing has changed. */
NETSUM_API int netsum_agree_on_steps(netsum_comm* comm, netsum_compressed_tensor* const* tensors,
                                     size_t count, int64_t timeout_ms);

/* Calls `callback` once when the operation ends: on a thread of the library, on one that waits for an operation, or, if it
 * has ended already, on this thread at once. The callback must not block, take a lock that a waiting thread holds, or call
 * netsum_work_wait(), netsum_barrier(), netsum_comm_regroup() or netsum_comm_close(); it may start operations and free the
 * work. At most one callback per work. */
NETSUM_API int netsum_work_on_done(netsum_work* work, netsum_callback callback, void* user_data);
/* Waits for the end of the operation and returns its code. timeout_ms bounds this wait only: if it passes first,
 * the result is NETSUM_TIMEOUT and the operation continues. Negative: wait until the operation ends, at the latest
 * by its own deadline. 0: do not block; a caller that polls in this way carries out a small operation itself. */
NETSUM_API int netsum_work_wait(netsum_work* work, int64_t timeout_ms);
/* The same in microseconds, for one that has other things to look after meanwhile. */
NETSUM_API int netsum_work_wait_us(netsum_work* work, int64_t timeout_us);
/* 1 if the operation has ended or `work` is NULL, otherwise 0. Does not block. */
NETSUM_API int netsum_work_done(const netsum_work* work);
/* Frees `work`, which may be NULL. Does not cancel the operation. */
NETSUM_API void netsum_work_free(netsum_work* work);

/* Blocks until every rank has called it. timeout_ms 0: the communicator's timeout_ms. */
NETSUM_API int netsum_barrier(netsum_comm* comm, int64_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* NETSUM_NETSUM_H_ */
