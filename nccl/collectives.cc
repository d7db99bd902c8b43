#include "nccl/collectives.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "nccl/device.h"
#include "nccl/log.h"
#include "src/rendezvous/join.h"

namespace netsum::nccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostOutstanding = 1024;
// NCCL has no deadlines: a rank may compute for any time before it enters a collective. Lost ranks are noticed anyway.
constexpr int64_t kTimeoutMs = int64_t{30} * 24 * 3600 * 1000;

struct TypeMap {
  netsum_dtype type;
  size_t bytes;
};

std::optional<TypeMap> map_type(int type) {
  switch (type) {
    case kInt32:
      return TypeMap{NETSUM_INT32, 4};
    case kInt64:
      return TypeMap{NETSUM_INT64, 8};
    case kFloat16:
      return TypeMap{NETSUM_FLOAT16, 2};
    case kBfloat16:
      return TypeMap{NETSUM_BFLOAT16, 2};
    case kFloat32:
      return TypeMap{NETSUM_FLOAT32, 4};
    default:
      return std::nullopt;
  }
}

std::optional<netsum_redop> map_operator(int op) {
  switch (op) {
    case kSum:
      return NETSUM_SUM;
    case kMax:
      return NETSUM_MAX;
    case kMin:
      return NETSUM_MIN;
    default:
      return std::nullopt;
  }
}

bool is_supported(const char* collective, int type, int op) {
  if (supports(type, op)) return true;
  warn(std::string(collective) + " of type " + std::to_string(type) + " by operator " + std::to_string(op) +
       ": reduceSupport() does not list it");
  return false;
}

// The bytes of a rank in a window, from the begin of the window.
struct Piece {
  size_t begin = 0;
  size_t bytes = 0;
};

Piece piece_of(const Window& window, size_t rank) {
  const size_t end = window.offset + window.bytes;
  const size_t first = std::clamp(rank * window.bytes_per_rank, window.offset, end);
  const size_t last = std::clamp((rank + 1) * window.bytes_per_rank, window.offset, end);
  return {first - window.offset, last - first};
}

// The ranks meet at rank 0, which has a connection to each of them.
class Star final : public Rendezvous {
 public:
  Star(int ranks, int rank, Clock::time_point deadline)
      : rank_(rank), size_(ranks), deadline_(deadline), peers_(static_cast<size_t>(ranks)) {}

  bool open(const Handle& root, const CollectiveListener& listener) {
    return rank_ == 0 ? accept_all(listener) : connect_to(root);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  bool broadcast(void* data, size_t bytes) override {
    if (rank_ != 0) return receive(peers_[0], data, bytes);
    for (size_t r = 1; r < peers_.size(); ++r) {
      if (!send(peers_[r], data, bytes)) return false;
    }
    return true;
  }

  bool gather(const void* mine, void* all, size_t bytes) override {
    auto* const out = static_cast<char*>(all);
    if (rank_ == 0) {
      std::memcpy(out, mine, bytes);
      for (size_t r = 1; r < peers_.size(); ++r) {
        if (!receive(peers_[r], out + r * bytes, bytes)) return false;
      }
    } else if (!send(peers_[0], mine, bytes)) {
      return false;
    }
    return broadcast(all, bytes * peers_.size());
  }

 private:
  bool wait_for(const Socket& socket, short events) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    if (left <= 0) return false;
    pollfd one = {.fd = socket.fd(), .events = events, .revents = 0};
    return poll(&one, 1, static_cast<int>(std::min<long>(left, 3'600'000))) >= 0;
  }

  bool send(const Socket& socket, const void* data, size_t bytes) const {
    const auto* next = static_cast<const char*>(data);
    while (true) {
      const Io io = send_some(socket.fd(), &next, &bytes);
      if (io != Io::kAgain) return io == Io::kDone;
      if (!wait_for(socket, POLLOUT)) return false;
    }
  }

  bool receive(const Socket& socket, void* data, size_t bytes) const {
    auto* next = static_cast<char*>(data);
    while (true) {
      const Io io = receive_some(socket.fd(), &next, &bytes);
      if (io != Io::kAgain) return io == Io::kDone;
      if (!wait_for(socket, POLLIN)) return false;
    }
  }

