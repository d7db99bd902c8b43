/* Reductions whose result is not for all ranks: reduce, reduce-scatter. */
#include <stdlib.h>
#include <string.h>

#include "mpi/coll_netsum.h"

/* --- Reduce --- */

int netsum_mpi_reduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type,
                      struct ompi_op_t* op, int root, struct ompi_communicator_t* comm,
                      mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Reduce";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(
      netsum_start_reduction(module, kName, true, sbuf, rbuf, count, type, op, root, &operation),
      netsum_operation_wait(module, kName, &operation),
      module->below.coll_reduce(sbuf, rbuf, count, type, op, root, comm, module->below.coll_reduce_module))
}

int netsum_mpi_ireduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type,
                       struct ompi_op_t* op, int root, struct ompi_communicator_t* comm,
                       ompi_request_t** request, mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Ireduce";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(netsum_start_reduction(module, kName, false, sbuf, rbuf, count, type, op, root, &operation),
                netsum_operation_request(module, kName, &operation, request),
                module->below.coll_ireduce(sbuf, rbuf, count, type, op, root, comm, request,
                                           module->below.coll_ireduce_module))
}

/* --- Reduce-scatter --- */

/* The elements of all ranks: counts[r] of rank r or, if that is NULL, `count` of each. */
typedef struct parts_sizes {
  const int* counts;
  int count;
} parts_sizes;

static size_t size_of(const parts_sizes* sizes, int r) {
  return (size_t)(sizes->counts != NULL ? sizes->counts[r] : sizes->count);
}

/* In place, the result replaces the first elements of the input, which may not have been sent yet, so the operation first
 * writes it to memory of its own. */
static int set_output(netsum_tensor* own, const void* input, netsum_view result,
                      netsum_operation* operation) {
  own->output = result.address;
  if (own->count == 0 || input != result.address || own->input == result.address) return OMPI_SUCCESS;
  own->output = operation->memory = malloc(netsum_view_bytes(result));
  operation->unpacked = malloc(sizeof(result));
  if (operation->memory == NULL || operation->unpacked == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
  operation->packed = operation->memory;
  operation->unpacked[operation->unpacked_count++] = result;
  return OMPI_SUCCESS;
}

static netsum_start start_reduce_scatter(netsum_module* module, const char* collective, bool blocking,
                                         const void* sbuf, void* rbuf, const parts_sizes* sizes,
                                         ompi_datatype_t* type, MPI_Op op, netsum_operation* operation) {
  const int ranks = ompi_comm_size(module->mpi_comm);
  const size_t element = type->super.size;
  netsum_reduction reduction;
  const char* reason = netsum_map_reduction(type, op, &reduction);
  size_t elements = 0, largest = 0;
  for (int r = 0; r < ranks; ++r) {
    elements += size_of(sizes, r);
    if (size_of(sizes, r) > largest) largest = size_of(sizes, r);
  }
  if (reason == NULL) reason = netsum_reason_of_size(largest * element);
  const netsum_start decision = netsum_decide(module, collective, blocking, elements * element, reason);
  if (decision != kStarted) return decision;
  memset(operation, 0, sizeof(*operation));
  const char* input = netsum_input_of(&reduction, sbuf == MPI_IN_PLACE ? rbuf : sbuf, elements, operation);
  if (input == NULL && elements > 0)
    return netsum_cannot(module, collective, operation, OMPI_ERR_OUT_OF_RESOURCE);
  netsum_tensor parts[ranks];
  memset(parts, 0, sizeof(parts));
  const char* next = input;
  for (int r = 0; r < ranks; ++r) {
    parts[r].input = next;
    parts[r].count = size_of(sizes, r);
    next += parts[r].count * element;
  }
  netsum_tensor* own = &parts[module->rank];
  const int code = set_output(own, input, (netsum_view){rbuf, (int)own->count, type}, operation);
  if (code != OMPI_SUCCESS) return netsum_cannot(module, collective, operation, code);
  return netsum_submitted(
      module, collective, operation,
      netsum_reduce_scatter(module->comm, parts, (size_t)ranks, &reduction.options, &operation->work));
}

int netsum_mpi_reduce_scatter(const void* sbuf, void* rbuf, const int* counts, struct ompi_datatype_t* type,
                              struct ompi_op_t* op, struct ompi_communicator_t* comm,
                              mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Reduce_scatter";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(
      start_reduce_scatter(module, kName, true, sbuf, rbuf, &(parts_sizes){counts, 0}, type, op, &operation),
      netsum_operation_wait(module, kName, &operation),
      module->below.coll_reduce_scatter(sbuf, rbuf, counts, type, op, comm,
                                        module->below.coll_reduce_scatter_module))
}

int netsum_mpi_ireduce_scatter(const void* sbuf, void* rbuf, const int* counts, struct ompi_datatype_t* type,
                               struct ompi_op_t* op, struct ompi_communicator_t* comm,
                               ompi_request_t** request, mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Ireduce_scatter";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(
      start_reduce_scatter(module, kName, false, sbuf, rbuf, &(parts_sizes){counts, 0}, type, op, &operation),
      netsum_operation_request(module, kName, &operation, request),
      module->below.coll_ireduce_scatter(sbuf, rbuf, counts, type, op, comm, request,
                                         module->below.coll_ireduce_scatter_module))
}

int netsum_mpi_reduce_scatter_block(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type,
                                    struct ompi_op_t* op, struct ompi_communicator_t* comm,
                                    mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Reduce_scatter_block";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(start_reduce_scatter(module, kName, true, sbuf, rbuf, &(parts_sizes){NULL, count}, type, op,
                                     &operation),
                netsum_operation_wait(module, kName, &operation),
                module->below.coll_reduce_scatter_block(sbuf, rbuf, count, type, op, comm,
                                                        module->below.coll_reduce_scatter_block_module))
}

int netsum_mpi_ireduce_scatter_block(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type,
                                     struct ompi_op_t* op, struct ompi_communicator_t* comm,
                                     ompi_request_t** request, mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Ireduce_scatter_block";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(start_reduce_scatter(module, kName, false, sbuf, rbuf, &(parts_sizes){NULL, count}, type, op,
                                     &operation),
                netsum_operation_request(module, kName, &operation, request),
                module->below.coll_ireduce_scatter_block(sbuf, rbuf, count, type, op, comm, request,
                                                         module->below.coll_ireduce_scatter_block_module))
}
