/* All-reduce and barrier. */
#include <stdlib.h>
#include <string.h>

#include "mpi/coll_netsum.h"

netsum_start netsum_start_reduction(netsum_module* module, const char* collective, bool blocking,
                                    const void* sbuf, void* rbuf, int count, ompi_datatype_t* type, MPI_Op op,
                                    int root, netsum_operation* operation) {
  netsum_reduction reduction;
  const char* reason = netsum_map_reduction(type, op, &reduction);
  const netsum_start decision =
      netsum_decide(module, collective, blocking, (size_t)count * type->super.size, reason);
  if (decision != kStarted) return decision;
  memset(operation, 0, sizeof(*operation));
  const void* data = sbuf == MPI_IN_PLACE ? rbuf : sbuf;
  const netsum_tensor tensor = {.input = netsum_input_of(&reduction, data, (size_t)count, operation),
                                .output = root == kEverybody || root == module->rank ? rbuf : NULL,
                                .count = (size_t)count};
  if (tensor.input == NULL && count > 0)
    return netsum_cannot(module, collective, operation, OMPI_ERR_OUT_OF_RESOURCE);
  return netsum_submitted(
      module, collective, operation,
      root == kEverybody
          ? netsum_all_reduce_tensors(module->comm, &tensor, 1, &reduction.options, &operation->work)
          : netsum_reduce(module->comm, &tensor, 1, root, &reduction.options, &operation->work));
}

int netsum_mpi_allreduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type,
                         struct ompi_op_t* op, struct ompi_communicator_t* comm,
                         mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Allreduce";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(
      netsum_start_reduction(module, kName, true, sbuf, rbuf, count, type, op, kEverybody, &operation),
      netsum_operation_wait(module, kName, &operation),
      module->below.coll_allreduce(sbuf, rbuf, count, type, op, comm, module->below.coll_allreduce_module))
}

int netsum_mpi_iallreduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type,
                          struct ompi_op_t* op, struct ompi_communicator_t* comm, ompi_request_t** request,
                          mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Iallreduce";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(
      netsum_start_reduction(module, kName, false, sbuf, rbuf, count, type, op, kEverybody, &operation),
      netsum_operation_request(module, kName, &operation, request),
      module->below.coll_iallreduce(sbuf, rbuf, count, type, op, comm, request,
                                    module->below.coll_iallreduce_module))
}

/* The sum of one number, which shows that all ranks have come. netsum_barrier() would not let MPI make progress
 * meanwhile. */
static netsum_start sum_one(netsum_module* module, const char* collective, netsum_operation* operation) {
  static const int32_t kZero = 0;
  memset(operation, 0, sizeof(*operation));
  operation->memory = calloc(1, sizeof(kZero));
  if (operation->memory == NULL)
    return netsum_cannot(module, collective, operation, OMPI_ERR_OUT_OF_RESOURCE);
  return netsum_submitted(module, collective, operation,
                          netsum_all_reduce(module->comm, &kZero, operation->memory, 1, NETSUM_INT32,
                                            NETSUM_SUM, 0, &operation->work));
}

static netsum_start start_barrier(netsum_module* module, const char* collective, bool blocking,
                                  netsum_operation* operation) {
  const netsum_start decision = netsum_decide(module, collective, blocking, 0, NULL);
  return decision == kStarted ? sum_one(module, collective, operation) : decision;
}

int netsum_mpi_barrier(struct ompi_communicator_t* comm, mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Barrier";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(start_barrier(module, kName, true, &operation),
                netsum_operation_wait(module, kName, &operation),
                module->below.coll_barrier(comm, module->below.coll_barrier_module))
}

int netsum_mpi_ibarrier(struct ompi_communicator_t* comm, ompi_request_t** request,
                        mca_coll_base_module_t* base) {
  static const char kName[] = "MPI_Ibarrier";
  netsum_module* module = (netsum_module*)base;
  netsum_operation operation;
  NETSUM_FINISH(start_barrier(module, kName, false, &operation),
                netsum_operation_request(module, kName, &operation, request),
                module->below.coll_ibarrier(comm, request, module->below.coll_ibarrier_module))
}
