// Opening a UDP socket with the options that the data path needs.
#ifndef NETSUM_SRC_NET_UDP_SOCKET_H_
#define NETSUM_SRC_NET_UDP_SOCKET_H_

#include <unistd.h>

#include <utility>

#include "netsum/status.h"
#include "src/net/address.h"
#include "src/net/udp/udp_io.h"

namespace netsum {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct UdpSocket {
  FileDescriptor fd;
  Address local;     // with the port in fact bound
  bool gso = false;  // asked for, and the kernel has it
  bool gro = false;
};

// Errors: as open_udp().
Result<UdpSocket> open_udp_socket(const UdpIoOptions& options);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_UDP_SOCKET_H_
