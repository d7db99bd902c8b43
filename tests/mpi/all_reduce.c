/* All-reduces and barriers of MPI: types, operators, counts, communicators, requests and threads. The program does not
 * know of netsum. Its sums are exact in any order. */
#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "tests/mpi/checks.h"

static long long number(size_t i, int of_rank, int round) {
  return (long long)((i * 7 + (size_t)of_rank * 13 + (size_t)round) % 1000) - 300;
}

/* Defines sum_TYPE(comm, count, op...): sums numbers of the type, in place or not, and checks them. */
#define DEFINE_SUM(name, type, mpi_type)                                                                    \
  static void sum_##name(MPI_Comm comm, size_t count, int in_place, size_t offset) {                        \
    int ranks, me;                                                                                          \
    MPI_Comm_size(comm, &ranks);                                                                            \
    MPI_Comm_rank(comm, &me);                                                                               \
    type* in = malloc((count + offset + 1) * sizeof *in);                                                   \
    type* out = malloc((count + offset + 2) * sizeof *out);                                                 \
    for (size_t i = 0; i < count; ++i) {                                                                    \
      in[i + offset] = (type)number(i, me, 1);                                                              \
      out[i + offset] = in_place ? in[i + offset] : (type)99;                                               \
    }                                                                                                       \
    out[count + offset] = (type)77;                                                                         \
    CHECK(MPI_Allreduce(in_place ? MPI_IN_PLACE : (void*)(in + offset), out + offset, (int)count, mpi_type, \
                        MPI_SUM, comm) == MPI_SUCCESS);                                                     \
    size_t bad = 0;                                                                                         \
    for (size_t i = 0; i < count; ++i) {                                                                    \
      type expected = 0;                                                                                    \
      for (int r = 0; r < ranks; ++r) expected += (type)number(i, r, 1);                                    \
      bad += out[i + offset] != expected;                                                                   \
    }                                                                                                       \
    CHECK(bad == 0);                                                                                        \
    CHECK(out[count + offset] == (type)77);                                                                 \
    free(in);                                                                                               \
    free(out);                                                                                              \
  }
DEFINE_SUM(float, float, MPI_FLOAT)
DEFINE_SUM(double, double, MPI_DOUBLE)
DEFINE_SUM(int, int, MPI_INT)
DEFINE_SUM(unsigned, unsigned, MPI_UNSIGNED)
DEFINE_SUM(long, long, MPI_LONG)
DEFINE_SUM(int64, int64_t, MPI_INT64_T)
DEFINE_SUM(short, short, MPI_SHORT)

static void sums(MPI_Comm comm) {
  const size_t counts[] = {0, 1, 2, 7, 359, 360, 361, 5000, 100003};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; ++c) {
    for (int in_place = 0; in_place < 2; ++in_place) {
      sum_float(comm, counts[c], in_place, c % 2);
      sum_int(comm, counts[c], in_place, 0);
      sum_long(comm, counts[c], in_place, 1);
    }
    sum_int64(comm, counts[c], 0, 0);
  }
  /* For Open MPI. */
  sum_double(comm, 1000, 0, 0);
  sum_unsigned(comm, 1000, 1, 0);
  sum_short(comm, 1000, 0, 1);
}

static void largest_odd(void* in, void* inout, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) {
    const int value = ((int*)in)[i];
    if (value > ((int*)inout)[i]) ((int*)inout)[i] = value;
  }
}

static void other_operators(void) {
  int mine[3] = {rank + 1, 10 - rank, 1 << rank}, all[3];
  CHECK(MPI_Allreduce(mine, all, 3, MPI_INT, MPI_MAX, MPI_COMM_WORLD) == MPI_SUCCESS);
  CHECK(all[0] == size && all[1] == 10);
  CHECK(MPI_Allreduce(mine, all, 3, MPI_INT, MPI_MIN, MPI_COMM_WORLD) == MPI_SUCCESS);
  CHECK(all[0] == 1 && all[1] == 11 - size);
  CHECK(MPI_Allreduce(mine, all, 3, MPI_INT, MPI_BOR, MPI_COMM_WORLD) == MPI_SUCCESS);
  CHECK(all[2] == (1 << size) - 1);
  struct {
    float value;
    int place;
  } one = {(float)rank, rank}, best;
  CHECK(MPI_Allreduce(&one, &best, 1, MPI_FLOAT_INT, MPI_MAXLOC, MPI_COMM_WORLD) == MPI_SUCCESS);
  CHECK(best.place == size - 1);
  MPI_Op op;
  MPI_Op_create(largest_odd, 1, &op);
  CHECK(MPI_Allreduce(mine, all, 3, MPI_INT, op, MPI_COMM_WORLD) == MPI_SUCCESS);
  CHECK(all[0] == size);
  MPI_Op_free(&op);
}

