/* What the test programs of the Open MPI component share: every check counts, and rank 0 prints the result. */
#ifndef NETSUM_TESTS_MPI_CHECKS_H_
#define NETSUM_TESTS_MPI_CHECKS_H_

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int wrong = 0, checks = 0;

static inline void check(int good, const char* what, int line) {
  ++checks;
  if (good) return;
  if (++wrong <= 10) fprintf(stderr, "line %d: wrong: %s\n", line, what);
}
#define CHECK(condition) check(!!(condition), #condition, __LINE__)

/* Ends the program. Its status is 0 if all checks of all ranks are good. */
static inline int finish(void) {
  int all[2], mine[2], rank;
  mine[0] = wrong;
  mine[1] = checks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Reduce(mine, all, 2, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%d checks, %d wrong\n", all[1], all[0]);
  MPI_Finalize();
  return wrong != 0;
}

#endif /* NETSUM_TESTS_MPI_CHECKS_H_ */
