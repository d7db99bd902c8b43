/* The end of communicators. A rank that still waits for a result may need the shard of one that has freed the communicator, so
 * they are closed when all ranks have come so far. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "mpi/coll_netsum.h"

/* How long MPI_Finalize() waits for ranks that do not free a communicator, or are dead. */
enum { kFinalizeS = 5 };

typedef struct closing {
  netsum_comm* comm;
  int32_t zero, sum;
  bool over; /* no rank is waited for any more, and `comm` may be closed at any time */
  struct closing* next;
} closing;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static closing* in_progress = NULL;

/* Of a correct program nothing is said here. An error means that ranks are lost, or have mixed up their calls: they are told by
 * the collectives that suffer from it. */
static void* close_when_all_have(void* argument) {
  closing* one = argument;
  netsum_work* work = NULL;
  if (netsum_comm_status(one->comm) == NETSUM_OK &&
      netsum_all_reduce(one->comm, &one->zero, &one->sum, 1, NETSUM_INT32, NETSUM_SUM, 0, &work) ==
          NETSUM_OK) {
    (void)netsum_work_wait(work, -1);
    netsum_work_free(work);
  }
  pthread_mutex_lock(&mutex);
  one->over = true;
  pthread_mutex_unlock(&mutex);
  netsum_comm_close(one->comm);
  pthread_mutex_lock(&mutex);
  closing** at = &in_progress;
  while (*at != one) at = &(*at)->next;
  *at = one->next;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  free(one);
  return NULL;
}

/* The program's signals are not for it. */
static bool start_thread(closing* one) {
  pthread_attr_t attributes;
  sigset_t all, before;
  pthread_t thread;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool started = pthread_create(&thread, &attributes, close_when_all_have, one) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return started;
}

void netsum_close_later(netsum_comm* comm) {
  closing* one = calloc(1, sizeof(*one));
  if (one == NULL) {
    netsum_comm_close(comm);
    return;
  }
  one->comm = comm;
  pthread_mutex_lock(&mutex);
  one->next = in_progress;
  in_progress = one;
  const bool started = start_thread(one);
  if (!started) in_progress = one->next;
  pthread_mutex_unlock(&mutex);
  if (started) return;
  free(one);
  netsum_comm_close(comm);
}

void netsum_close_all(void) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += kFinalizeS;
  pthread_mutex_lock(&mutex);
  int code = 0;
  while (in_progress != NULL && code == 0) code = pthread_cond_timedwait(&changed, &mutex, &until);
  for (closing* one = in_progress; one != NULL; one = one->next)
    if (!one->over) netsum_comm_abort(one->comm, "MPI_Finalize");
  while (in_progress != NULL) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}
