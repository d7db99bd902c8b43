#include "aggregator/control/connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace netsum {
namespace {

constexpr int kLongestSilenceS = 32'767;  // TCP_KEEPIDLE

Status cannot_listen(const Address& address, int error) {
  const std::string what = "cannot listen on " + address.to_string() + ": ";
  switch (error) {
    case EADDRINUSE:
      return {ErrorCode::kAddressInUse,
              what + "another process uses this port; is an aggregator running there?"};
    case EADDRNOTAVAIL:
      return {ErrorCode::kInvalidArgument, what + "this host has no such address"};
    case EACCES:
      return {ErrorCode::kPermissionDenied,
              what + std::strerror(error) + "; ports below 1024 need privileges"};
    default:
      return {ErrorCode::kInvalidArgument, what + std::strerror(error)};
  }
}

// Returns 0 or errno.
int open_at(const Address& address, FileDescriptor* listening) {
  sockaddr_storage storage{};
  const uint32_t length = address.to_sockaddr(&storage);
  FileDescriptor fd(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  // So that closing connections of an earlier process do not count as in use.
  const int on = 1, off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family == 6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0)
    return errno;
  *listening = std::move(fd);
  return 0;
}

// The kernel asks a silent host for an answer, and ends the connection if none comes. If data is on its way, it does not ask, but
// waits as long for an acknowledgement.
void end_after(int fd, std::chrono::milliseconds silence) {
  constexpr int kQuestions = 5;
  const auto seconds = static_cast<int>(std::min<int64_t>((silence.count() + 999) / 1000, kLongestSilenceS));
  const int on = 1;
  const int pause = std::max(1, seconds / (kQuestions + 2));
  const int idle = std::max(1, seconds - kQuestions * pause);
  const auto unacknowledged = static_cast<unsigned>(seconds) * 1000;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged, sizeof unacknowledged);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &pause, sizeof pause);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kQuestions, sizeof kQuestions);
}

std::string without_port(Address address) {
  address.port = 0;
  return address.to_string();
}

}  // namespace

bool Connections::Open::is_open() const {
  struct stat now {};
  return ::fstat(fd, &now) == 0 && now.st_ino == socket;
}

Status Connections::listen(const Address& address) {
  stop_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
  if (!stop_.valid()) return cannot_listen(address, errno);
  // A wildcard is that of both versions of IP, where the host has both.
  Address both = address;
  if (address.is_wildcard()) {
    both = Address();
    both.family = 6;
    both.port = address.port;
  }
  int error = open_at(both, &listening_);
  if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) error = open_at(address, &listening_);
  if (error != 0) return cannot_listen(address, error);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  ::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  port_ = Address::from_sockaddr(bound).port;
  return {};
}

void Connections::forget_closed(std::vector<Open>* connections) {
  count_ -= std::erase_if(*connections, [](const Open& connection) { return !connection.is_open(); });
}

bool Connections::has_room_for(const std::string& peer) {
  if (count_ >= kMost) {
    for (auto& [other, connections] : open_) forget_closed(&connections);
    std::erase_if(open_, [](const auto& entry) { return entry.second.empty(); });
  }
  const auto found = open_.find(peer);
  if (found != open_.end() && found->second.size() >= kMostOfOnePeer) forget_closed(&found->second);
  return count_ < kMost && (found == open_.end() || found->second.size() < kMostOfOnePeer);
}

void Connections::accept_for(grpc::experimental::ExternalConnectionAcceptor& acceptor) {
  pollfd ready[] = {{listening_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (true) {
    ready[0].events = POLLIN;
    ::poll(ready, 2, -1);
    if (ready[1].revents != 0) {
      listening_ = FileDescriptor();  // refuses those who come now
      return;
    }
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    const int fd = ::accept4(listening_.get(), reinterpret_cast<sockaddr*>(&from), &length,
                             SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      // Without file descriptors or memory, the connection stays in the queue.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        ::poll(&ready[1], 1, 100);
      continue;
    }
    const Address address = Address::from_sockaddr(from);
    const std::string peer = without_port(address);
    struct stat socket {};
    const std::lock_guard lock(mutex_);
    if (!has_room_for(peer) || ::fstat(fd, &socket) != 0) {
      ::close(fd);
      continue;
    }
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    end_after(fd, kSilence);
    open_[peer].push_back({.fd = fd, .socket = socket.st_ino, .port = address.port});
    ++count_;
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listening_.get();
    connection.fd = fd;
    acceptor.HandleNewConnection(&connection);
  }
}

void Connections::set_silence(const Address& peer, std::chrono::milliseconds silence) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(without_port(peer));
  if (found == open_.end()) return;
  for (Open& connection : found->second) {
    if (connection.port != peer.port || connection.silence >= silence || !connection.is_open()) continue;
    connection.silence = silence;
    end_after(connection.fd, silence);
  }
}

void Connections::stop() {
  const uint64_t one = 1;
  if (stop_.valid()) static_cast<void>(::write(stop_.get(), &one, sizeof one));
}

}  // namespace netsum