  bool accept_all(const CollectiveListener& listener) {
    for (int missing = size_ - 1; missing > 0;) {
      Socket socket = accept_next(listener.socket());
      if (!socket.valid()) {
        if (!wait_for(listener.socket(), POLLIN)) return false;
        continue;
      }
      Hello hello = {};
      const bool known = receive(socket, &hello, sizeof(hello)) && hello.magic == Handle::kMagic &&
                         hello.cookie == listener.cookie() && hello.index > 0 &&
                         hello.index < peers_.size() && !peers_[hello.index].valid();
      if (!known) continue;
      peers_[hello.index] = std::move(socket);
      --missing;
    }
    return true;
  }

  bool connect_to(const Handle& root) {
    Socket socket = start_connect(root.address);
    if (!socket.valid()) return false;
    while (true) {
      const Io io = connected(socket);
      if (io == Io::kClosed) return false;
      if (io == Io::kDone) break;
      if (!wait_for(socket, POLLOUT)) return false;
    }
    const Hello hello = {Handle::kMagic, root.cookie, 0, static_cast<uint32_t>(rank_), 1};
    peers_[0] = std::move(socket);
    return send(peers_[0], &hello, sizeof(hello));
  }

  const int rank_, size_;
  const Clock::time_point deadline_;
  std::vector<Socket> peers_;
};

}  // namespace

bool supports(int type, int op) {
  return map_type(type).has_value() && map_operator(op).has_value();
}

std::unique_ptr<CollectiveListener> CollectiveListener::open(Handle* handle) {
  Handle own;
  Socket socket = listen_at(device().address, 1, &own);
  if (!socket.valid()) return nullptr;
  *handle = own;
  return std::unique_ptr<CollectiveListener>(new CollectiveListener(std::move(socket), own.cookie));
}

std::unique_ptr<CollectiveComm> CollectiveComm::connect(const Handle& root, int ranks, int rank,
                                                        const CollectiveListener& listener) {
  if (root.magic != Handle::kMagic) {
    warn("the plug-in of rank 0 is not this version of netsum: install the same on every host");
    return nullptr;
  }
  const auto settings = Settings::read(process_environment);  // join() reports invalid ones to all ranks
  const auto limit = (settings.ok() ? settings->options() : CommunicatorOptions()).connect_timeout;
  Star star(ranks, rank, Clock::now() + 2 * limit);
  if (!star.open(root, listener)) {
    warn("CollNet is not used: the " + std::to_string(ranks) + " ranks did not all meet at " +
         to_text(root.address));
    return nullptr;
  }
  JoinOptions options;
  options.default_prefix = "nccl";
  options.timeout_ms = kTimeoutMs;
  options.on_warning = warn;
  const Joined joined = join(star, options);
  if (joined.comm == nullptr) {
    warn("CollNet is not used: " + joined.text);
    return nullptr;
  }
  inform("CollNet of " + std::to_string(ranks) + " ranks: " + joined.text);
  return std::unique_ptr<CollectiveComm>(new CollectiveComm(joined.comm));
}

CollectiveComm::~CollectiveComm() {
  const bool idle = requests_.empty();
  for (const CollectiveRequest& request : requests_) netsum_work_free(request.work);
  // A rank that still waits for a result may need this one's shard.
  if (idle && netsum_comm_status(comm_) == NETSUM_OK) netsum_barrier(comm_, 5000);
  netsum_comm_close(comm_);
}

Result CollectiveComm::started(const char* collective, int code, netsum_work* work, size_t bytes,
                               CollectiveRequest** request) {
  if (code != NETSUM_OK) {
    warn(std::string(collective) + ": " + netsum_last_error());
    return kInternalError;
  }
  requests_.push_back({this, collective, work, bytes, {}});
  requests_.back().self = std::prev(requests_.end());
  *request = &requests_.back();
  return kSuccess;
}

Result CollectiveComm::all_reduce(void* input, void* output, size_t count, int type, int op,
                                  CollectiveRequest** request) {
  static constexpr const char* kName = "all-reduce";
  *request = nullptr;
  if (!is_supported(kName, type, op)) return kInvalidUsage;
  if (requests_.size() >= kMostOutstanding) return kSuccess;
  const TypeMap mapped = *map_type(type);
  netsum_work* work = nullptr;
  const int code = netsum_all_reduce(comm_, input, output, count, mapped.type, *map_operator(op), 0, &work);
  return started(kName, code, work, count * mapped.bytes, request);
}

