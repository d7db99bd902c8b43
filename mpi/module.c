/* The module of one communicator: it joins a job of netsum when it is first needed. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpi/coll_netsum.h"
#include "mpi/job.h"

enum { kTextBytes = 600 };

static void construct(netsum_module* module) {
  memset(&module->below, 0, sizeof(module->below));
  module->mpi_comm = NULL;
  module->name[0] = '\0';
  module->rank = -1;
  module->holds_below = false;
  module->state = kNotTried;
  module->comm = NULL;
  module->calls = module->bytes = 0;
  module->taken = module->passed = 0;
}

#define RELEASE(name) OBJ_RELEASE(module->below.coll_##name##_module);

static void release_below(netsum_module* module) {
  if (!module->holds_below) return;
  module->holds_below = false;
  NETSUM_FOR_EACH_FUNCTION(RELEASE)
}

static void destruct(netsum_module* module) {
  if (module->comm != NULL) {
    if (mca_coll_netsum_component.verbose >= 2 && module->rank == 0)
      opal_output(0, "netsum: %s ends after %" PRId64 " collectives by netsum and %" PRId64 " by Open MPI",
                  module->name, module->taken, module->passed);
    netsum_close_later(module->comm);
  }
  release_below(module);
}

OBJ_CLASS_INSTANCE(netsum_module, mca_coll_base_module_t, construct, destruct);

static int broadcast_below(void* context, void* data, size_t bytes) {
  netsum_module* module = context;
  return module->below.coll_bcast(data, (int)bytes, MPI_BYTE, 0, module->mpi_comm,
                                  module->below.coll_bcast_module);
}

static int gather_below(void* context, const void* mine, void* all, size_t bytes) {
  netsum_module* module = context;
  return module->below.coll_allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, module->mpi_comm,
                                      module->below.coll_allgather_module);
}

static void say_where(const netsum_module* module, const char* text) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static bool said = false;
  const int verbose = mca_coll_netsum_component.verbose;
  if (verbose < 1 || module->rank != 0) return;
  pthread_mutex_lock(&mutex);
  const bool first = !said;
  said = true;
  pthread_mutex_unlock(&mutex);
  if (!first && verbose < 2) return;
  opal_output(0, "netsum: %s (%d ranks) %s: %s", module->name, ompi_comm_size(module->mpi_comm),
              module->state == kJoined ? "uses netsum" : "does not use netsum", text);
}

static void warn(const char* text) {
  if (mca_coll_netsum_component.verbose >= 1) opal_output(0, "netsum: %s", text);
}

static void join(netsum_module* module) {
  const netsum_component* component = &mca_coll_netsum_component;
  const netsum_mpi_rendezvous rendezvous = {
      .context = module,
      .rank = module->rank,
      .size = ompi_comm_size(module->mpi_comm),
      .broadcast = broadcast_below,
      .gather = gather_below,
      .warn = warn,
  };
  snprintf(module->name, sizeof(module->name), "%s", module->mpi_comm->c_name);
  char settings[200];
  char text[kTextBytes];
  snprintf(
      settings, sizeof(settings),
      "coll_netsum_least_bytes=%zu\ncoll_netsum_join_after_calls=%zu\ncoll_netsum_join_after_bytes=%zu\n",
      component->least_bytes, component->join_after_calls, component->join_after_bytes);
  const double longest_s = 30.0 * 24 * 3600;
  const double timeout_s =
      component->timeout_s > 0 && component->timeout_s < longest_s ? component->timeout_s : longest_s;
  module->state = kJoining;
  module->comm = netsum_mpi_join(&rendezvous, settings, (int64_t)(timeout_s * 1e3), text, sizeof(text));
  module->state = module->comm != NULL ? kJoined : kRefused;
  say_where(module, text);
}

/* Tells once why calls go to the module below, up to a number of reasons that no program reaches. */
static void report_passed(const netsum_module* module, const char* collective, const char* reason) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static struct {
    const char* collective;
    const char* reason;
  } told[128];
  static size_t count = 0;
  if (mca_coll_netsum_component.verbose < 2 || module->rank != 0) return;
  pthread_mutex_lock(&mutex);
  size_t i = 0;
  while (i < count && (told[i].collective != collective || told[i].reason != reason)) ++i;
  const bool first = i == count && count < sizeof(told) / sizeof(told[0]);
  if (first) {
    told[count].collective = collective;
    told[count++].reason = reason;
  }
  pthread_mutex_unlock(&mutex);
  if (first) opal_output(0, "netsum: %s is left to Open MPI: %s", collective, reason);
}

