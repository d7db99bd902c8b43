// Collectives of NCCL's CollNet in the network, over the C ABI of netsum.
#ifndef NETSUM_NCCL_COLLECTIVES_H_
#define NETSUM_NCCL_COLLECTIVES_H_

#include <list>
#include <memory>

#include "nccl/abi.h"
#include "nccl/tcp.h"
#include "netsum/netsum.h"

namespace netsum::nccl {

class CollectiveListener {
 public:
  static std::unique_ptr<CollectiveListener> open(Handle* handle);
  const Socket& socket() const { return socket_; }
  uint64_t cookie() const { return cookie_; }

 private:
  CollectiveListener(Socket socket, uint64_t cookie) : socket_(std::move(socket)), cookie_(cookie) {}
  Socket socket_;
  uint64_t cookie_;
};

class CollectiveComm;

struct CollectiveRequest {
  CollectiveComm* comm;
  const char* collective;
  netsum_work* work;
  size_t bytes;
  std::list<CollectiveRequest>::iterator self;
};

// What an all-gather or a reduce-scatter treats at once: of a buffer with `bytes_per_rank` of each rank, one behind the other,
// the bytes from `offset` on. They may belong to several ranks, and to some of them partly or not at all.
struct Window {
  size_t bytes_per_rank = 0;
  size_t offset = 0;
  size_t bytes = 0;
};

// A group of ranks, one on each node. One thread at a time uses it.
class CollectiveComm {
 public:
  // Joins a job with all ranks, which meet at the handle of rank 0. Blocks up to twice NETSUM_CONNECT_TIMEOUT. Returns nullptr,
  // after a warning, if the ranks cannot sum by netsum; NCCL then uses its other algorithms.
  static std::unique_ptr<CollectiveComm> connect(const Handle& root, int ranks, int rank,
                                                 const CollectiveListener& listener);
  ~CollectiveComm();

  // These start a collective; *request is nullptr if too many are outstanding.
  Result all_reduce(void* input, void* output, size_t count, int type, int op, CollectiveRequest** request);
  // `input` has this rank's bytes of the window, `output` receives all of them.
  Result all_gather(const void* input, void* output, const Window& window, CollectiveRequest** request);
  // `input` has the bytes of the window, `output` receives this rank's of them, reduced.
  Result reduce_scatter(const void* input, void* output, const Window& window, int type, int op,
                        CollectiveRequest** request);
  Result test(CollectiveRequest* request, bool* done, size_t* bytes);

 private:
  explicit CollectiveComm(netsum_comm* comm) : comm_(comm) {}
  bool is_valid(const char* collective, const Window& window, size_t element_bytes) const;
  Result started(const char* collective, int code, netsum_work* work, size_t bytes,
                 CollectiveRequest** request);

  netsum_comm* const comm_;
  std::list<CollectiveRequest> requests_;
};

// Whether netsum computes the reduction.
bool supports(int type, int op);

}  // namespace netsum::nccl

#endif  // NETSUM_NCCL_COLLECTIVES_H_
