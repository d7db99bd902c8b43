/* The reductions of MPI besides all-reduce, and its operators: roots, counts, in place or not, blocking or not. The program
 * does not know of netsum. */
#include <stdint.h>
#include <string.h>

#include "tests/mpi/checks.h"

static void finish_request(MPI_Request* request) {
  CHECK(MPI_Wait(request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
}

static int number(int of_rank, int i) {
  return of_rank * 7 + i % 1000;
}

static int sum_of(int i) {
  return size * (size - 1) / 2 * 7 + size * (i % 1000);
}

static void reduces(MPI_Comm comm, int count, int root, int in_place, int blocking) {
  int* mine = malloc(((size_t)count + 1) * sizeof *mine);
  int* all = malloc(((size_t)count + 1) * sizeof *all);
  MPI_Request request = MPI_REQUEST_NULL;
  for (int i = 0; i < count; ++i) {
    mine[i] = number(rank, i);
    all[i] = in_place ? mine[i] : -1;
  }
  const void* from = in_place && rank == root ? MPI_IN_PLACE : (void*)mine;
  if (blocking)
    CHECK(MPI_Reduce(from, all, count, MPI_INT, MPI_SUM, root, comm) == MPI_SUCCESS);
  else
    CHECK(MPI_Ireduce(from, all, count, MPI_INT, MPI_SUM, root, comm, &request) == MPI_SUCCESS);
  finish_request(&request);
  int bad = 0;
  for (int i = 0; i < count; ++i)
    bad += all[i] != (rank == root ? sum_of(i) : in_place ? mine[i] : -1) || mine[i] != number(rank, i);
  CHECK(bad == 0);
  free(mine);
  free(all);
}

/* Parts of different sizes, some of them empty. */
static void reduce_scatters(MPI_Comm comm, int in_place, int blocking, int equal) {
  int counts[64], whole = 0, before = 0;
  for (int r = 0; r < size; ++r) {
    counts[r] = equal ? 321 : r == 1 ? 0 : 100 + 37 * r;
    if (r < rank) before += counts[r];
    whole += counts[r];
  }
  int* in = malloc((size_t)whole * sizeof *in);
  int* out = malloc(((size_t)counts[rank] + 1) * sizeof *out);
  MPI_Request request = MPI_REQUEST_NULL;
  for (int i = 0; i < whole; ++i) in[i] = number(rank, i);
  const void* from = in_place ? MPI_IN_PLACE : (void*)in;
  int* to = in_place ? in : out;
  if (equal && blocking)
    CHECK(MPI_Reduce_scatter_block(from, to, 321, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS);
  else if (equal)
    CHECK(MPI_Ireduce_scatter_block(from, to, 321, MPI_INT, MPI_SUM, comm, &request) == MPI_SUCCESS);
  else if (blocking)
    CHECK(MPI_Reduce_scatter(from, to, counts, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS);
  else
    CHECK(MPI_Ireduce_scatter(from, to, counts, MPI_INT, MPI_SUM, comm, &request) == MPI_SUCCESS);
  finish_request(&request);
  int bad = 0;
  for (int i = 0; i < counts[rank]; ++i) bad += to[i] != sum_of(before + i);
  if (!in_place) {
    for (int i = 0; i < whole; ++i) bad += in[i] != number(rank, i);
  }
  CHECK(bad == 0);
  free(in);
  free(out);
}

/* --- Operators: the network's results against those of MPI_Reduce_local() --- */

enum { kCount = 2003 };

static uint64_t mixed(int of_rank, int i) {
  uint64_t x = (uint64_t)(of_rank * 100003 + i + 1) * 0x9E3779B97F4A7C15u;
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9u;
}

/* All bits of integers, a third of them zero; any finite float. */
static void fill(void* data, MPI_Datatype type, int of_rank) {
  int bytes;
  MPI_Type_size(type, &bytes);
  for (int i = 0; i < kCount; ++i) {
    const uint64_t bits = i % 3 == 0 ? 0 : mixed(of_rank, i);
    if (type == MPI_FLOAT)
      ((float*)data)[i] = (float)(int64_t)mixed(of_rank, i) * 1e-3f;
    else if (bytes == 8)
      ((uint64_t*)data)[i] = bits;
    else
      ((uint32_t*)data)[i] = (uint32_t)bits;
  }
}

static void operators(MPI_Comm comm) {
  const MPI_Op ops[] = {MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR};
  const MPI_Datatype types[] = {MPI_FLOAT, MPI_INT, MPI_LONG, MPI_UNSIGNED, MPI_UINT64_T};
  static uint64_t mine[kCount], all[kCount], expected[kCount], of_rank[kCount];
  for (int o = 0; o < 8; ++o) {
    for (int t = 0; t < 5; ++t) {
      if (t == 0 && o > 1) continue; /* of integers only */
      if (t > 2 && o < 2) continue;  /* comparisons of unsigned numbers are Open MPI's */
      int bytes;
      MPI_Type_size(types[t], &bytes);
      fill(expected, types[t], 0);
      for (int r = 1; r < size; ++r) {
        fill(of_rank, types[t], r);
        CHECK(MPI_Reduce_local(of_rank, expected, kCount, types[t], ops[o]) == MPI_SUCCESS);
      }
      fill(mine, types[t], rank);
      fill(all, types[t], rank);
      const int in_place = (o + t) % 2;
      CHECK(MPI_Allreduce(in_place ? MPI_IN_PLACE : (void*)mine, all, kCount, types[t], ops[o], comm) ==
            MPI_SUCCESS);
      CHECK(memcmp(all, expected, (size_t)(kCount * bytes)) == 0);
      memset(all, 1, sizeof all);
      CHECK(MPI_Reduce(mine, all, kCount, types[t], ops[o], t % size, comm) == MPI_SUCCESS);
      CHECK(rank != t % size || memcmp(all, expected, (size_t)(kCount * bytes)) == 0);
      fill(all, types[t], rank);
      const int each = kCount / size;
      CHECK(MPI_Reduce_scatter_block(MPI_IN_PLACE, all, each, types[t], ops[o], comm) == MPI_SUCCESS);
      CHECK(memcmp(all, (char*)expected + rank * each * bytes, (size_t)(each * bytes)) == 0);
    }
  }
}

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const MPI_Comm comm = MPI_COMM_WORLD;
  MPI_Barrier(comm); /* the communicator joins */
  for (int way = 0; way < 4; ++way) {
    const int in_place = way & 1, blocking = way >> 1;
    const int counts[] = {0, 1, 333, 20000};
    for (int c = 0; c < 4; ++c) reduces(comm, counts[c], way % size, in_place, blocking);
    reduce_scatters(comm, in_place, blocking, 0);
    reduce_scatters(comm, in_place, blocking, 1);
  }
  operators(comm);
  return finish();
}
