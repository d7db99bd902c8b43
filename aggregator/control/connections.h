// Accepts the connections of the control service, no more than one host needs. gRPC 1.51 has no limit of its own.
#ifndef NETSUM_AGGREGATOR_CONTROL_CONNECTIONS_H_
#define NETSUM_AGGREGATOR_CONTROL_CONNECTIONS_H_

#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "src/control/channel.h"
#include "src/net/address.h"

namespace netsum {

class Connections {
 public:
  // Of one address, such as a host with many ranks in many jobs. Further ones are closed.
  static constexpr size_t kMostOfOnePeer = 1024;
  static constexpr size_t kMost = 16384;

  // Errors: kAddressInUse, kInvalidArgument (not an address of this host), kPermissionDenied (a port below
  // 1024).
  Status listen(const Address& address);
  uint16_t port() const { return port_; }
  // Passes connections on until stop(), on a thread of the caller.
  void accept_for(grpc::experimental::ExternalConnectionAcceptor& acceptor);
  void stop();
  // The connection from `peer` ends after so much silence of the other host, or longer if this was asked for before. A
  // host that runs answers for a process that is stopped, which only heartbeats detect. Any thread.
  void set_silence(const Address& peer, std::chrono::milliseconds silence);
  // At the begin.
  static constexpr std::chrono::milliseconds kSilence{kKeepaliveTimeMs + kKeepaliveTimeoutMs};

 private:
  // A connection that gRPC has now. It is open as long as its number stands for the same socket.
  struct Open {
    int fd = -1;
    ino_t socket = 0;
    uint16_t port = 0;  // of the peer
    std::chrono::milliseconds silence = kSilence;
    bool is_open() const;
  };

  bool has_room_for(const std::string& peer);
  void forget_closed(std::vector<Open>* connections);

  FileDescriptor listening_;
  FileDescriptor stop_;
  uint16_t port_ = 0;
  std::mutex mutex_;  // for what follows
  // By peer without port. Which are closed is found out when a limit is reached.
  std::map<std::string, std::vector<Open>> open_;
  size_t count_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_CONNECTIONS_H_
