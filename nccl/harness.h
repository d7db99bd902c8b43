// Calls the plug-in as NCCL does: loaded by dlopen(), through the tables of one version, with a process for each rank.
#ifndef NETSUM_NCCL_HARNESS_H_
#define NETSUM_NCCL_HARNESS_H_

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "nccl/abi.h"

namespace netsum::nccl {

inline constexpr std::array<int, 5> kVersions = {8, 9, 10, 11, 12};

// The functions of a version, with the arguments that all versions have.
struct NetApi {
  std::function<Result()> init;
  std::function<Result(int*)> devices;
  std::function<Result(void*, void**)> listen;   // handle
  std::function<Result(void*, void**)> connect;  // handle
  std::function<Result(void*, void**)> accept;
  std::function<Result(void*, void*, size_t, void**)> send;
  std::function<Result(void*, void*, size_t, void**)> receive;
  Result (*test)(void*, int*, int*) = nullptr;
  Result (*close_send)(void*) = nullptr;
  Result (*close_receive)(void*) = nullptr;
  Result (*close_listen)(void*) = nullptr;
  Result (*register_memory)(void*, void*, size_t, int, void**) = nullptr;
};
struct CollNetApi {
  std::function<Result()> init;
  std::function<Result(void*, void**)> listen;
  Result (*connect)(void**, int, int, void*, void**) = nullptr;
  Result (*reduce_support)(int, int, int*) = nullptr;
  std::function<Result(void*, void*, void*, size_t, int, int, void**)> all_reduce;
  // Comm, input, output, bytes per rank, window's offset and bytes.
  std::function<Result(void*, void*, void*, size_t, size_t, size_t, void**)> all_gather;
  std::function<Result(void*, void*, void*, size_t, size_t, size_t, int, int, void**)> reduce_scatter;
  Result (*test)(void*, int*, int*) = nullptr;
  Result (*close)(void*) = nullptr;
  Result (*close_listen)(void*) = nullptr;
};
NetApi load_net(int version);
CollNetApi load_coll_net(int version);
// The address of an exported table; fails the process if there is none.
void* table(const std::string& name);
// What the plug-in has logged in this process.
std::string log_text();
void log_line(int level, unsigned long flags, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));

// Memory that all ranks share, where NCCL has its bootstrap.
struct Board {
  static constexpr int kMostRanks = 8, kMostHandles = 8;
  alignas(8) char handles[kMostHandles][kMostRanks][kHandleBytes];
  std::atomic<int> counters[64];
  // Waits until `ranks` have come here, for the counter `which`.
  void meet(int which, int ranks);
  // That of ranks which are no children of one process, in a file that is empty at first.
  static Board& open(const char* path);
};

// Runs `body` for each rank in a process of its own. Returns what each of them ended with: 0 if all its checks
// succeeded, -SIGNAL if a signal ended it. A process that takes more than a minute is killed.
std::vector<int> run_ranks(int ranks, const std::function<void(Board&, int rank)>& body);
// Ends this rank's process with a message unless `good`.
void require(bool good, const std::string& what);

// Makes the CollNet of all ranks as NCCL does. `which`: different for each that the ranks of a board make.
void* join_collective(const CollNetApi& api, Board& board, int rank, int ranks, int which = 0);

// Polls the request as NCCL's proxy thread does, until it is done or fails; `limit_s` bounds a hang.
Result finish(Result (*test)(void*, int*, int*), void* request, int* bytes, double limit_s = 30);

}  // namespace netsum::nccl

#endif  // NETSUM_NCCL_HARNESS_H_
