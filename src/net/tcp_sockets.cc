#include "src/net/tcp_sockets.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "src/base/forked_children.h"

namespace netsum::forked_children {
namespace {

struct Entry {
  uint64_t id;
  Address what;  // of the peer; of family 0: the local port
};

// Never destroyed: processes also fork while they end.
struct Registry {
  std::mutex mutex;  // held while the process forks, so that the child's copy is consistent
  std::vector<Entry> entries;
  uint64_t next_id = 1;
};
Registry& registry() {
  static Registry* const the_registry = new Registry;
  return *the_registry;
}

Address socket_address(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (get(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return {};
  return Address::from_sockaddr(name);
}

bool is_registered(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) return false;
  const Address local = socket_address(fd, getsockname);
  if (!local.valid()) return false;
  const Address peer = socket_address(fd, getpeername);
  for (const Entry& entry : registry().entries) {
    if (entry.what.valid() ? peer == entry.what : local.port == entry.what.port) return true;
  }
  return false;
}

// Uses system calls only: the child of a process with threads must not allocate memory.
void replace_registered_sockets(int nothing) {
  const int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    for (int fd = 0; fd < static_cast<int>(kDescriptors); ++fd) {
      if (is_registered(fd)) replace(fd, nothing);
    }
    return;
  }
  alignas(dirent64) std::array<char, 4096> buffer;
  for (long bytes = 0; (bytes = syscall(SYS_getdents64, folder, buffer.data(), buffer.size())) > 0;) {
    for (long at = 0; at < bytes;) {
      const auto* entry = reinterpret_cast<const dirent64*>(&buffer[static_cast<size_t>(at)]);
      at += entry->d_reclen;
      int fd = 0;
      const char* digit = entry->d_name;
      for (; *digit >= '0' && *digit <= '9'; ++digit) fd = fd * 10 + (*digit - '0');
      if (digit != entry->d_name && *digit == '\0' && is_registered(fd)) replace(fd, nothing);
    }
  }
  close(folder);
}

void before_fork() {
  registry().mutex.lock();
}
void after_fork_in_parent() {
  registry().mutex.unlock();
}
void after_fork_in_child() {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (!registry().entries.empty()) replace_registered_sockets(nothing);
  if (nothing >= 0) close(nothing);
  registry().mutex.unlock();
}

void watch_forks() {
  [[maybe_unused]] static const int once =
      (registry(), pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child));
}

}  // namespace

TcpSockets::TcpSockets(const Address& what) {
  watch_forks();
  const std::lock_guard lock(registry().mutex);
  id_ = registry().next_id++;
  registry().entries.push_back({id_, what});
}

TcpSockets TcpSockets::connected_to(const Address& peer) {
  return peer.valid() ? TcpSockets(peer) : TcpSockets();
}

TcpSockets TcpSockets::with_local_port(uint16_t port) {
  Address what;
  what.port = port;
  return TcpSockets(what);
}

TcpSockets::TcpSockets(TcpSockets&& other) noexcept : id_(std::exchange(other.id_, 0)) {}

TcpSockets& TcpSockets::operator=(TcpSockets&& other) noexcept {
  std::swap(id_, other.id_);
  return *this;
}

TcpSockets::~TcpSockets() {
  if (id_ == 0) return;
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().entries, [&](const Entry& entry) { return entry.id == id_; });
}

}  // namespace netsum::forked_children
