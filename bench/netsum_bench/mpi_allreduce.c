/* MPI_Allreduce for the benchmarks: mpi_allreduce (GATE BYTES ITERATIONS WARMUP)...
 * For each group of four arguments all ranks sum tensors of so many bytes of float32, starting together by the gate; each
 * rank checks its part of every result, and rank 0 prints one JSON array of what all report (start_gate.py, combine). */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/measure/start_gate.h"

enum { kWords = 5 }; /* of one iteration: start, end, busy before, busy after, checksum */

static int rank, ranks;

/* Small whole numbers, so that the sum is exact in any order; other numbers in each iteration. */
static float input(size_t i, int of_rank, int iteration) {
  return (float)((uint32_t)(i * 7 + (size_t)of_rank * 13 + (size_t)iteration) % 1000);
}

static int64_t checksum(const float* values, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, &values[i], sizeof bits);
    hash = (hash ^ bits) * 0x9E3779B97F4A7C15ull;
  }
  return (int64_t)(hash >> 1);
}

static int64_t wrong_elements(const float* out, size_t count, int iteration) {
  const size_t first = count * (size_t)rank / (size_t)ranks,
               last = count * (size_t)(rank + 1) / (size_t)ranks;
  int64_t wrong = 0;
  for (size_t i = first; i < last; ++i) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += input(i, r, iteration);
    wrong += sum != out[i];
  }
  return wrong;
}

static void print_all(const int64_t* all, const int64_t* wrong, int iterations) {
  printf("[");
  for (int r = 0; r < ranks; ++r) {
    const int64_t* words = all + (size_t)r * (size_t)iterations * kWords;
    printf("%s{\"wrong\": %lld, \"sums\": [", r ? ", " : "", (long long)wrong[r]);
    for (int i = 0; i < iterations; ++i) printf("%s%lld", i ? ", " : "", (long long)words[i * kWords + 4]);
    printf("], \"stamps\": [");
    for (int i = 0; i < iterations; ++i) {
      const int64_t* w = words + (ptrdiff_t)i * kWords;
      printf("%s[%lld, %lld, %lld, %lld]", i ? ", " : "", (long long)w[0], (long long)w[1], (long long)w[2],
             (long long)w[3]);
    }
    printf("]}");
  }
  printf("]\n");
  fflush(stdout);
}

static void measure(const char* gate_path, size_t bytes, int iterations, int warmup) {
  const size_t count = bytes / sizeof(float);
  StartGate gate;
  const int error = start_gate_open(&gate, gate_path, rank, ranks);
  float* in = malloc(count * sizeof *in);
  float* out = malloc(count * sizeof *out);
  int64_t* mine = calloc((size_t)iterations * kWords, sizeof *mine);
  int64_t* all = calloc((size_t)ranks * (size_t)iterations * kWords, sizeof *all);
  int64_t* all_wrong = calloc((size_t)ranks, sizeof *all_wrong);
  int64_t wrong = 0;
  if (error != 0 || !in || !out || !mine || !all || !all_wrong) {
    fprintf(stderr, "mpi_allreduce: %s\n", error != 0 ? strerror(error) : "no memory");
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  for (int iteration = 0; iteration < warmup + iterations; ++iteration) {
    for (size_t i = 0; i < count; ++i) in[i] = input(i, rank, iteration);
    MPI_Barrier(MPI_COMM_WORLD);
    const int64_t busy_before = bytes >= kStartGateBusyBytes ? machine_busy_ticks() : 0;
    if (start_gate_wait(&gate, iteration + 1, 120ll * 1000000000) != 0) {
      fprintf(stderr, "mpi_allreduce: not all ranks came to iteration %d in time\n", iteration);
      MPI_Abort(MPI_COMM_WORLD, 3);
    }
    const int64_t start = start_gate_now_ns();
    MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const int64_t end = start_gate_now_ns();
    const int64_t busy_after = bytes >= kStartGateBusyBytes ? machine_busy_ticks() : 0;
    /* Open MPI sends only while somebody calls it, so nobody may wait elsewhere before all have their results. */
    MPI_Barrier(MPI_COMM_WORLD);
    wrong += wrong_elements(out, count, iteration);
    if (iteration < warmup) continue;
    int64_t* words = mine + (size_t)(iteration - warmup) * kWords;
    words[0] = start;
    words[1] = end;
    words[2] = busy_before;
    words[3] = busy_after;
    words[4] = checksum(out, count);
  }
  MPI_Gather(mine, iterations * kWords, MPI_INT64_T, all, iterations * kWords, MPI_INT64_T, 0,
             MPI_COMM_WORLD);
  MPI_Gather(&wrong, 1, MPI_INT64_T, all_wrong, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  if (rank == 0) print_all(all, all_wrong, iterations);
  free(in);
  free(out);
  free(mine);
  free(all);
  free(all_wrong);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc < 5 || argc % 4 != 1) {
    fprintf(stderr, "usage: mpi_allreduce (GATE BYTES ITERATIONS WARMUP)...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int a = 1; a + 3 < argc; a += 4) {
    measure(argv[a], strtoull(argv[a + 1], NULL, 10), atoi(argv[a + 2]), atoi(argv[a + 3]));
  }
  MPI_Finalize();
  return 0;
}
