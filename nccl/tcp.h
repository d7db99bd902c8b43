// TCP sockets that do not block, and the handles by which peers find them.
#ifndef NETSUM_NCCL_TCP_H_
#define NETSUM_NCCL_TCP_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "nccl/abi.h"

namespace netsum::nccl {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

union SocketAddress {
  sockaddr any;
  sockaddr_in ipv4;
  sockaddr_in6 ipv6;
};

// What NCCL passes from the listening to the connecting process.
struct Handle {
  static constexpr uint64_t kMagic = 0x6d75737465'6e31ULL;

  uint64_t magic;
  uint64_t cookie;  // of the listening socket, so that a stray connection is recognised
  SocketAddress address;
  uint32_t sockets;  // of one connection
  void* pending;     // the connecting process's own; NULL in a new handle
};
static_assert(sizeof(Handle) <= kHandleBytes);

// The first bytes on each socket.
struct Hello {
  uint64_t magic;
  uint64_t cookie;
  uint64_t connection;  // random; equal on all sockets of a connection
  uint32_t index;       // of the socket, or the rank
  uint32_t count;
};

enum class Io { kDone, kAgain, kClosed };

// Moves up to `*left` bytes at *data, and advances both. kDone when nothing is left.
Io send_some(int fd, const char** data, size_t* left);
Io receive_some(int fd, char** data, size_t* left);

uint64_t random_number();
// Opens a listening socket at `address`, with a free port. Fills in the handle. Invalid, and a warning, on failure.
Socket listen_at(const std::string& address, uint32_t sockets, Handle* handle);
// The next connection, with its options; invalid if there is none.
Socket accept_next(const Socket& listener);
// Starts a connection. Invalid, and a warning, on failure.
Socket start_connect(const SocketAddress& address);
// Whether a connection that has been started exists: kAgain if it does not yet, kClosed if it failed.
Io connected(const Socket& socket);
std::string to_text(const SocketAddress& address);

}  // namespace netsum::nccl

#endif  // NETSUM_NCCL_TCP_H_
