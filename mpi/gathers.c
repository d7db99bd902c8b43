/* All-gather and gather: bytes of all ranks that move unchanged, of any type, as in movement.c. */
#include <string.h>

#include "mpi/coll_netsum.h"

/* A buffer with the elements of all ranks: `of_all.count` of each one behind the other, or, unless these are NULL, counts[r]
 * of rank r from element places[r] on. */
typedef struct layout {
  netsum_view of_all;
  const int* counts;
  const int* places;
} layout;

static netsum_view of_rank(const layout* all, int r) {
  if (all->counts != NULL) return netsum_view_part(all->of_all, all->places[r], all->counts[r]);
  return netsum_view_part(all->of_all, (ptrdiff_t)r * all->of_all.count, all->of_all.count);
}

/* Prepares to receive the parts of all ranks. Contributes this rank's from `mine` or, if that is MPI_IN_PLACE, from its
 * place. What must be packed is packed into its place. */
static int collect(netsum_module* module, netsum_view mine, const layout* all, netsum_operation* operation,
                   netsum_buffer* parts) {
  const int ranks = ompi_comm_size(module->mpi_comm);
  netsum_view views[ranks];
  char* places[ranks];
  memset(views, 0, sizeof(views));
  for (int r = 0; r < ranks; ++r) views[r] = of_rank(all, r);
  const int code = netsum_make_writable(views, ranks, operation, places);
  if (code != OMPI_SUCCESS) return code;
  for (int r = 0; r < ranks; ++r) {
    parts[r].bytes = netsum_view_bytes(views[r]);
    parts[r].output = places[r];
  }
  netsum_buffer* own = &parts[module->rank];
  const bool in_place = (const void*)mine.address == MPI_IN_PLACE;
  const netsum_view from = in_place ? views[module->rank] : mine;
  if (netsum_view_bytes(from) != own->bytes) return MPI_ERR_TRUNCATE;
  own->input = netsum_view_direct(from);
  if (own->input != NULL || own->bytes == 0) return OMPI_SUCCESS;
  own->input = own->output;
  return netsum_view_pack(from, own->output);
}

static netsum_start start_allgather(netsum_module* module, const char* collective, bool blocking,
                                    netsum_view mine, const layout* all, netsum_operation* operation) {
  const int ranks = ompi_comm_size(module->mpi_comm);
  size_t largest = 0, bytes = 0;
  for (int r = 0; r < ranks; ++r) {
    const size_t part = netsum_view_bytes(of_rank(all, r));
    bytes += part;
    if (part > largest) largest = part;
  }
  const netsum_start decision =
      netsum_decide(module, collective, blocking, bytes, netsum_reason_of_size(largest));
  if (decision != kStarted) return decision;
  memset(operation, 0, sizeof(*operation));
  netsum_buffer parts[ranks];
  memset(parts, 0, sizeof(parts));
  const int code = collect(module, mine, all, operation, parts);
  if (code != OMPI_SUCCESS) return netsum_cannot(module, collective, operation, code);
  return netsum_submitted(module, collective, operation,
                          netsum_all_gather(module->comm, parts, (size_t)ranks, 0, &operation->work));
}

int netsum_mpi_allgather(const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf, int rcount,
                         struct ompi_datatype_t* rtype, struct ompi_communicator_t* comm,
                         mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Allgather";
  netsum_module* module = (netsum_module*)base;
  const layout all = {{rbuf, rcount, rtype}, NULL, NULL};
  netsum_operation operation;
  NETSUM_FINISH(
      start_allgather(module, kName, true, (netsum_view){(void*)sbuf, scount, stype}, &all, &operation),
      netsum_operation_wait(module, kName, &operation),
      module->below.coll_allgather(sbuf, scount, stype, rbuf, rcount, rtype, comm,
                                   module->below.coll_allgather_module))
}

int netsum_mpi_iallgather(const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf, int rcount,
                          struct ompi_datatype_t* rtype, struct ompi_communicator_t* comm,
                          ompi_request_t** request, mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Iallgather";
  netsum_module* module = (netsum_module*)base;
  const layout all = {{rbuf, rcount, rtype}, NULL, NULL};
  netsum_operation operation;
  NETSUM_FINISH(
      start_allgather(module, kName, false, (netsum_view){(void*)sbuf, scount, stype}, &all, &operation),
      netsum_operation_request(module, kName, &operation, request),
      module->below.coll_iallgather(sbuf, scount, stype, rbuf, rcount, rtype, comm, request,
                                    module->below.coll_iallgather_module))
}

