// Messages between two processes, over several TCP sockets. A sender's messages arrive in the order in which they were
// sent. Nothing blocks, and there are no threads: NCCL's proxy thread polls each request by test(), which moves data.
//
// On the wire, each message is its size (8 bytes, little-endian) on the first socket, followed by the message, of which
// every socket carries a slice.
#ifndef NETSUM_NCCL_TRANSPORT_H_
#define NETSUM_NCCL_TRANSPORT_H_

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "nccl/abi.h"
#include "nccl/tcp.h"

namespace netsum::nccl {

class Connection;

struct Request {
  Connection* connection = nullptr;
  bool in_use = false;
  char* data = nullptr;
  size_t capacity = 0;  // of a receive
  uint64_t bytes = 0;   // of the message
  int pieces = 0;       // parts that are not finished
};

class Connection {
 public:
  Connection(std::vector<Socket> sockets, bool sends);

  // Start a message. Return nullptr if kMostRequests are outstanding.
  Request* send(void* data, size_t bytes);
  Request* receive(void* data, size_t capacity);
  // Moves data. Sets *done and, if so, *bytes, and frees the request.
  Result test(Request* request, bool* done, size_t* bytes);

 private:
  struct Piece {
    char* data;
    size_t left;
    Request* request;
  };

  Request* take_request(void* data);
  void add_slices(Request* request);
  Result move();
  Result fail();
  Io receive_header();

  const std::vector<Socket> sockets_;
  const bool sends_;
  std::vector<std::deque<Piece>> pieces_;  // of each socket
  std::deque<Request*> unannounced_;       // receives whose size has not arrived
  uint64_t header_ = 0;                    // of the first of them
  size_t header_left_ = sizeof(header_);
  std::array<Request, kMostRequests> requests_;
  Result failed_ = kSuccess;
};

class Listener {
 public:
  // Fills in the handle. nullptr, and a warning, on failure.
  static std::unique_ptr<Listener> open(Handle* handle);
  // The next connection of which all sockets have arrived, or nullptr.
  std::unique_ptr<Connection> accept();

 private:
  struct Arriving {
    Socket socket;
    Hello hello;
    size_t left;
  };

  explicit Listener(Socket socket) : socket_(std::move(socket)) {}
  std::unique_ptr<Connection> complete();

  Socket socket_;
  Handle handle_ = {};
  std::vector<Arriving> arriving_;
};

// Connects to the listener of the handle. Call it again until it has failed or sets *connection; the handle keeps the
// state meanwhile.
Result connect(Handle* handle, std::unique_ptr<Connection>* connection);

}  // namespace netsum::nccl

#endif  // NETSUM_NCCL_TRANSPORT_H_