bool CollectiveComm::is_valid(const char* collective, const Window& window, size_t element_bytes) const {
  const auto ranks = static_cast<size_t>(netsum_comm_world_size(comm_));
  const bool good = window.bytes_per_rank % element_bytes == 0 && window.offset % element_bytes == 0 &&
                    window.bytes % element_bytes == 0 && window.offset <= ranks * window.bytes_per_rank &&
                    window.bytes <= ranks * window.bytes_per_rank - window.offset;
  if (!good)
    warn(std::string(collective) + ": " + std::to_string(window.bytes) + " bytes from " +
         std::to_string(window.offset) + " on are no elements of the " + std::to_string(ranks) + " times " +
         std::to_string(window.bytes_per_rank) + " bytes of the ranks");
  return good;
}

Result CollectiveComm::all_gather(const void* input, void* output, const Window& window,
                                  CollectiveRequest** request) {
  static constexpr const char* kName = "all-gather";
  *request = nullptr;
  if (!is_valid(kName, window, 1)) return kInvalidArgument;
  if (requests_.size() >= kMostOutstanding) return kSuccess;
  std::vector<netsum_buffer> parts(static_cast<size_t>(netsum_comm_world_size(comm_)));
  for (size_t r = 0; r < parts.size(); ++r) {
    const Piece piece = piece_of(window, r);
    parts[r].output = static_cast<char*>(output) + piece.begin;
    parts[r].bytes = piece.bytes;
  }
  parts[static_cast<size_t>(netsum_comm_rank(comm_))].input = input;
  netsum_work* work = nullptr;
  const int code = netsum_all_gather(comm_, parts.data(), parts.size(), 0, &work);
  return started(kName, code, work, window.bytes, request);
}

Result CollectiveComm::reduce_scatter(const void* input, void* output, const Window& window, int type, int op,
                                      CollectiveRequest** request) {
  static constexpr const char* kName = "reduce-scatter";
  *request = nullptr;
  if (!is_supported(kName, type, op)) return kInvalidUsage;
  const TypeMap mapped = *map_type(type);
  if (!is_valid(kName, window, mapped.bytes)) return kInvalidArgument;
  if (requests_.size() >= kMostOutstanding) return kSuccess;
  std::vector<netsum_tensor> parts(static_cast<size_t>(netsum_comm_world_size(comm_)));
  for (size_t r = 0; r < parts.size(); ++r) {
    const Piece piece = piece_of(window, r);
    parts[r].input = static_cast<const char*>(input) + piece.begin;
    parts[r].count = piece.bytes / mapped.bytes;
  }
  const auto own = static_cast<size_t>(netsum_comm_rank(comm_));
  parts[own].output = output;
  netsum_all_reduce_options options = {};
  options.struct_size = sizeof(options);
  options.type = mapped.type;
  options.op = *map_operator(op);
  netsum_work* work = nullptr;
  const int code = netsum_reduce_scatter(comm_, parts.data(), parts.size(), &options, &work);
  return started(kName, code, work, parts[own].count * mapped.bytes, request);
}

Result CollectiveComm::test(CollectiveRequest* request, bool* done, size_t* bytes) {
  (void)netsum_work_wait(request->work, 0);  // NCCL's thread polls, and so drives
  *done = netsum_work_done(request->work) != 0;
  if (!*done) return kSuccess;
  const int code = netsum_work_wait(request->work, -1);
  *bytes = request->bytes;
  if (code != NETSUM_OK)
    warn(std::string(request->collective) + ": " + netsum_code_name(code) + ": " + netsum_last_error());
  netsum_work_free(request->work);
  requests_.erase(request->self);
  if (code == NETSUM_OK) return kSuccess;
  return code == NETSUM_PEER_LOST || code == NETSUM_AGGREGATOR_LOST || code == NETSUM_ABORTED ? kRemoteError
                                                                                              : kSystemError;
}

}  // namespace netsum::nccl
