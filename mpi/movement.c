/* Broadcast and scatter: bytes of a root that move unchanged, of any type.
 *
 * The types of sender and receiver may differ, and only one of them may have gaps, so no decision depends on a type. */
#include <string.h>

#include "mpi/coll_netsum.h"

/* --- Broadcast --- */

static netsum_start start_bcast(netsum_module* module, const char* collective, bool blocking,
                                netsum_view data, int root, netsum_operation* operation) {
  const size_t bytes = netsum_view_bytes(data);
  const netsum_start decision =
      netsum_decide(module, collective, blocking, bytes, netsum_reason_of_size(bytes));
  if (decision != kStarted) return decision;
  memset(operation, 0, sizeof(*operation));
  const bool sends = module->rank == root;
  char* place = NULL;
  const int code = (sends ? netsum_make_readable : netsum_make_writable)(&data, 1, operation, &place);
  if (code != OMPI_SUCCESS) return netsum_cannot(module, collective, operation, code);
  const netsum_buffer buffer = {
      .input = sends ? place : NULL, .output = sends ? NULL : place, .bytes = bytes};
  return netsum_submitted(module, collective, operation,
                          netsum_broadcast(module->comm, &buffer, 1, root, 0, &operation->work));
}

int netsum_mpi_bcast(void* buffer, int count, struct ompi_datatype_t* type, int root,
                     struct ompi_communicator_t* comm, mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Bcast";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(start_bcast(module, kName, true, (netsum_view){buffer, count, type}, root, &operation),
                netsum_operation_wait(module, kName, &operation),
                module->below.coll_bcast(buffer, count, type, root, comm, module->below.coll_bcast_module))
}

int netsum_mpi_ibcast(void* buffer, int count, struct ompi_datatype_t* type, int root,
                      struct ompi_communicator_t* comm, ompi_request_t** request,
                      mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Ibcast";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(
      start_bcast(module, kName, false, (netsum_view){buffer, count, type}, root, &operation),
      netsum_operation_request(module, kName, &operation, request),
      module->below.coll_ibcast(buffer, count, type, root, comm, request, module->below.coll_ibcast_module))
}

/* --- Scatter --- */

/* Sets the parts of the root, and copies its own, which does not travel. */
static int send_parts(netsum_module* module, netsum_view each, netsum_view mine, netsum_operation* operation,
                      netsum_buffer* parts) {
  const int ranks = ompi_comm_size(module->mpi_comm);
  netsum_view views[ranks];
  char* places[ranks];
  for (int r = 0; r < ranks; ++r) views[r] = netsum_view_part(each, (ptrdiff_t)r * each.count, each.count);
  const int code = netsum_make_readable(views, ranks, operation, places);
  if (code != OMPI_SUCCESS) return code;
  for (int r = 0; r < ranks; ++r) {
    parts[r].bytes = netsum_view_bytes(each);
    parts[r].input = places[r];
  }
  const netsum_view own = views[module->rank];
  return (const void*)mine.address == MPI_IN_PLACE
             ? OMPI_SUCCESS
             : ompi_datatype_sndrcv(own.address, own.count, own.type, mine.address, mine.count, mine.type);
}

static netsum_start start_scatter(netsum_module* module, const char* collective, bool blocking,
                                  netsum_view each, netsum_view mine, int root, netsum_operation* operation) {
  const int ranks = ompi_comm_size(module->mpi_comm);
  const bool sends = module->rank == root; /* only then `each` has a meaning */
  const size_t bytes = netsum_view_bytes(sends ? each : mine);
  const netsum_start decision =
      netsum_decide(module, collective, blocking, bytes * (size_t)ranks, netsum_reason_of_size(bytes));
  if (decision != kStarted) return decision;
  memset(operation, 0, sizeof(*operation));
  netsum_buffer parts[ranks];
  memset(parts, 0, sizeof(parts));
  int code = OMPI_SUCCESS;
  if (sends) {
    code = send_parts(module, each, mine, operation, parts);
  } else {
    char* place = NULL;
    code = netsum_make_writable(&mine, 1, operation, &place);
    for (int r = 0; r < ranks; ++r) parts[r].bytes = bytes;
    parts[module->rank].output = place;
  }
  if (code != OMPI_SUCCESS) return netsum_cannot(module, collective, operation, code);
  return netsum_submitted(module, collective, operation,
                          netsum_scatter(module->comm, parts, (size_t)ranks, root, 0, &operation->work));
}

int netsum_mpi_scatter(const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf, int rcount,
                       struct ompi_datatype_t* rtype, int root, struct ompi_communicator_t* comm,
                       mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Scatter";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(start_scatter(module, kName, true, (netsum_view){(void*)sbuf, scount, stype},
                              (netsum_view){rbuf, rcount, rtype}, root, &operation),
                netsum_operation_wait(module, kName, &operation),
                module->below.coll_scatter(sbuf, scount, stype, rbuf, rcount, rtype, root, comm,
                                           module->below.coll_scatter_module))
}

int netsum_mpi_iscatter(const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf, int rcount,
                        struct ompi_datatype_t* rtype, int root, struct ompi_communicator_t* comm,
                        ompi_request_t** request, mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Iscatter";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(start_scatter(module, kName, false, (netsum_view){(void*)sbuf, scount, stype},
                              (netsum_view){rbuf, rcount, rtype}, root, &operation),
                netsum_operation_request(module, kName, &operation, request),
                module->below.coll_iscatter(sbuf, scount, stype, rbuf, rcount, rtype, root, comm, request,
                                            module->below.coll_iscatter_module))
}
