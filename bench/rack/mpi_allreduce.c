/* MPI_Allreduce for the rack benchmark: times it, checks every element of every result, and prints one JSON
 * object. mpi_allreduce BYTES ITERATIONS WARMUP */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

/* Small whole numbers, so that the sum is exact in any order; other numbers in each iteration. */
static float input(size_t i, int rank, int iteration) {
  return (float)((i * 7 + (size_t)rank * 13 + (size_t)iteration) % 1000);
}

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) {
    fprintf(stderr, "usage: mpi_allreduce BYTES ITERATIONS WARMUP\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const size_t count = strtoull(argv[1], NULL, 10) / sizeof(float);
  const int iterations = atoi(argv[2]), warmup = atoi(argv[3]);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  float* in = malloc(count * sizeof *in);
  float* out = malloc(count * sizeof *out);
  double* times = malloc((size_t)iterations * sizeof *times);
  long wrong = 0, all_wrong = 0;
  double cpu = 0, all_cpu = 0;
  for (int iteration = 0; iteration < warmup + iterations; ++iteration) {
    for (size_t i = 0; i < count; ++i) in[i] = input(i, rank, iteration);
    MPI_Barrier(MPI_COMM_WORLD);
    const double cpu_before = cpu_seconds(), before = MPI_Wtime();
    MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double took = MPI_Wtime() - before, longest = 0;
    if (iteration >= warmup) cpu += cpu_seconds() - cpu_before;
    /* The slowest rank's time is the operation's. */
    MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (iteration >= warmup) times[iteration - warmup] = longest;
    for (size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < ranks; ++r) sum += input(i, r, iteration);
      wrong += sum != out[i];
    }
  }
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Reduce(&cpu, &all_cpu, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("{\"wrong\": %ld, \"cpu_seconds\": %.6f, \"times_s\": [", all_wrong, all_cpu);
    for (int i = 0; i < iterations; ++i) printf("%s%.9f", i ? ", " : "", times[i]);
    printf("]}\n");
  }
  free(in);
  free(out);
  free(times);
  MPI_Finalize();
  return 0;
}
