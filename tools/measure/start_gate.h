/* Lets the ranks of a benchmark on one machine start every iteration at one instant of the machine's clock,
 * whatever library they measure. CLOCK_MONOTONIC is the same in all network namespaces. The ranks meet in a
 * file that holds 2 + ranks words of 64 bits, zero at first: the iteration opened last, its start in
 * nanoseconds, and for each rank the iteration that it is ready for. Rank 0 opens an iteration when all ranks
 * are ready for it.
 *
 * C and C++: `netsum bench` and the benchmark's MPI program include it; bench/netsum_bench/start_gate.py is the same
 * in Python. */
#ifndef NETSUM_TOOLS_MEASURE_START_GATE_H_
#define NETSUM_TOOLS_MEASURE_START_GATE_H_

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct StartGate {
  volatile int64_t* words;
  int rank;
  int ranks;
} StartGate;

enum { kStartGateLeadNs = 8000000, kStartGatePollNs = 1000000 };

/* The processor time is read only around tensors of this size: reading it takes as long as a small sum. */
enum { kStartGateBusyBytes = 256 << 10 };

static inline int64_t start_gate_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void start_gate_sleep_until(int64_t when_ns) {
  struct timespec when;
  when.tv_sec = (time_t)(when_ns / 1000000000);
  when.tv_nsec = (long)(when_ns % 1000000000);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR) {
  }
}

/* Returns 0 or an errno. */
static inline int start_gate_open(StartGate* gate, const char* path, int rank, int ranks) {
  const int file = open(path, O_RDWR | O_CLOEXEC);
  const size_t bytes = (size_t)(2 + ranks) * sizeof(int64_t);
  void* memory;
  if (file < 0) return errno;
  memory = lseek(file, 0, SEEK_END) < (off_t)bytes
               ? MAP_FAILED
               : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return EINVAL;
  gate->words = (volatile int64_t*)memory;
  gate->rank = rank;
  gate->ranks = ranks;
  return 0;
}

/* Waits until all ranks are ready for `iteration` (from 1), and returns at its start. 0, or ETIMEDOUT. */
static inline int start_gate_wait(StartGate* gate, int64_t iteration, int64_t timeout_ns) {
  const int64_t deadline = start_gate_now_ns() + timeout_ns;
  int ready = gate->rank == 0 ? 0 : gate->ranks;
  __atomic_store_n(&gate->words[2 + gate->rank], iteration, __ATOMIC_RELEASE);
  for (;;) {
    while (ready < gate->ranks && __atomic_load_n(&gate->words[2 + ready], __ATOMIC_ACQUIRE) >= iteration)
      ++ready;
    if (gate->rank == 0 && ready == gate->ranks) {
      __atomic_store_n(&gate->words[1], start_gate_now_ns() + kStartGateLeadNs, __ATOMIC_RELEASE);
      __atomic_store_n(&gate->words[0], iteration, __ATOMIC_RELEASE);
    }
    if (__atomic_load_n(&gate->words[0], __ATOMIC_ACQUIRE) >= iteration) {
      start_gate_sleep_until(__atomic_load_n(&gate->words[1], __ATOMIC_ACQUIRE));
      return 0;
    }
    if (start_gate_now_ns() > deadline) return ETIMEDOUT;
    start_gate_sleep_until(start_gate_now_ns() + kStartGatePollNs);
  }
}

/* Processor time that the whole machine has spent so far, in ticks: user, nice, system, irq, softirq; 0:
 * unreadable. */
static inline int64_t machine_busy_ticks(void) {
  long long user = 0, nice = 0, system = 0, idle, iowait, irq = 0, softirq = 0;
  FILE* file = fopen("/proc/stat", "re");
  int found;
  if (file == NULL) return 0;
  found = fscanf(file, "cpu %lld %lld %lld %lld %lld %lld %lld", &user, &nice, &system, &idle, &iowait, &irq,
                 &softirq);
  fclose(file);
  return found == 7 ? user + nice + system + irq + softirq : 0;
}

#endif /* NETSUM_TOOLS_MEASURE_START_GATE_H_ */
