// How many threads run the engine of the network.
#ifndef NETSUM_ENGINE_ENGINE_THREAD_COUNT_H_
#define NETSUM_ENGINE_ENGINE_THREAD_COUNT_H_

#include <cstddef>
#include <string>

namespace netsum {

struct EngineThreadCount {
  // What one thread sends and receives, in bits per second each: 7 to 10 Gbit/s were measured (docs/results.md).
  static constexpr double kRateOfOne = 8e9;

  struct Wanted {
    int asked = 1;           // CommunicatorOptions::engine_threads
    size_t stripes = 1;      // each is one thread's
    size_t cores = 1;        // that this process may use
    size_t ranks_here = 1;   // that share the cores and the link
    double link_bps = 0;     // 0: unknown
    bool one_queue = false;  // the packet I/O serves one thread
  };
  static EngineThreadCount choose(const Wanted& wanted);

  size_t count = 1;
  std::string note;  // for describe(); empty if one thread was asked for
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_ENGINE_THREAD_COUNT_H_
