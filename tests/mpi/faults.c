/* Mistakes and failures: they must end with errors, and not hang. faults counts|overflow|dies|roots|collectives|
 * sizes|finalized */
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/checks.h"

int main(int argc, char** argv) {
  begin(&argc, &argv, MPI_THREAD_SINGLE);
  const char* fault = argc > 1 ? argv[1] : "";
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int in[100], out[100];
  for (int i = 0; i < 100; ++i) in[i] = 1;
  MPI_Allreduce(in, out, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (strcmp(fault, "overflow") == 0) in[7] = INT32_MAX;
  if (strcmp(fault, "dies") == 0 && rank == 1) raise(SIGKILL);
  const int count = strcmp(fault, "counts") == 0 && rank == 1 ? 50 : 100;
  int result = MPI_SUCCESS, all[640];
  if (strcmp(fault, "finalized") == 0) MPI_Finalize(); /* what follows ends the program */
  if (strcmp(fault, "roots") == 0)
    result = MPI_Bcast(in, 100, MPI_INT, rank == 1, MPI_COMM_WORLD);
  else if (strcmp(fault, "collectives") == 0 && rank == 1)
    result = MPI_Bcast(in, 100, MPI_INT, 0, MPI_COMM_WORLD);
  else if (strcmp(fault, "sizes") == 0) /* rank 1 expects fewer elements of each rank than it contributes */
    result = MPI_Allgather(in, 10, MPI_INT, all, rank == 1 ? 5 : 10, MPI_INT, MPI_COMM_WORLD);
  else
    result = MPI_Allreduce(in, out, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (result != MPI_SUCCESS) MPI_Error_string(result, text, &length);
  printf("rank %d: %s\n", rank, result == MPI_SUCCESS ? "no error" : text);
  fflush(stdout);
  if (strcmp(fault, "dies") == 0)
    _exit(result == MPI_SUCCESS); /* MPI_Finalize would wait for the dead rank */
  MPI_Finalize();
  return 0;
}
