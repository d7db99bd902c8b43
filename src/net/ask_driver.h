// Questions to the driver of a network interface (ethtool).
#ifndef NETSUM_SRC_NET_ASK_DRIVER_H_
#define NETSUM_SRC_NET_ASK_DRIVER_H_

#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <string>

#include "src/base/file_descriptor.h"

namespace netsum {

// `question`: a struct of linux/ethtool.h, which the answer is written to. Returns 0, or -1 and sets errno.
inline int ask_driver(const std::string& interface, void* question) {
  const FileDescriptor any_socket(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  interface.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  request.ifr_data = static_cast<char*>(question);
  return ioctl(any_socket.get(), SIOCETHTOOL, &request);
}

}  // namespace netsum

#endif  // NETSUM_SRC_NET_ASK_DRIVER_H_
