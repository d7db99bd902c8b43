#include "src/base/processors.h"

#include <sched.h>

#include <cstring>
#include <string>

namespace netsum {

std::vector<int> usable_processors() {
  cpu_set_t usable;
  // Fails on machines with more than CPU_SETSIZE cores.
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return {0};
  std::vector<int> processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &usable)) processors.push_back(processor);
  }
  return processors;
}

Status pin_thread(pthread_t thread, int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  const int error = pthread_setaffinity_np(thread, sizeof one, &one);
  if (error == 0) return {};
  return {ErrorCode::kInvalidArgument,
          "cannot pin a thread to processor core " + std::to_string(processor) + ": " + std::strerror(error)};
}

}  // namespace netsum