int netsum_mpi_allgatherv(const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf,
                          const int* counts, const int* places, struct ompi_datatype_t* rtype,
                          struct ompi_communicator_t* comm, mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Allgatherv";
  netsum_module* module = (netsum_module*)base;
  const layout all = {{rbuf, 0, rtype}, counts, places};
  netsum_operation operation;
  NETSUM_FINISH(
      start_allgather(module, kName, true, (netsum_view){(void*)sbuf, scount, stype}, &all, &operation),
      netsum_operation_wait(module, kName, &operation),
      module->below.coll_allgatherv(sbuf, scount, stype, rbuf, counts, places, rtype, comm,
                                    module->below.coll_allgatherv_module))
}

int netsum_mpi_iallgatherv(const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf,
                           const int* counts, const int* places, struct ompi_datatype_t* rtype,
                           struct ompi_communicator_t* comm, ompi_request_t** request,
                           mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Iallgatherv";
  netsum_module* module = (netsum_module*)base;
  const layout all = {{rbuf, 0, rtype}, counts, places};
  netsum_operation operation;
  NETSUM_FINISH(
      start_allgather(module, kName, false, (netsum_view){(void*)sbuf, scount, stype}, &all, &operation),
      netsum_operation_request(module, kName, &operation, request),
      module->below.coll_iallgatherv(sbuf, scount, stype, rbuf, counts, places, rtype, comm, request,
                                     module->below.coll_iallgatherv_module))
}

static netsum_start start_gather(netsum_module* module, const char* collective, bool blocking,
                                 netsum_view mine, netsum_view each, int root, netsum_operation* operation) {
  const int ranks = ompi_comm_size(module->mpi_comm);
  const bool receives = module->rank == root; /* only then `each` has a meaning */
  const size_t bytes = netsum_view_bytes(receives ? each : mine);
  const netsum_start decision =
      netsum_decide(module, collective, blocking, bytes * (size_t)ranks, netsum_reason_of_size(bytes));
  if (decision != kStarted) return decision;
  memset(operation, 0, sizeof(*operation));
  netsum_buffer parts[ranks];
  memset(parts, 0, sizeof(parts));
  int code = OMPI_SUCCESS;
  if (receives) {
    const layout all = {each, NULL, NULL};
    code = collect(module, mine, &all, operation, parts);
  } else {
    char* place = NULL;
    code = netsum_make_readable(&mine, 1, operation, &place);
    for (int r = 0; r < ranks; ++r) parts[r].bytes = bytes;
    parts[module->rank].input = place;
  }
  if (code != OMPI_SUCCESS) return netsum_cannot(module, collective, operation, code);
  return netsum_submitted(module, collective, operation,
                          netsum_gather(module->comm, parts, (size_t)ranks, root, 0, &operation->work));
}

int netsum_mpi_gather(const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf, int rcount,
                      struct ompi_datatype_t* rtype, int root, struct ompi_communicator_t* comm,
                      mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Gather";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(start_gather(module, kName, true, (netsum_view){(void*)sbuf, scount, stype},
                             (netsum_view){rbuf, rcount, rtype}, root, &operation),
                netsum_operation_wait(module, kName, &operation),
                module->below.coll_gather(sbuf, scount, stype, rbuf, rcount, rtype, root, comm,
                                          module->below.coll_gather_module))
}

int netsum_mpi_igather(const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf, int rcount,
                       struct ompi_datatype_t* rtype, int root, struct ompi_communicator_t* comm,
                       ompi_request_t** request, mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Igather";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(start_gather(module, kName, false, (netsum_view){(void*)sbuf, scount, stype},
                             (netsum_view){rbuf, rcount, rtype}, root, &operation),
                netsum_operation_request(module, kName, &operation, request),
                module->below.coll_igather(sbuf, scount, stype, rbuf, rcount, rtype, root, comm, request,
                                           module->below.coll_igather_module))
}
