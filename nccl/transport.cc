#include "nccl/transport.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nccl/device.h"
#include "nccl/log.h"

namespace netsum::nccl {
namespace {

constexpr size_t kLeastSlice = 64 << 10;  // smaller messages use one socket
constexpr uint32_t kMostSockets = 16;

uint32_t sockets_of_a_connection() {
  const std::string text = process_environment("NETSUM_NCCL_SOCKETS");
  const int number = text.empty() ? 2 : std::atoi(text.c_str());
  if (number >= 1 && number <= static_cast<int>(kMostSockets)) return static_cast<uint32_t>(number);
  warn("NETSUM_NCCL_SOCKETS=\"" + text + "\": must be a whole number from 1 to 16; using 2");
  return 2;
}

struct Pending {
  struct One {
    Socket socket;
    Hello hello;
    size_t left = sizeof(Hello);
  };
  std::vector<One> sockets;
};

}  // namespace

Connection::Connection(std::vector<Socket> sockets, bool sends)
    : sockets_(std::move(sockets)), sends_(sends), pieces_(sockets_.size()) {}

Request* Connection::take_request(void* data) {
  const auto free =
      std::find_if(requests_.begin(), requests_.end(), [](const Request& each) { return !each.in_use; });
  if (free == requests_.end()) return nullptr;
  *free = {.connection = this, .in_use = true, .data = static_cast<char*>(data)};
  return &*free;
}

Request* Connection::send(void* data, size_t bytes) {
  Request* const request = take_request(data);
  if (request == nullptr) return nullptr;
  request->bytes = bytes;
  request->pieces = 1;
  pieces_[0].push_back({reinterpret_cast<char*>(&request->bytes), sizeof(request->bytes), request});
  add_slices(request);
  return request;
}

Request* Connection::receive(void* data, size_t capacity) {
  Request* const request = take_request(data);
  if (request == nullptr) return nullptr;
  request->capacity = capacity;
  request->pieces = 1;  // the size
  unannounced_.push_back(request);
  return request;
}

// Divides the message between the sockets. Both ends compute the same slices from its size.
void Connection::add_slices(Request* request) {
  const size_t count = sockets_.size();
  const size_t slice = std::max<size_t>(kLeastSlice, (request->bytes / count + 63) / 64 * 64);
  size_t begin = 0;
  for (size_t s = 0; s < count && begin < request->bytes; ++s) {
    const size_t end = s + 1 == count ? request->bytes : std::min<size_t>(request->bytes, begin + slice);
    pieces_[s].push_back({request->data + begin, end - begin, request});
    ++request->pieces;
    begin = end;
  }
}

Io Connection::receive_header() {
  char* data = reinterpret_cast<char*>(&header_) + (sizeof(header_) - header_left_);
  if (const Io io = receive_some(sockets_[0].fd(), &data, &header_left_); io != Io::kDone) return io;
  header_left_ = sizeof(header_);
  Request* const request = unannounced_.front();
  if (header_ > request->capacity) {
    warn("a peer sent a message of " + std::to_string(header_) + " bytes to a receive of " +
         std::to_string(request->capacity));
    return Io::kClosed;
  }
  unannounced_.pop_front();
  request->bytes = header_;
  add_slices(request);
  --request->pieces;
  return Io::kDone;
}

Result Connection::fail() {
  if (failed_ == kSuccess) warn(std::string("a peer has closed its connection, or is lost"));
  failed_ = kRemoteError;
  return failed_;
}

Result Connection::move() {
  for (size_t s = 0; s < sockets_.size(); ++s) {
    while (true) {
      if (pieces_[s].empty()) {
        if (sends_ || s != 0 || unannounced_.empty()) break;
        const Io io = receive_header();
        if (io == Io::kClosed) return fail();
        if (io == Io::kAgain) break;
        continue;
      }
      Piece& piece = pieces_[s].front();
      const char* data = piece.data;
      const Io io = sends_ ? send_some(sockets_[s].fd(), &data, &piece.left)
                           : receive_some(sockets_[s].fd(), &piece.data, &piece.left);
      if (sends_) piece.data += data - piece.data;
      if (io == Io::kClosed) return fail();
      if (io == Io::kAgain) break;
      --piece.request->pieces;
      pieces_[s].pop_front();
    }
  }
  return kSuccess;
}

Result Connection::test(Request* request, bool* done, size_t* bytes) {
  *done = request->pieces == 0;
  if (!*done && failed_ != kSuccess) return failed_;
  if (!*done) {
    const Result result = move();
    *done = request->pieces == 0;
    if (result != kSuccess && !*done) return result;
  }
  if (*done) {
    *bytes = request->bytes;
    request->in_use = false;
  }
  return kSuccess;
}

std::unique_ptr<Listener> Listener::open(Handle* handle) {
  Handle own;
  Socket socket = listen_at(device().address, sockets_of_a_connection(), &own);
  if (!socket.valid()) return nullptr;
  std::unique_ptr<Listener> listener(new Listener(std::move(socket)));
  listener->handle_ = own;
  *handle = own;
  return listener;
}

std::unique_ptr<Connection> Listener::accept() {
  for (Socket socket = accept_next(socket_); socket.valid(); socket = accept_next(socket_))
    arriving_.push_back({std::move(socket), {}, sizeof(Hello)});
  for (size_t i = 0; i < arriving_.size();) {
    Arriving& one = arriving_[i];
    char* data = reinterpret_cast<char*>(&one.hello) + (sizeof(Hello) - one.left);
    const Io io = receive_some(one.socket.fd(), &data, &one.left);
    const bool stray =
        io == Io::kDone && (one.hello.magic != Handle::kMagic || one.hello.cookie != handle_.cookie ||
                            one.hello.count != handle_.sockets || one.hello.index >= one.hello.count);
    if (stray) warn("refused a connection that is not of this job");
    if (stray || io == Io::kClosed) {
      arriving_.erase(arriving_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return complete();
}

// The first connection of which all sockets are here.
std::unique_ptr<Connection> Listener::complete() {
  for (const Arriving& first : arriving_) {
    const uint64_t id = first.hello.connection;
    const auto belongs = [id](const Arriving& each) { return each.left == 0 && each.hello.connection == id; };
    if (static_cast<size_t>(std::count_if(arriving_.begin(), arriving_.end(), belongs)) != handle_.sockets)
      continue;
    std::vector<Socket> sockets(handle_.sockets);
    for (Arriving& each : arriving_) {
      if (belongs(each)) sockets[each.hello.index] = std::move(each.socket);
    }
    std::erase_if(arriving_, belongs);
    const bool all = std::all_of(sockets.begin(), sockets.end(), [](const Socket& s) { return s.valid(); });
    return all ? std::make_unique<Connection>(std::move(sockets), false) : nullptr;
  }
  return nullptr;
}

Result connect(Handle* handle, std::unique_ptr<Connection>* connection) {
  if (handle->magic != Handle::kMagic || handle->sockets < 1 || handle->sockets > kMostSockets) {
    warn("the peer's plug-in is not this version of netsum: install the same on every host");
    return kInvalidArgument;
  }
  auto* pending = static_cast<Pending*>(handle->pending);
  if (pending == nullptr) {
    pending = new Pending;
    handle->pending = pending;
    const uint64_t id = random_number();
    for (uint32_t s = 0; s < handle->sockets; ++s)
      pending->sockets.push_back(
          {start_connect(handle->address), {Handle::kMagic, handle->cookie, id, s, handle->sockets}});
  }
  Io worst = Io::kDone;
  for (Pending::One& one : pending->sockets) {
    Io io = one.socket.valid() ? connected(one.socket) : Io::kClosed;
    if (io == Io::kDone) {
      const char* data = reinterpret_cast<const char*>(&one.hello) + (sizeof(Hello) - one.left);
      io = send_some(one.socket.fd(), &data, &one.left);
    }
    if (io != Io::kDone) worst = worst == Io::kClosed ? worst : io;
  }
  if (worst == Io::kAgain) return kSuccess;
  const std::unique_ptr<Pending> owner(pending);
  handle->pending = nullptr;
  if (worst == Io::kClosed) {
    warn("cannot connect to " + to_text(handle->address) + ": " + std::strerror(errno));
    return kRemoteError;
  }
  std::vector<Socket> sockets;
  for (Pending::One& one : owner->sockets) sockets.push_back(std::move(one.socket));
  *connection = std::make_unique<Connection>(std::move(sockets), true);
  return kSuccess;
}

}  // namespace netsum::nccl
