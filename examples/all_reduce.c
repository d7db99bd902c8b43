/* Sums two tensors at a time over all ranks with the C API, and goes on without a rank that is lost. Start one process for each
 * rank, as in all_reduce.cc:
 *
 *   all_reduce_c 0 2 root 127.0.0.1:5150 &
 *   all_reduce_c 1 2 root 127.0.0.1:5150
 */
#include <netsum/netsum.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "arguments.h"

enum { kSteps = 2, kCount = 100000, kFewer = 1000, kNobody = -1 };

static int32_t numbers[kCount];
static float few[kFewer];

static int fail(const char* what, int code) {
  fprintf(stderr, "%s: %s: %s\n", what, netsum_code_name(code), netsum_last_error());
  return 1;
}

/* Two sums in flight, in place: the network sums the second while this rank waits for the first. */
static int sum_both(netsum_comm* comm) {
  const int rank = netsum_comm_rank(comm);
  netsum_work* works[2] = {NULL, NULL};
  int code;
  int other;
  int i;
  for (i = 0; i < kCount; ++i) numbers[i] = (rank + 1) * i;
  for (i = 0; i < kFewer; ++i) few[i] = (float)i;
  code = netsum_all_reduce(comm, numbers, numbers, kCount, NETSUM_INT32, NETSUM_SUM, 0, &works[0]);
  if (code != NETSUM_OK) return code;
  code = netsum_all_reduce(comm, few, few, kFewer, NETSUM_FLOAT32, NETSUM_SUM, 0, &works[1]);
  /* Other work can be done here. The second is waited for first, so that the message of the first is the last error. */
  other = code == NETSUM_OK ? netsum_work_wait(works[1], -1) : code;
  code = netsum_work_wait(works[0], -1);
  netsum_work_free(works[0]);
  netsum_work_free(works[1]);
  return code == NETSUM_OK ? other : code;
}

static int right(int world_size) {
  int i;
  for (i = 0; i < kCount; ++i) {
    if (numbers[i] != world_size * (world_size + 1) / 2 * i) return 0;
  }
  for (i = 0; i < kFewer; ++i) {
    const float difference = few[i] - (float)(world_size * i);
    if (difference > 1e-2f || difference < -1e-2f) return 0;
  }
  return 1;
}

/* The ranks that are left form a new job with numbers from 0 on. What was in flight must be summed again. */
static int go_on_without(netsum_comm* comm) {
  const int old = netsum_comm_rank(comm);
  int code;
  printf("rank %d: %s\n", old, netsum_last_error());
  code = netsum_comm_regroup(comm, NULL, NULL);
  if (code != NETSUM_OK) return code;
  printf("rank %d is rank %d of %d now\n", old, netsum_comm_rank(comm), netsum_comm_world_size(comm));
  return NETSUM_OK;
}

static int run(netsum_comm* comm, int rank_that_ends) {
  const int rank = netsum_comm_rank(comm);
  int code;
  int step;
  for (step = 0; step < kSteps; ++step) {
    if (step > 0 && rank == rank_that_ends) _Exit(0);
    code = sum_both(comm);
    while (code == NETSUM_PEER_LOST) {
      code = go_on_without(comm);
      if (code == NETSUM_OK) code = sum_both(comm);
    }
    if (code != NETSUM_OK) return fail("all_reduce", code);
    if (!right(netsum_comm_world_size(comm))) {
      fprintf(stderr, "rank %d: wrong sums\n", netsum_comm_rank(comm));
      return 1;
    }
    printf("rank %d: all sums of step %d are right\n", netsum_comm_rank(comm), step);
  }
  /* Nobody leaves before everybody has its sums. */
  code = netsum_barrier(comm, 30000);
  return code == NETSUM_OK ? 0 : fail("barrier", code);
}

int main(int argc, char** argv) {
  netsum_comm_options options = {0};
  netsum_comm* comm = NULL;
  int by_root;
  int rank_that_ends = kNobody;
  int code;
  if (argc < 5 || argc > 6) {
    fprintf(stderr, "usage: %s RANK WORLD_SIZE root|aggregator HOST:PORT [RANK_THAT_ENDS]\n", argv[0]);
    return 2;
  }
  options.struct_size = sizeof(options);
  if (!read_arguments(argv, INT_MAX, &options.rank, &options.world_size, &by_root)) return 2;
  if (argc == 6 && !read_number(argv[5], "RANK_THAT_ENDS", 0, options.world_size - 1, &rank_that_ends))
    return 2;
  options.job = "example";
  if (by_root) {
    options.root = argv[4];
  } else {
    options.aggregators = argv[4];
  }
  code = netsum_comm_connect(&options, &comm);
  if (code != NETSUM_OK) return fail("connect", code);
  code = run(comm, rank_that_ends);
  netsum_comm_close(comm);
  return code;
}
