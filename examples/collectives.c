/* Broadcast, all-gather and reduce-scatter with the C API. Start one process per rank, as in all_reduce.cc:
 *
 *   collectives_c 0 2 root 127.0.0.1:5150 &
 *   collectives_c 1 2 root 127.0.0.1:5150
 */
#include <netsum/netsum.h>
#include <stdio.h>
#include <string.h>

#include "arguments.h"

enum { kMostRanks = 64, kCount = 1000 };

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, netsum_last_error());
  return 1;
}

/* Waits for the operation that has just been started, if it has. */
static int finish(int code, netsum_work* work, const char* what) {
  if (code == NETSUM_OK) code = netsum_work_wait(work, -1);
  if (code != NETSUM_OK) fail(what);
  netsum_work_free(work);
  return code;
}

static int run(netsum_comm* comm) {
  static int32_t all[kMostRanks * kCount], gradients[kMostRanks * kCount], sums[kCount];
  netsum_buffer parts[kMostRanks];
  netsum_tensor tensors[kMostRanks];
  netsum_all_reduce_options options;
  netsum_buffer buffer;
  netsum_work* work = NULL;
  char text[16] = "";
  const int rank = netsum_comm_rank(comm), ranks = netsum_comm_world_size(comm);
  int code, i;

  /* Rank 0's text reaches all ranks. */
  memset(&buffer, 0, sizeof buffer);
  buffer.input = buffer.output = text;
  buffer.bytes = sizeof text;
  if (rank == 0) strcpy(text, "hello");
  code = netsum_broadcast(comm, &buffer, 1, 0, 0, &work);
  if (finish(code, work, "broadcast") != NETSUM_OK) return 1;

  /* Each rank's numbers reach all ranks. */
  memset(parts, 0, sizeof parts);
  for (i = 0; i < ranks; ++i) {
    parts[i].output = all + i * kCount;
    parts[i].bytes = kCount * sizeof(int32_t);
  }
  for (i = 0; i < kCount; ++i) all[rank * kCount + i] = rank + i;
  parts[rank].input = parts[rank].output; /* in place */
  work = NULL;
  code = netsum_all_gather(comm, parts, (size_t)ranks, 0, &work);
  if (finish(code, work, "all_gather") != NETSUM_OK) return 1;

  /* The sums of part r reach rank r. */
  memset(tensors, 0, sizeof tensors);
  for (i = 0; i < ranks * kCount; ++i) gradients[i] = i;
  for (i = 0; i < ranks; ++i) {
    tensors[i].input = gradients + i * kCount;
    tensors[i].count = kCount;
  }
  tensors[rank].output = sums;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.type = NETSUM_INT32;
  work = NULL;
  code = netsum_reduce_scatter(comm, tensors, (size_t)ranks, &options, &work);
  if (finish(code, work, "reduce_scatter") != NETSUM_OK) return 1;

  if (strcmp(text, "hello") != 0 || all[ranks * kCount - 1] != ranks - 1 + kCount - 1 ||
      sums[kCount - 1] != ranks * (rank * kCount + kCount - 1)) {
    fprintf(stderr, "rank %d: wrong result\n", rank);
    return 1;
  }
  printf("rank %d: all results are right\n", rank);
  /* Nobody leaves before everybody has its results. */
  return netsum_barrier(comm, 30000) == NETSUM_OK ? 0 : fail("barrier");
}

int main(int argc, char** argv) {
  netsum_comm_options options = {0};
  netsum_comm* comm = NULL;
  int result;
  int by_root;
  if (argc != 5) {
    fprintf(stderr, "usage: %s RANK WORLD_SIZE root|aggregator HOST:PORT\n", argv[0]);
    return 2;
  }
  options.struct_size = sizeof(options);
  if (!read_arguments(argv, kMostRanks, &options.rank, &options.world_size, &by_root)) return 2;
  options.job = "example";
  if (by_root) {
    options.root = argv[4];
  } else {
    options.aggregators = argv[4];
  }
  if (netsum_comm_connect(&options, &comm) != NETSUM_OK) return fail("connect");
  result = run(comm);
  netsum_comm_close(comm);
  return result;
}
