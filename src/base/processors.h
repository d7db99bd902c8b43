// The processor cores that this process may use.
#ifndef NETSUM_SRC_BASE_PROCESSORS_H_
#define NETSUM_SRC_BASE_PROCESSORS_H_

#include <pthread.h>

#include <vector>

#include "netsum/status.h"

namespace netsum {

// Numbers of the cores, ascending: those of the calling thread's affinity, which taskset, cpusets and containers set.
// Never empty.
std::vector<int> usable_processors();

// From now on `thread` runs on this core only. Errors: kInvalidArgument if it may not use the core.
Status pin_thread(pthread_t thread, int processor);

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_PROCESSORS_H_
