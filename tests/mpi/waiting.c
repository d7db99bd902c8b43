/* What a rank does while others are late: waiting progress|free|churn. It watches its own waits, by standing in front of the
 * library's function, so it is linked with -rdynamic. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "netsum/netsum.h"
#include "tests/mpi/checks.h"

enum { kMessages = 200 };
static volatile int in[kMessages]; /* 0: not arrived */
static int arrived, late;          /* those with at least one wait of a millisecond since the one before */
static int waited_long;

static void watch(int64_t timeout_us) {
  for (; arrived < kMessages && in[arrived] != 0; ++arrived) {
    late += waited_long;
    waited_long = 0;
  }
  waited_long |= timeout_us >= 1000;
}

int netsum_work_wait_us(netsum_work* work, int64_t timeout_us) {
  static int (*wait)(netsum_work*, int64_t);
  if (wait == NULL) {
    void* library = dlopen("libnetsum.so.0", RTLD_NOLOAD | RTLD_NOW);
    *(void**)&wait = dlsym(library, "netsum_work_wait_us");
  }
  watch(timeout_us);
  return wait(work, timeout_us);
}

/* The last rank is in a barrier, or a sum, while messages for it come that rank 0 sends one by one. */
static void progress(void) {
  MPI_Request pending[kMessages];
  const int last = size - 1;
  CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS); /* joins */
  for (int turn = 0; turn < 2; ++turn) {
    int one = 1, sum = 0;
    for (int i = 0; i < kMessages; ++i) {
      in[i] = 0;
      if (rank == last) MPI_Irecv((int*)&in[i], 1, MPI_INT, 0, turn, MPI_COMM_WORLD, &pending[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    arrived = late = waited_long = 0;
    if (rank == 0)
      for (int i = 0; i < kMessages; ++i) MPI_Ssend(&one, 1, MPI_INT, last, turn, MPI_COMM_WORLD);
    if (turn == 0)
      CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
    else
      CHECK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS && sum == size);
    if (rank != last) continue;
    MPI_Waitall(kMessages, pending, MPI_STATUSES_IGNORE);
    printf("%d of %d messages after a long wait\n", late, kMessages);
    CHECK(late <= kMessages / 2);
  }
}

/* Each rank but the last frees a communicator before the last one may. */
static void free_before_others(void) {
  for (int turn = 0; turn < 3; ++turn) {
    MPI_Comm twin;
    int one = 1, sum = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    CHECK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, twin) == MPI_SUCCESS && sum == size);
    if (rank == size - 1)
      for (int r = 0; r < size - 1; ++r) MPI_Recv(&one, 1, MPI_INT, r, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Comm_free(&twin);
    if (rank != size - 1) MPI_Send(&one, 1, MPI_INT, size - 1, 7, MPI_COMM_WORLD);
  }
  /* Nobody but rank 0 ever frees this one. */
  MPI_Comm leaked;
  int one = 1, sum = 0;
  MPI_Comm_dup(MPI_COMM_WORLD, &leaked);
  CHECK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, leaked) == MPI_SUCCESS && sum == size);
  if (rank == 0) MPI_Comm_free(&leaked);
}

/* Communicators with a single sum, and one with many. */
static void churn(void) {
  MPI_Comm often;
  MPI_Comm_dup(MPI_COMM_WORLD, &often);
  MPI_Comm_set_name(often, "often");
  for (int i = 0; i < 50; ++i) {
    MPI_Comm once;
    int one = 1, sum = 0;
    MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &once);
    MPI_Comm_set_name(once, "once");
    CHECK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, once) == MPI_SUCCESS && sum == size);
    MPI_Comm_free(&once);
    MPI_Request request;
    sum = 0;
    if (i % 2 == 0) {
      CHECK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, often) == MPI_SUCCESS);
    } else {
      CHECK(MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, often, &request) == MPI_SUCCESS);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    CHECK(sum == size);
  }
  MPI_Comm_free(&often);
  MPI_Comm large;
  MPI_Comm_dup(MPI_COMM_WORLD, &large);
  MPI_Comm_set_name(large, "large");
  enum { kCount = 4 << 20 };
  int* values = calloc(kCount, sizeof *values);
  values[kCount - 1] = 1;
  CHECK(MPI_Allreduce(MPI_IN_PLACE, values, kCount, MPI_INT, MPI_SUM, large) == MPI_SUCCESS);
  CHECK(values[kCount - 1] == size);
  free(values);
  MPI_Comm_free(&large);
}

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const char* what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "progress") == 0) progress();
  if (strcmp(what, "free") == 0) free_before_others();
  if (strcmp(what, "churn") == 0) churn();
  return finish();
}
