/* The collective component "netsum" of Open MPI 4.1: collectives of MPI in the network. docs/mpi.md describes it.
 *
 * Open MPI makes a module for each communicator and calls its functions in place of those of the module below it. A
 * function passes a call on to the module below if netsum does not take it. All ranks must decide alike, so a decision
 * depends only on what MPI requires to be equal on all ranks: the number of bytes, and for reductions also the type
 * and the operator. */
#ifndef NETSUM_MPI_COLL_NETSUM_H_
#define NETSUM_MPI_COLL_NETSUM_H_

/* Open MPI's configuration comes first. */
#include <ompi_config.h>
/* Then its interfaces, of which mpi.h is one. */
#include <mpi.h>
#include <ompi/communicator/communicator.h>
#include <ompi/constants.h>
#include <ompi/datatype/ompi_datatype.h>
#include <ompi/mca/coll/coll.h>
#include <ompi/request/request.h>
#include <opal/util/output.h>

#include "netsum/netsum.h"

typedef struct netsum_component {
  mca_coll_base_component_t super;
  /* MCA parameters "coll_netsum_..."; component.c describes each. */
  bool enable;
  bool at_creation;
  int priority;
  int verbose;
  size_t least_bytes;
  double timeout_s;
} netsum_component;

/* Open MPI finds the component by this name. */
OMPI_MODULE_DECLSPEC extern netsum_component mca_coll_netsum_component;

/* The functions of MPI for which a module has the one below it, by Open MPI's names. */
#define NETSUM_FOR_EACH_FUNCTION(apply) \
  apply(allreduce) apply(iallreduce) apply(barrier) apply(ibarrier) apply(bcast) apply(allgather)

typedef enum netsum_join_state {
  kNotTried, /* joins at the first blocking call that netsum can take */
  kJoined,
  kRefused /* everything goes to the modules below */
} netsum_join_state;

typedef struct netsum_module {
  mca_coll_base_module_t super;
  ompi_communicator_t* mpi_comm; /* valid during calls of MPI on it */
  char name[MPI_MAX_OBJECT_NAME];
  int rank;
  mca_coll_base_comm_coll_t below; /* functions and modules of the next lower priority */
  bool holds_below;
  netsum_join_state state;
  netsum_comm* comm;
  int64_t taken;  /* calls */
  int64_t passed; /* calls, to the module below */
} netsum_module;
OBJ_CLASS_DECLARATION(netsum_module);

/* An operation of netsum that has been submitted, and what is to be done when it has ended. */
typedef struct netsum_operation {
  netsum_work* work; /* NULL: there was nothing to send */
  void* memory;      /* freed at the end; may be NULL */
  /* Copied at the end, from `memory`; no type: nothing. */
  const void* packed;
  int packed_bytes;
  void* to;
  int to_count;
  ompi_datatype_t* to_type; /* retained */
} netsum_operation;

/* What a function below has done with a call. */
typedef enum netsum_start {
  kStarted,
  kPassOn, /* netsum does not take it: nothing has happened */
  kFailed
} netsum_start;

/* --- module.c --- */
/* Decides whether netsum takes a collective of `bytes`, which must be equal on all ranks. `reason`: why it does not, or
 * NULL if nothing is known against it. A blocking call may make the communicator join. Returns kPassOn, after telling
 * the user if asked to, or kStarted. */
netsum_start netsum_decide(netsum_module* module, const char* collective, bool blocking, size_t bytes,
                           const char* reason);
/* What a function of netsum returned for a collective that was submitted: kStarted, or kFailed after a message. */
netsum_start netsum_submitted(netsum_module* module, const char* collective, int code);
mca_coll_base_module_t* netsum_comm_query(struct ompi_communicator_t* comm, int* priority);

/* --- datatypes.c --- */
/* Writes the types of netsum for a reduction; returns NULL, or why netsum does not take it. */
const char* netsum_map_reduction(ompi_datatype_t* type, MPI_Op op, netsum_dtype* dtype, netsum_redop* redop);

/* --- requests.c --- */
/* Waits for the end of the operation, while MPI makes progress. Returns a code of Open MPI. */
int netsum_operation_wait(netsum_module* module, const char* collective, netsum_operation* operation);
/* Makes a request of it, which completes when the operation has ended. */
int netsum_operation_request(netsum_module* module, const char* collective, netsum_operation* operation,
                             ompi_request_t** request);
/* Ends what netsum_operation_request() needs. No request is in progress. */
void netsum_requests_close(void);

/* Ends a function of MPI: by waiting, by a request, or by the function below. */
#define NETSUM_FINISH(start, started, passed_on) \
  switch (start) {                               \
    case kStarted:                               \
      return started;                            \
    case kPassOn:                                \
      return passed_on;                          \
    default:                                     \
      return MPI_ERR_OTHER;                      \
  }

/* --- reductions.c --- */
/* Waits until all ranks have come here, at most 30 s. */
void netsum_wait_for_all(netsum_module* module);
int netsum_mpi_allreduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type,
                         struct ompi_op_t* op, struct ompi_communicator_t* comm,
                         mca_coll_base_module_t* module);
int netsum_mpi_iallreduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type,
                          struct ompi_op_t* op, struct ompi_communicator_t* comm, ompi_request_t** request,
                          mca_coll_base_module_t* module);
int netsum_mpi_barrier(struct ompi_communicator_t* comm, mca_coll_base_module_t* module);
int netsum_mpi_ibarrier(struct ompi_communicator_t* comm, ompi_request_t** request,
                        mca_coll_base_module_t* module);

#endif /* NETSUM_MPI_COLL_NETSUM_H_ */
