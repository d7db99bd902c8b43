/* How the ranks of an MPI communicator join a job of netsum: the C side of src/rendezvous/join.h. */
#ifndef NETSUM_MPI_JOB_H_
#define NETSUM_MPI_JOB_H_

#include <stddef.h>
#include <stdint.h>

#include "netsum/netsum.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collectives of the module below, over the same communicator. They return 0 on success. */
typedef struct netsum_mpi_rendezvous {
  void* context;
  int rank;
  int size;
  int (*broadcast)(void* context, void* data, size_t bytes);
  int (*gather)(void* context, const void* mine, void* all, size_t bytes);
  void (*warn)(const char* text); /* of what this rank has to do without */
} netsum_mpi_rendezvous;

/* Joins a job. `settings`: "NAME=value\n" for each setting of the component that must be equal on all ranks. Returns the
 * communicator of netsum or NULL, the same on all ranks, and writes where the sums are made, or why there is none. */
netsum_comm* netsum_mpi_join(const netsum_mpi_rendezvous* rendezvous, const char* settings,
                             int64_t timeout_ms, char* text, size_t text_bytes);

#ifdef __cplusplus
}
#endif

#endif /* NETSUM_MPI_JOB_H_ */