/* To join takes as long as hundreds of small collectives, and many communicators have only a few. MPI_COMM_WORLD joins at
 * once. */
static bool has_had_enough(const netsum_module* module) {
  const netsum_component* component = &mca_coll_netsum_component;
  return module->mpi_comm == MPI_COMM_WORLD || module->calls > component->join_after_calls ||
         module->bytes >= component->join_after_bytes;
}

netsum_start netsum_decide(netsum_module* module, const char* collective, bool blocking, size_t bytes,
                           const char* reason) {
  if (reason == NULL && bytes < mca_coll_netsum_component.least_bytes)
    reason = "it has fewer bytes than coll_netsum_least_bytes";
  if (reason == NULL && module->state == kNotTried) {
    ++module->calls;
    module->bytes += bytes;
    if (!has_had_enough(module))
      reason =
          "the communicator has had too few calls and bytes to join a job (coll_netsum_join_after_calls, "
          "coll_netsum_join_after_bytes)";
    else if (blocking)
      join(module);
  }
  if (reason == NULL && module->state != kJoined) reason = "the communicator has no job of netsum";
  if (reason == NULL) return kStarted;
  ++module->passed;
  report_passed(module, collective, reason);
  return kPassOn;
}

netsum_start netsum_submitted(netsum_module* module, const char* collective, netsum_operation* operation,
                              int code) {
  if (code == NETSUM_OK) {
    ++module->taken;
    return kStarted;
  }
  opal_output(0, "netsum: %s of %s failed on rank %d: %s: %s", collective, module->name, module->rank,
              netsum_code_name(code), netsum_last_error());
  netsum_operation_release(operation);
  return kFailed;
}

netsum_start netsum_cannot(netsum_module* module, const char* collective, netsum_operation* operation,
                           int code) {
  const char* why = code == MPI_ERR_TRUNCATE ? "its data has another size than its part of the result"
                    : code == OMPI_ERR_OUT_OF_RESOURCE ? "out of memory"
                                                       : "its data cannot be packed";
  char text[kTextBytes];
  snprintf(text, sizeof(text), "%s of %s failed on rank %d: %s", collective, module->name, module->rank, why);
  opal_output(0, "netsum: %s", text);
  netsum_operation_release(operation);
  netsum_comm_abort(module->comm, text);
  return kFailed;
}

static int enable(mca_coll_base_module_t* base, struct ompi_communicator_t* comm) {
  netsum_module* module = (netsum_module*)base;
  module->below = *comm->c_coll;
#define IS_MISSING(name) module->below.coll_##name##_module == NULL ||
  if (NETSUM_FOR_EACH_FUNCTION(IS_MISSING) false) return OMPI_ERR_NOT_FOUND; /* nothing to pass calls on to */
#define RETAIN(name) OBJ_RETAIN(module->below.coll_##name##_module);
  NETSUM_FOR_EACH_FUNCTION(RETAIN)
  module->holds_below = true;
  module->mpi_comm = comm;
  module->rank = ompi_comm_rank(comm);
  if (mca_coll_netsum_component.at_creation) join(module);
  return OMPI_SUCCESS;
}

mca_coll_base_module_t* netsum_comm_query(struct ompi_communicator_t* comm, int* priority) {
  /* Of one rank there is nothing to sum, and an inter-communicator has two groups with different results. */
  if (OMPI_COMM_IS_INTER(comm) || ompi_comm_size(comm) < 2) return NULL;
  netsum_module* module = OBJ_NEW(netsum_module);
  if (module == NULL) return NULL;
  *priority = mca_coll_netsum_component.priority;
  module->super.coll_module_enable = enable;
#define TAKE(name) module->super.coll_##name = netsum_mpi_##name;
  NETSUM_FOR_EACH_FUNCTION(TAKE)
  return &module->super;
}
