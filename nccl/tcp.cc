#include "nccl/tcp.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "nccl/log.h"
#include "src/rendezvous/addresses.h"

namespace netsum::nccl {
namespace {

void set_option(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

// Small messages leave at once, and a peer whose host has died is noticed within half a minute.
void prepare(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

socklen_t size_of(const SocketAddress& address) {
  return address.any.sa_family == AF_INET ? sizeof(address.ipv4) : sizeof(address.ipv6);
}

bool parse(const std::string& text, SocketAddress* out) {
  std::memset(out, 0, sizeof(*out));
  if (inet_pton(AF_INET, text.c_str(), &out->ipv4.sin_addr) == 1) {
    out->ipv4.sin_family = AF_INET;
    return true;
  }
  if (inet_pton(AF_INET6, text.c_str(), &out->ipv6.sin6_addr) != 1) return false;
  out->ipv6.sin6_family = AF_INET6;
  return true;
}

Io outcome(ssize_t count) {
  if (count > 0) return Io::kDone;
  return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? Io::kAgain : Io::kClosed;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Io send_some(int fd, const char** data, size_t* left) {
  while (*left > 0) {
    const ssize_t count = ::send(fd, *data, *left, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (const Io io = outcome(count); io != Io::kDone) return io;
    *data += count;
    *left -= static_cast<size_t>(count);
  }
  return Io::kDone;
}

Io receive_some(int fd, char** data, size_t* left) {
  while (*left > 0) {
    const ssize_t count = ::recv(fd, *data, *left, MSG_DONTWAIT);
    if (const Io io = outcome(count); io != Io::kDone) return io;
    *data += count;
    *left -= static_cast<size_t>(count);
  }
  return Io::kDone;
}

uint64_t random_number() {
  uint64_t number = 0;
  if (getentropy(&number, sizeof(number)) != 0) number = static_cast<uint64_t>(getpid());
  return number;
}

Socket listen_at(const std::string& address, uint32_t sockets, Handle* handle) {
  std::memset(static_cast<void*>(handle), 0, sizeof(*handle));
  SocketAddress& local = handle->address;
  if (!parse(address, &local)) return {};
  Socket socket(::socket(local.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  socklen_t size = size_of(local);
  if (!socket.valid() || ::bind(socket.fd(), &local.any, size) != 0 ||
      ::listen(socket.fd(), SOMAXCONN) != 0 || getsockname(socket.fd(), &local.any, &size) != 0) {
    warn("cannot listen at " + address + ": " + std::strerror(errno) +
         "; NCCL_SOCKET_IFNAME selects the interface");
    return {};
  }
  handle->magic = Handle::kMagic;
  handle->cookie = random_number();
  handle->sockets = sockets;
  return socket;
}

Socket accept_next(const Socket& listener) {
  Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.valid()) prepare(socket.fd());
  return socket;
}

Socket start_connect(const SocketAddress& address) {
  Socket socket(::socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.valid()) prepare(socket.fd());
  if (!socket.valid() ||
      (::connect(socket.fd(), &address.any, size_of(address)) != 0 && errno != EINPROGRESS)) {
    warn("cannot connect to " + to_text(address) + ": " + std::strerror(errno));
    return {};
  }
  return socket;
}

Io connected(const Socket& socket) {
  pollfd poll_one = {.fd = socket.fd(), .events = POLLOUT, .revents = 0};
  if (poll(&poll_one, 1, 0) <= 0) return Io::kAgain;
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
    errno = error;
    return Io::kClosed;
  }
  return Io::kDone;
}

std::string to_text(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (address.any.sa_family == AF_INET) {
    inet_ntop(AF_INET, &address.ipv4.sin_addr, text.data(), text.size());
    return with_port(text.data(), ntohs(address.ipv4.sin_port));
  }
  inet_ntop(AF_INET6, &address.ipv6.sin6_addr, text.data(), text.size());
  return with_port(text.data(), ntohs(address.ipv6.sin6_port));
}

}  // namespace netsum::nccl
