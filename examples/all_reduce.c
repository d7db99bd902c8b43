/* Sums a tensor over all ranks with the C API. Start one process per rank, as in all_reduce.cc:
 *
 *   all_reduce_c 0 2 root 127.0.0.1:5150 &
 *   all_reduce_c 1 2 root 127.0.0.1:5150
 */
#include <netsum/netsum.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kCount = 100000 };

static int fail(const char* what, int code) {
  fprintf(stderr, "%s: %s: %s\n", what, netsum_code_name(code), netsum_last_error());
  return 1;
}

/* Sums the numbers of all ranks in place, and checks the sums. */
static int sum_and_check(netsum_comm* comm, int rank, int world_size, int32_t* numbers) {
  netsum_work* work = NULL;
  int code;
  int i;
  for (i = 0; i < kCount; ++i) numbers[i] = (rank + 1) * i;
  code = netsum_all_reduce(comm, numbers, numbers, kCount, NETSUM_INT32, NETSUM_SUM, 0, &work);
  if (code != NETSUM_OK) return fail("all_reduce", code);
  /* Other work can be done here while the network sums. */
  code = netsum_work_wait(work, -1);
  netsum_work_free(work);
  if (code != NETSUM_OK) return fail("wait", code);

  for (i = 0; i < kCount; ++i) {
    const int32_t expected = world_size * (world_size + 1) / 2 * i;
    if (numbers[i] != expected) {
      fprintf(stderr, "element %d is %d, expected %d\n", i, (int)numbers[i], (int)expected);
      return 1;
    }
  }
  printf("rank %d: all %d sums are right\n", rank, (int)kCount);

  /* Nobody leaves before everybody has its sums. */
  code = netsum_barrier(comm, 30000);
  return code == NETSUM_OK ? 0 : fail("barrier", code);
}

int main(int argc, char** argv) {
  netsum_comm_options options = {0};
  netsum_comm* comm = NULL;
  int32_t* numbers;
  int code;
  if (argc != 5) {
    fprintf(stderr, "usage: %s RANK WORLD_SIZE root|aggregator HOST:PORT\n", argv[0]);
    return 2;
  }
  options.struct_size = sizeof(options);
  options.rank = atoi(argv[1]);
  options.world_size = atoi(argv[2]);
  options.job = "example";
  if (strcmp(argv[3], "aggregator") == 0) {
    options.aggregators = argv[4];
  } else {
    options.root = argv[4];
  }
  code = netsum_comm_connect(&options, &comm);
  if (code != NETSUM_OK) return fail("connect", code);

  numbers = malloc(kCount * sizeof(*numbers));
  code = numbers == NULL ? 1 : sum_and_check(comm, options.rank, options.world_size, numbers);
  free(numbers);
  netsum_comm_close(comm);
  return code;
}
