/* Collectives of MPI for the benchmarks: mpi_collective COLLECTIVE (GATE BYTES ITERATIONS WARMUP)...
 * For each group of four arguments all ranks run the collective on float32 tensors of so many bytes (of all parts together),
 * starting together by the gate; each rank checks its part of every result, and rank 0 prints one JSON array of what all
 * report (start_gate.py, combine). The root is rank 0. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/measure/start_gate.h"

enum { kWords = 6 }; /* of one iteration: start, end, busy before, busy after, checksum, processor ns */
static const int64_t kTimeoutNs = 120ll * 1000000000;

static int rank, ranks;

struct tensors {
  size_t count; /* elements of all parts together */
  float* in;
  float* out;
  float* part; /* of a reduce-scatter: this rank's part of the sum */
  int* counts; /* elements of each part */
};

/* Small whole numbers, so that the sum is exact in any order; other numbers in each iteration. */
static float input(size_t i, int of_rank, int iteration) {
  return (float)((uint32_t)(i * 7 + (size_t)of_rank * 13 + (size_t)iteration) % 1000);
}
static float sum_of(size_t i, int iteration) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += input(i, r, iteration);
  return sum;
}
static size_t first_of(size_t count, int part) {
  return count * (size_t)part / (size_t)ranks;
}

