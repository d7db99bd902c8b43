/* The collective component "netsum" of Open MPI 4.1: collectives of MPI in the network. docs/programs.md describes it.
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
  size_t join_after_calls, join_after_bytes;
  double timeout_s;
} netsum_component;

/* A request of a collective. MPI_Ibcast() and its like cast to it, and keep the data types there until it completes. The header
 * that declares it, ompi/mca/coll/base/coll_base_util.h, includes one that Debian's libopenmpi-dev does not have. */
typedef struct ompi_coll_base_nbc_request_t {
  ompi_request_t super;
  void* kept[4];
} ompi_coll_base_nbc_request_t;
OMPI_DECLSPEC OBJ_CLASS_DECLARATION(ompi_coll_base_nbc_request_t);

/* Open MPI finds the component by this name. */
OMPI_MODULE_DECLSPEC extern netsum_component mca_coll_netsum_component;

/* The functions of MPI for which a module has the one below it, by Open MPI's names. */
#define NETSUM_FOR_EACH_FUNCTION(apply)                                                                      \
  apply(allreduce) apply(iallreduce) apply(barrier) apply(ibarrier) apply(reduce) apply(ireduce)             \
      apply(reduce_scatter) apply(ireduce_scatter) apply(reduce_scatter_block) apply(ireduce_scatter_block)  \
          apply(bcast) apply(ibcast) apply(allgather) apply(iallgather) apply(allgatherv) apply(iallgatherv) \
              apply(gather) apply(igather) apply(scatter) apply(iscatter)

typedef enum netsum_join_state {
  kNotTried, /* joins at a blocking call that netsum can take, when there have been enough of these */
  kJoining,  /* collectives of the modules below may call those of this one */
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
  size_t calls, bytes; /* before it joins, of those that netsum can take: counted alike on all ranks */
  int64_t taken;       /* calls */
  int64_t passed;      /* calls, to the module below */
} netsum_module;
OBJ_CLASS_DECLARATION(netsum_module);

/* A buffer of MPI. */
typedef struct netsum_view {
  void* address;
  int count;
  ompi_datatype_t* type;
} netsum_view;

/* An operation of netsum, and what is to be done when it has ended. */
typedef struct netsum_operation {
  netsum_work* work; /* NULL: nothing has been submitted */
  void* memory;      /* freed at the end; may be NULL */
  /* Views to which the bytes at `packed` are unpacked at the end, one behind the other. MPI keeps their types until then. */
  const char* packed;
  netsum_view* unpacked; /* freed at the end; may be NULL */
  int unpacked_count;
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
netsum_start netsum_submitted(netsum_module* module, const char* collective, netsum_operation* operation,
                              int code);
/* This rank cannot take part in a collective that netsum takes, because of a code of Open MPI. Says so, and ends the
 * collective on the other ranks, too. Returns kFailed. */
netsum_start netsum_cannot(netsum_module* module, const char* collective, netsum_operation* operation,
                           int code);
mca_coll_base_module_t* netsum_comm_query(struct ompi_communicator_t* comm, int* priority);

/* --- closing.c --- */
/* Closes it when all ranks have called this, in the background: MPI_Comm_free() waits for nobody. */
void netsum_close_later(netsum_comm* comm);
/* Ends that, in MPI_Finalize(), which all ranks have called. */
void netsum_close_all(void);

/* --- datatypes.c --- */
/* How netsum computes a reduction of MPI. */
typedef struct netsum_reduction {
  netsum_all_reduce_options options;
  bool logical; /* of truth values: the input must consist of 0 and 1 */
} netsum_reduction;
/* Returns NULL, or why netsum does not take it. */
const char* netsum_map_reduction(ompi_datatype_t* type, MPI_Op op, netsum_reduction* reduction);
/* The input of a reduction: `data`, or what the operation keeps in its memory. NULL: out of memory. */
const void* netsum_input_of(const netsum_reduction* reduction, const void* data, size_t count,
                            netsum_operation* operation);

/* --- views.c --- */
size_t netsum_view_bytes(netsum_view view);
/* Why netsum does not move views of so many bytes, or NULL. */
const char* netsum_reason_of_size(size_t largest);
/* The same buffer from its element `first` on, with `count` elements. */
netsum_view netsum_view_part(netsum_view whole, ptrdiff_t first, int count);
/* Where the bytes of the view are, if they have no gaps; otherwise NULL. */
char* netsum_view_direct(netsum_view view);
/* The following return a code of Open MPI. */
int netsum_view_pack(netsum_view view, char* to);
/* Sets bytes[i] to where those of views[i] can be read: in place, or packed into memory of the operation. To be called once
 * for an operation. */
int netsum_make_readable(const netsum_view* views, int count, netsum_operation* operation, char** bytes);
/* The same to write them. At the end of the operation they are unpacked. */
int netsum_make_writable(const netsum_view* views, int count, netsum_operation* operation, char** bytes);
int netsum_operation_unpack(const netsum_operation* operation);
/* Frees what the operation holds besides its work. */
void netsum_operation_release(netsum_operation* operation);

/* --- requests.c --- */
/* Waits for the end of the operation, while MPI makes progress. Returns a code of Open MPI. */
int netsum_operation_wait(netsum_module* module, const char* collective, netsum_operation* operation);
/* Makes a request of it, which completes when the operation has ended. */
int netsum_operation_request(netsum_module* module, const char* collective, netsum_operation* operation,
                             ompi_request_t** request);
/* Whether this Open MPI has requests of the size for which the component was built. */
bool netsum_requests_fit(void);
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
enum { kEverybody = -1 };
/* Starts a reduction whose result is for the rank `root`, or for kEverybody. */
netsum_start netsum_start_reduction(netsum_module* module, const char* collective, bool blocking,
                                    const void* sbuf, void* rbuf, int count, ompi_datatype_t* type, MPI_Op op,
                                    int root, netsum_operation* operation);

/* The functions that Open MPI calls, with its types: reductions.c, reduce_to.c, movement.c, gathers.c. */
#define NETSUM_DECLARE(name) __typeof__(*(mca_coll_base_module_##name##_fn_t)NULL) netsum_mpi_##name;
NETSUM_FOR_EACH_FUNCTION(NETSUM_DECLARE)

#endif /* NETSUM_MPI_COLL_NETSUM_H_ */
