/* What the test programs of the Open MPI component share: every check counts, and rank 0 prints the result. */
#ifndef NETSUM_TESTS_MPI_CHECKS_H_
#define NETSUM_TESTS_MPI_CHECKS_H_

#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size;
static int wrong = 0, checks = 0;

static inline void check(int good, const char* what, int line) {
  ++checks;
  if (good) return;
  if (++wrong <= 10) fprintf(stderr, "line %d: wrong: %s\n", line, what);
}
#define CHECK(condition) check(!!(condition), #condition, __LINE__)

/* Begins the program. Whether it has that level of threads. */
static inline int begin(int* argc, char*** argv, int level) {
  int provided;
  MPI_Init_thread(argc, argv, level, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return provided >= level;
}

/* Runs `call` in several threads at once, each with a communicator of its own. It returns what went wrong, or NULL. */
static inline void in_threads(void* (*call)(void* comm)) {
  enum { kThreads = 3 };
  MPI_Comm comms[kThreads];
  pthread_t thread[kThreads];
  for (int t = 0; t < kThreads; ++t) MPI_Comm_dup(MPI_COMM_WORLD, &comms[t]);
  for (int t = 0; t < kThreads; ++t) pthread_create(&thread[t], NULL, call, &comms[t]);
  for (int t = 0; t < kThreads; ++t) {
    void* problem = NULL;
    pthread_join(thread[t], &problem);
    CHECK(problem == NULL);
  }
  for (int t = 0; t < kThreads; ++t) MPI_Comm_free(&comms[t]);
}

/* Ends the program. Its status is 0 if all checks of all ranks are good. */
static inline int finish(void) {
  int all[2], mine[2];
  mine[0] = wrong;
  mine[1] = checks;
  MPI_Reduce(mine, all, 2, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%d checks, %d wrong\n", all[1], all[0]);
  MPI_Finalize();
  return wrong != 0;
}

#endif /* NETSUM_TESTS_MPI_CHECKS_H_ */
