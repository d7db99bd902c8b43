#include "src/host/meeting.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "netsum/options.h"

namespace netsum {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSlice{50};  // a wait checks for an interruption this often
constexpr milliseconds kRetryPause{2};
constexpr char kGreeting = 'n';

Status unreachable(const std::string& what) {
  return Status(ErrorCode::kUnreachable, "shared memory among the ranks of this host: " + what + ": " +
                                             std::strerror(errno) +
                                             "; turn it off (shared_memory, NETSUM_SHARED_MEMORY=0)");
}

socklen_t abstract_address(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  // A first byte of zero selects the abstract name space.
  const size_t length = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// Waits until `events` are possible. nullopt: they are.
std::optional<Status> wait_for(const MeetingOptions& options, int socket, short events, const char* what) {
  while (true) {
    if (Status status = options.interrupted(); !status.ok()) return status;
    const auto left = std::chrono::duration_cast<milliseconds>(options.deadline - Clock::now());
    if (left.count() <= 0)
      return Status(ErrorCode::kTimeout, std::string("shared memory among the ranks of this host: ") + what);
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    if (poll(&entry, 1, static_cast<int>(std::min(left, kSlice).count())) > 0) return std::nullopt;
  }
}

// One byte, with room for a file descriptor.
struct FileMessage {
  FileMessage() = default;
  FileMessage(const FileMessage&) = delete;
  FileMessage& operator=(const FileMessage&) = delete;

  char greeting = kGreeting;
  iovec data{.iov_base = &greeting, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{.msg_name = nullptr,
                 .msg_namelen = 0,
                 .msg_iov = &data,
                 .msg_iovlen = 1,
                 .msg_control = control,
                 .msg_controllen = sizeof control,
                 .msg_flags = 0};
};

Status give(int socket, int file) {
  FileMessage outgoing;
  cmsghdr* header = CMSG_FIRSTHDR(&outgoing.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof file);
  // The buffer of a new socket has room for one byte.
  return sendmsg(socket, &outgoing.message, MSG_NOSIGNAL) == 1 ? Status()
                                                               : unreachable("cannot pass the memory on");
}

Result<FileDescriptor> take(int socket) {
  FileMessage incoming;
  const ssize_t size = recvmsg(socket, &incoming.message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = size == 1 ? CMSG_FIRSTHDR(&incoming.message) : nullptr;
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    if (size >= 0) errno = EPROTO;
    return unreachable("the rank that owns the memory did not pass it on");
  }
  int file = -1;
  std::memcpy(&file, CMSG_DATA(header), sizeof file);
  return FileDescriptor(file);
}

}  // namespace

Status hand_out(const MeetingOptions& options, int file, size_t others) {
  const FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = abstract_address(options.name, &address);
  if (!listener.valid() || bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), kMaxRanks) != 0) {
    return unreachable("cannot listen for the other ranks");
  }
  for (size_t served = 0; served < others;) {
    if (auto end = wait_for(options, listener.get(), POLLIN, "not all ranks of this host have fetched it"))
      return *end;
    const FileDescriptor peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer.valid() || !same_user(peer.get())) continue;  // not a rank of this job
    if (Status status = give(peer.get(), file); !status.ok()) return status;
    ++served;
  }
  return Status();
}

Result<FileDescriptor> receive(const MeetingOptions& options) {
  sockaddr_un address;
  const socklen_t length = abstract_address(options.name, &address);
  while (true) {
    const FileDescriptor peer(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!peer.valid()) return unreachable("no socket");
    if (connect(peer.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) {
      if (!same_user(peer.get()))
        return Status(ErrorCode::kPermissionDenied,
                      "shared memory among the ranks of this host: a process of another user offers it");
      if (auto end = wait_for(options, peer.get(), POLLIN, "it was not passed on")) return *end;
      return take(peer.get());
    }
    if (errno != ECONNREFUSED) return unreachable("cannot reach the rank that owns the memory");
    // It does not listen yet.
    if (Status status = options.interrupted(); !status.ok()) return status;
    if (Clock::now() >= options.deadline)
      return Status(
          ErrorCode::kTimeout,
          "shared memory among the ranks of this host: the first rank did not offer it in time; if it is on "
          "another host, whose name (NETSUM_HOST) or boot id is that of this one, give the hosts names that "
          "differ "
          "with NETSUM_HOST");
    std::this_thread::sleep_for(kRetryPause);
  }
}

}  // namespace netsum