static int64_t processor_ns(void) {
  struct timespec spent;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return (int64_t)spent.tv_sec * 1000000000 + spent.tv_nsec;
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

/* --- The collectives: what is timed, and how many elements of its result are wrong on this rank ------------------- */

static void run_allreduce(const struct tensors* t) {
  MPI_Allreduce(t->in, t->out, (int)t->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
/* Each rank checks a part; the checksums are compared. */
static int64_t wrong_sums(const struct tensors* t, int iteration) {
  int64_t wrong = 0;
  for (size_t i = first_of(t->count, rank); i < first_of(t->count, rank + 1); ++i)
    wrong += t->out[i] != sum_of(i, iteration);
  return wrong;
}

static void run_broadcast(const struct tensors* t) {
  MPI_Bcast(rank == 0 ? t->in : t->out, (int)t->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static int64_t wrong_broadcast(const struct tensors* t, int iteration) {
  int64_t wrong = 0;
  for (size_t i = 0; rank != 0 && i < t->count; ++i) wrong += t->out[i] != input(i, 0, iteration);
  return wrong;
}

static void run_allgather(const struct tensors* t) {
  MPI_Allgather(t->in + first_of(t->count, rank), t->counts[0], MPI_FLOAT, t->out, t->counts[0], MPI_FLOAT,
                MPI_COMM_WORLD);
}
static int64_t wrong_gathered(const struct tensors* t, int iteration) {
  int64_t wrong = 0;
  for (int r = 0; r < ranks; ++r)
    for (size_t i = first_of(t->count, r); i < first_of(t->count, r + 1); ++i)
      wrong += t->out[i] != input(i, r, iteration);
  return wrong;
}

static void run_reduce_scatter(const struct tensors* t) {
  MPI_Reduce_scatter(t->in, t->part, t->counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static int64_t wrong_part(const struct tensors* t, int iteration) {
  const size_t first = first_of(t->count, rank);
  int64_t wrong = 0;
  for (size_t i = 0; i < (size_t)t->counts[rank]; ++i) wrong += t->part[i] != sum_of(first + i, iteration);
  return wrong;
}

static void run_barrier(const struct tensors* t) {
  (void)t;
  MPI_Barrier(MPI_COMM_WORLD);
}
static int64_t nothing_wrong(const struct tensors* t, int iteration) {
  (void)t;
  (void)iteration;
  return 0;
}

static void run_both_at_once(const struct tensors* t) {
  MPI_Request requests[2];
  MPI_Iallgather(t->in + first_of(t->count, rank), t->counts[0], MPI_FLOAT, t->out, t->counts[0], MPI_FLOAT,
                 MPI_COMM_WORLD, &requests[0]);
  MPI_Ireduce_scatter(t->in, t->part, t->counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}
static void run_one_after_the_other(const struct tensors* t) {
  run_allgather(t);
  run_reduce_scatter(t);
}
static int64_t wrong_of_both(const struct tensors* t, int iteration) {
  return wrong_gathered(t, iteration) + wrong_part(t, iteration);
}

static const struct collective {
  const char* name;
  void (*run)(const struct tensors*);
  int64_t (*wrong)(const struct tensors*, int iteration);
  int same_everywhere; /* the result in `out` has the same bits on all ranks */
} kCollectives[] = {
    {"allreduce", run_allreduce, wrong_sums, 1},
    {"broadcast", run_broadcast, wrong_broadcast, 0},
    {"allgather", run_allgather, wrong_gathered, 1},
    {"reducescatter", run_reduce_scatter, wrong_part, 0},
    {"barrier", run_barrier, nothing_wrong, 0},
    {"allgather+reducescatter", run_both_at_once, wrong_of_both, 1},
    {"allgather, reducescatter", run_one_after_the_other, wrong_of_both, 1},
};

static void give_up(const char* what) {
  fprintf(stderr, "mpi_collective: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 3);
  exit(3);
}

static void* allocate(size_t count, size_t size) {
  void* memory = calloc(count ? count : 1, size);
  if (!memory) give_up("no memory");
  return memory;
}

/* --- Measuring ------------------------------------------------------------------------------------------------- */

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
    int64_t spent = 0;
    for (int i = 0; i < iterations; ++i) spent += words[i * kWords + 5];
    printf("], \"cpu_s\": %.6f}", (double)spent * 1e-9);
  }
  printf("]\n");
  fflush(stdout);
}

/* One iteration; writes its words. Returns how many elements are wrong. */
static int64_t iterate(const struct collective* what, const struct tensors* t, StartGate* gate, int iteration,
                       int64_t* words) {
  const int counts_busy = t->count * sizeof(float) >= kStartGateBusyBytes;
  for (size_t i = 0; i < t->count; ++i) {
    t->in[i] = input(i, rank, iteration);
    t->out[i] = -1;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  words[2] = counts_busy ? machine_busy_ticks() : 0;
  if (start_gate_wait(gate, iteration + 1, kTimeoutNs) != 0)
    give_up("not all ranks came to an iteration in time");
  words[5] = -processor_ns();
  words[0] = start_gate_now_ns();
  what->run(t);
  words[1] = start_gate_now_ns();
  words[5] += processor_ns();
  words[3] = counts_busy ? machine_busy_ticks() : 0;
  /* Open MPI sends only while somebody calls it, so nobody may wait elsewhere before all have their results. */
  MPI_Barrier(MPI_COMM_WORLD);
  words[4] = what->same_everywhere ? checksum(t->out, t->count) : 0;
  return what->wrong(t, iteration);
}

static void measure(const struct collective* what, const char* gate_path, size_t bytes, int iterations,
                    int warmup) {
  struct tensors t = {.count = bytes / sizeof(float)};
  StartGate gate;
  const int error = start_gate_open(&gate, gate_path, rank, ranks);
  if (error != 0) give_up(strerror(error));
  if (t.count % (size_t)ranks != 0 && what->run != run_allreduce) give_up("the parts must be of equal size");
  t.in = allocate(t.count, sizeof *t.in);
  t.out = allocate(t.count, sizeof *t.out);
  t.part = allocate(t.count, sizeof *t.part);
  t.counts = allocate((size_t)ranks, sizeof *t.counts);
  for (int r = 0; r < ranks; ++r) t.counts[r] = (int)(first_of(t.count, r + 1) - first_of(t.count, r));
  int64_t* mine = allocate((size_t)iterations * kWords, sizeof *mine);
  int64_t* all = allocate((size_t)ranks * (size_t)iterations * kWords, sizeof *all);
  int64_t* all_wrong = allocate((size_t)ranks, sizeof *all_wrong);
  int64_t wrong = 0, unused[kWords];
  for (int iteration = 0; iteration < warmup + iterations; ++iteration) {
    int64_t* words = iteration < warmup ? unused : mine + (size_t)(iteration - warmup) * kWords;
    wrong += iterate(what, &t, &gate, iteration, words);
  }
  MPI_Gather(mine, iterations * kWords, MPI_INT64_T, all, iterations * kWords, MPI_INT64_T, 0,
             MPI_COMM_WORLD);
  MPI_Gather(&wrong, 1, MPI_INT64_T, all_wrong, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  if (rank == 0) print_all(all, all_wrong, iterations);
  free(t.in);
  free(t.out);
  free(t.part);
  free(t.counts);
  free(mine);
  free(all);
  free(all_wrong);
}

int main(int argc, char** argv) {
  const struct collective* what = NULL;
  MPI_Init(&argc, &argv);
  for (size_t i = 0; argc > 1 && i < sizeof kCollectives / sizeof *kCollectives; ++i)
    if (strcmp(argv[1], kCollectives[i].name) == 0) what = &kCollectives[i];
  if (!what || argc < 6 || argc % 4 != 2) {
    fprintf(stderr, "usage: mpi_collective COLLECTIVE (GATE BYTES ITERATIONS WARMUP)...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int a = 2; a + 3 < argc; a += 4) {
    measure(what, argv[a], strtoull(argv[a + 1], NULL, 10), atoi(argv[a + 2]), atoi(argv[a + 3]));
  }
  MPI_Finalize();
  return 0;
}
