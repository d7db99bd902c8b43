/* How MPI waits for operations of netsum.
 *
 * netsum works in threads of its own, but other communication of MPI goes on only while MPI is called. A rank that
 * waits for netsum therefore calls opal_progress(): another rank may need an answer before it can enter the
 * collective. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "mpi/coll_netsum.h"

/* How often Open MPI is called, by the time since it had something to do or the wait began: at once, because more is likely to
 * come; soon; or now and then, so that a rank that waits for long leaves the processor to others. */
enum { kAtOnceForUs = 100, kSoonForUs = 1000000, kSoonUs = 50, kIdleUs = 1000 };

typedef struct attention {
  int64_t began_ns,
      worked_ns;   /* the wait; and the end of the last call that had something to do, 0: none had */
  int64_t wait_us; /* until the next call */
} attention;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Open MPI does not tell whether it had something to do, but a message takes it several times as long as to find none: 5 us and
 * 1 us in shared memory, 30 us and 5 us over TCP. A wrong guess costs some calls. Only calls after a wait are compared: others
 * find all in the caches. */
static bool seems_to_have_worked(int64_t took_ns) {
  static _Thread_local int64_t usual_ns = 2000; /* a quarter of the calls take less */
  const bool worked = took_ns > 4 * usual_ns;
  usual_ns += took_ns > usual_ns ? usual_ns / 32 + 1 : -(usual_ns / 11);
  return worked;
}

static void serve_open_mpi(attention* a) {
  const int64_t before_ns = now_ns();
  opal_progress();
  const int64_t after_ns = now_ns();
  if (a->wait_us > 0 && seems_to_have_worked(after_ns - before_ns)) a->worked_ns = after_ns;
  const int64_t quiet_us = (after_ns - (a->worked_ns != 0 ? a->worked_ns : a->began_ns)) / 1000;
  a->wait_us = a->worked_ns != 0 && quiet_us < kAtOnceForUs ? 0 : quiet_us < kSoonForUs ? kSoonUs : kIdleUs;
}

/* Ends the operation, whose result is `code`. Returns a code of Open MPI. */
static int finish(netsum_module* module, const char* collective, netsum_operation* operation, int code) {
  int result = OMPI_SUCCESS;
  if (code != NETSUM_OK) {
    opal_output(0, "netsum: %s of %s failed on rank %d: %s: %s", collective, module->name, module->rank,
                netsum_code_name(code), netsum_last_error());
    result = MPI_ERR_OTHER;
  } else {
    result = netsum_operation_unpack(operation);
  }
  netsum_work_free(operation->work);
  netsum_operation_release(operation);
  return result;
}

int netsum_operation_wait(netsum_module* module, const char* collective, netsum_operation* operation) {
  int code = NETSUM_OK;
  attention open_mpi = {.began_ns = now_ns()};
  while (operation->work != NULL && !netsum_work_done(operation->work)) {
    serve_open_mpi(&open_mpi);
    code = netsum_work_wait_us(operation->work, open_mpi.wait_us);
  }
  if (operation->work != NULL) code = netsum_work_wait(operation->work, -1);
  return finish(module, collective, operation, code);
}

typedef struct netsum_request {
  ompi_coll_base_nbc_request_t super; /* or MPI_Ibcast() and its like would write beyond the request */
  netsum_module* module;              /* kept while the request is in progress */
  const char* collective;
  netsum_operation operation;
  struct netsum_request* next;
} netsum_request;
OBJ_CLASS_DECLARATION(netsum_request);
OBJ_CLASS_INSTANCE(netsum_request, ompi_coll_base_nbc_request_t, NULL, NULL);

/* Requests in progress, in the order of their submission. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static netsum_request* in_progress = NULL;
static volatile int in_progress_count = 0; /* read without the mutex, as a hint */
static bool registered = false;

static int free_request(ompi_request_t** request) {
  if (!REQUEST_COMPLETE(*request)) return MPI_ERR_REQUEST;
  OMPI_REQUEST_FINI(*request);
  OBJ_RELEASE(*request);
  *request = MPI_REQUEST_NULL;
  return OMPI_SUCCESS;
}

static void complete(netsum_request* request) {
  netsum_module* module = request->module;
  request->super.super.req_status.MPI_ERROR =
      finish(module, request->collective, &request->operation, netsum_work_wait(request->operation.work, -1));
  ompi_request_complete(&request->super.super, true); /* the owner may free it from here on */
  OBJ_RELEASE(module);                                /* may be the last reference */
}

/* Called by opal_progress(), of any thread that waits for anything. */
static int progress(void) {
  if (in_progress_count == 0 || pthread_mutex_trylock(&mutex) != 0) return 0;
  /* Who submits a small operation is expected to run it: to poll it is to do so. The first, since operations end in order. */
  if (in_progress != NULL) netsum_work_wait_us(in_progress->operation.work, 0);
  netsum_request* done = NULL;
  netsum_request** done_end = &done;
  for (netsum_request** each = &in_progress; *each != NULL;) {
    netsum_request* request = *each;
    if (!netsum_work_done(request->operation.work)) {
      each = &request->next;
      continue;
    }
    *each = request->next;
    request->next = NULL;
    *done_end = request;
    done_end = &request->next;
    --in_progress_count;
  }
  pthread_mutex_unlock(&mutex);
  int count = 0;
  while (done != NULL) {
    netsum_request* request = done;
    done = done->next;
    complete(request);
    ++count;
  }
  return count;
}

int netsum_operation_request(netsum_module* module, const char* collective, netsum_operation* operation,
                             ompi_request_t** out) {
  netsum_request* request = OBJ_NEW(netsum_request);
  if (request == NULL) {
    const int result = netsum_operation_wait(module, collective, operation);
    return result == OMPI_SUCCESS ? OMPI_ERR_OUT_OF_RESOURCE : result;
  }
  ompi_request_t* base = &request->super.super;
  OMPI_REQUEST_INIT(base, false);
  base->req_type = OMPI_REQUEST_COLL;
  base->req_state = OMPI_REQUEST_ACTIVE;
  base->req_free = free_request;
  base->req_mpi_object.comm = module->mpi_comm;
  base->req_status.MPI_SOURCE = MPI_ANY_SOURCE;
  base->req_status.MPI_TAG = MPI_ANY_TAG;
  base->req_status.MPI_ERROR = MPI_SUCCESS;
  base->req_status._ucount = 0;
  base->req_status._cancelled = 0;
  request->module = module;
  request->collective = collective;
  request->operation = *operation;
  request->next = NULL;
  OBJ_RETAIN(module);
  pthread_mutex_lock(&mutex);
  if (!registered) registered = opal_progress_register(progress) == OPAL_SUCCESS;
  netsum_request** end = &in_progress;
  while (*end != NULL) end = &(*end)->next;
  *end = request;
  ++in_progress_count;
  pthread_mutex_unlock(&mutex);
  *out = base;
  return OMPI_SUCCESS;
}

bool netsum_requests_fit(void) {
  return ompi_coll_base_nbc_request_t_class.cls_sizeof <= sizeof(ompi_coll_base_nbc_request_t);
}

void netsum_requests_close(void) {
  if (registered) opal_progress_unregister(progress);
  registered = false;
}
