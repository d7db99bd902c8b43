#include "aggregator/control/listen.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace netsum {

Status check_listen(const Address& address) {
  sockaddr_storage storage{};
  const uint32_t length = address.to_sockaddr(&storage);
  const int fd = ::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return {ErrorCode::kInvalidArgument,
            "cannot listen on " + address.to_string() + ": " + std::strerror(errno)};
  // As gRPC does: closing connections of an earlier process must not count as in use.
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int error = 0;
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&storage), length) != 0 || ::listen(fd, 1) != 0)
    error = errno;
  ::close(fd);
  switch (error) {
    case 0:
      return {};
    case EADDRINUSE:
      return {ErrorCode::kAddressInUse,
              "cannot listen on " + address.to_string() +
                  ": another process uses this port; is an aggregator running there?"};
    case EADDRNOTAVAIL:
      return {ErrorCode::kInvalidArgument,
              "cannot listen on " + address.to_string() + ": this host has no such address"};
    case EACCES:
      return {ErrorCode::kPermissionDenied, "cannot listen on " + address.to_string() + ": " +
                                                std::strerror(error) + "; ports below 1024 need privileges"};
    default:
      return {ErrorCode::kInvalidArgument,
              "cannot listen on " + address.to_string() + ": " + std::strerror(error)};
  }
}

}  // namespace netsum