static void communicators(void) {
  MPI_Comm twin, half, back;
  MPI_Comm_dup(MPI_COMM_WORLD, &twin);
  sum_float(twin, 1000, 0, 0);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half); /* of one rank each, if there are two */
  sum_int(half, 1000, 0, 0);
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &back); /* ranks in the reverse order */
  sum_long(back, 1000, 1, 0);
  sum_float(MPI_COMM_WORLD, 1000, 0, 0);
  sum_int(MPI_COMM_SELF, 1000, 0, 0);
  MPI_Comm between;
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank % 2 == 0 ? 1 : 0, 5, &between);
  int mine = rank, of_others = 0, expected = 0;
  CHECK(MPI_Allreduce(&mine, &of_others, 1, MPI_INT, MPI_SUM, between) == MPI_SUCCESS);
  for (int r = 0; r < size; ++r) expected += r % 2 != rank % 2 ? r : 0;
  CHECK(of_others == expected);
  CHECK(MPI_Barrier(between) == MPI_SUCCESS);
  MPI_Comm_free(&between);
  MPI_Comm_free(&back);
  MPI_Comm_free(&half);
  MPI_Comm_free(&twin);
}

enum { kRequests = 12, kCount = 3000 };

static void requests(MPI_Comm comm) {
  static float in[kRequests][kCount], out[kRequests][kCount];
  MPI_Request pending[kRequests + 1];
  for (int round = 0; round < 3; ++round) {
    for (int q = 0; q < kRequests; ++q) {
      for (size_t i = 0; i < kCount; ++i) in[q][i] = (float)number(i, rank, q);
      CHECK(MPI_Iallreduce(in[q], out[q], kCount, MPI_FLOAT, MPI_SUM, comm, &pending[q]) == MPI_SUCCESS);
      if (q == 5) CHECK(MPI_Ibarrier(comm, &pending[kRequests]) == MPI_SUCCESS);
    }
    if (round == 0) {
      CHECK(MPI_Waitall(kRequests + 1, pending, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
    } else if (round == 1) {
      for (int q = kRequests; q >= 0; --q) CHECK(MPI_Wait(&pending[q], MPI_STATUS_IGNORE) == MPI_SUCCESS);
    } else {
      for (int done = 0; !done;)
        CHECK(MPI_Testall(kRequests + 1, pending, &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
    }
    for (int q = 0; q <= kRequests; ++q) CHECK(pending[q] == MPI_REQUEST_NULL);
    for (int q = 0; q < kRequests; ++q) {
      size_t bad = 0;
      for (size_t i = 0; i < kCount; ++i) {
        float expected = 0;
        for (int r = 0; r < size; ++r) expected += (float)number(i, r, q);
        bad += out[q][i] != expected;
      }
      CHECK(bad == 0);
    }
  }
  /* A request outlives its communicator. */
  MPI_Comm twin;
  MPI_Comm_dup(comm, &twin);
  sum_int(twin, 10, 0, 0);
  MPI_Request last;
  int one = 1, sum = 0;
  CHECK(MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, twin, &last) == MPI_SUCCESS);
  MPI_Comm_free(&twin);
  CHECK(MPI_Wait(&last, MPI_STATUS_IGNORE) == MPI_SUCCESS);
  CHECK(sum == size);
}

/* A rank in a collective must let other communication go on: rank 0's message needs it after rank 0 is in the sum. */
static void progress_in_collectives(void) {
  enum { kBytes = 4 << 20 };
  char* data = malloc(kBytes);
  const int one = 1;
  for (int what = 0; what < 2; ++what) {
    int sum = 0;
    MPI_Request sent = MPI_REQUEST_NULL;
    memset(data, what + 3, kBytes);
    if (rank == 0) MPI_Isend(data, kBytes, MPI_CHAR, size - 1, what, MPI_COMM_WORLD, &sent);
    if (rank == size - 1) MPI_Recv(data, kBytes, MPI_CHAR, 0, what, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (what == 0) {
      CHECK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
      CHECK(sum == size);
    } else {
      CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
    }
    MPI_Wait(&sent, MPI_STATUS_IGNORE);
    CHECK(data[kBytes - 1] == what + 3);
  }
  free(data);
}

static void* sum_in_thread(void* comm) {
  for (int round = 0; round < 20; ++round) {
    float mine[500], all[500];
    for (int i = 0; i < 500; ++i) mine[i] = (float)(i % 10 + rank);
    if (MPI_Allreduce(mine, all, 500, MPI_FLOAT, MPI_SUM, *(MPI_Comm*)comm) != MPI_SUCCESS) return "failed";
    if (all[3] != (float)(3 * size + size * (size - 1) / 2)) return "wrong";
  }
  return NULL;
}

int main(int argc, char** argv) {
  const int threaded = begin(&argc, &argv, MPI_THREAD_MULTIPLE);
  /* The first collective is not blocking: it must not wait for the other ranks. */
  int one = 1, sum = 0;
  MPI_Request first;
  CHECK(MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &first) == MPI_SUCCESS);
  if (rank == 0) MPI_Send(&one, 1, MPI_INT, size - 1, 1, MPI_COMM_WORLD);
  if (rank == size - 1) {
    if (rank != 0) MPI_Recv(&one, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  CHECK(MPI_Wait(&first, MPI_STATUS_IGNORE) == MPI_SUCCESS);
  CHECK(sum == size);
  sums(MPI_COMM_WORLD);
  other_operators();
  progress_in_collectives();
  if (argc == 1 || strcmp(argv[1], "short") != 0) {
    communicators();
    requests(MPI_COMM_WORLD);
    if (threaded) in_threads(sum_in_thread);
  }
  CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
  return finish();
}
