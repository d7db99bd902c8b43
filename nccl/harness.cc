#include "nccl/harness.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace netsum::nccl {
namespace {

constexpr int kLimitS = 60;
std::mutex log_mutex;
std::string logged;

template <typename Table>
NetApi common(Table* t) {
  NetApi api;
  api.devices = t->devices;
  api.accept = [t](void* listener, void** comm) { return t->accept(listener, comm, nullptr); };
  api.test = t->test;
  api.close_send = t->close_send;
  api.close_receive = t->close_receive;
  api.close_listen = t->close_listen;
  api.register_memory = t->register_memory;
  return api;
}

template <typename Table>
NetApi load_v11(Table* t) {
  NetApi api = common(t);
  auto* const context = new void*(nullptr);
  api.init = [t, context] { return t->init(context, 1, nullptr, log_line, nullptr); };
  api.listen = [t, context](void* handle, void** comm) { return t->listen(*context, 0, handle, comm); };
  api.connect = [t, context](void* handle, void** comm) {
    return t->connect(*context, 0, handle, comm, nullptr);
  };
  api.send = [t](void* comm, void* data, size_t bytes, void** request) {
    return t->send(comm, data, bytes, 7, nullptr, nullptr, request);
  };
  api.receive = [t](void* comm, void* data, size_t bytes, void** request) {
    int tag = 7;
    void* memory = nullptr;
    return t->receive(comm, 1, &data, &bytes, &tag, &memory, &memory, request);
  };
  return api;
}

NetApi load_v10(NetV10* t) {
  NetApi api = common(t);
  api.init = [t] { return t->init(log_line, nullptr); };
  api.listen = [t](void* handle, void** comm) { return t->listen(0, handle, comm); };
  api.connect = [t](void* handle, void** comm) { return t->connect(0, nullptr, handle, comm, nullptr); };
  api.send = [t](void* comm, void* data, size_t bytes, void** request) {
    return t->send(comm, data, bytes, 7, nullptr, nullptr, request);
  };
  api.receive = [t](void* comm, void* data, size_t bytes, void** request) {
    int tag = 7;
    void* memory = nullptr;
    return t->receive(comm, 1, &data, &bytes, &tag, &memory, &memory, request);
  };
  return api;
}

template <typename Size, typename Table>
NetApi load_v8(Table* t) {  // and 9
  NetApi api = common(t);
  api.init = [t] { return t->init(log_line); };
  api.listen = [t](void* handle, void** comm) { return t->listen(0, handle, comm); };
  api.connect = [t](void* handle, void** comm) { return t->connect(0, handle, comm, nullptr); };
  api.send = [t](void* comm, void* data, size_t bytes, void** request) {
    return t->send(comm, data, static_cast<Size>(bytes), 7, nullptr, request);
  };
  api.receive = [t](void* comm, void* data, size_t bytes, void** request) {
    int tag = 7;
    auto size = static_cast<Size>(bytes);
    void* memory = nullptr;
    return t->receive(comm, 1, &data, &size, &tag, &memory, request);
  };
  return api;
}

template <typename PartBytes>
Part<PartBytes> part(void* address, size_t bytes) {
  return {nullptr, address, static_cast<PartBytes>(bytes)};
}

template <typename Count, typename PartBytes, typename Table>
CollNetApi collectives(Table* t) {
  CollNetApi api;
  api.connect = t->calls.connect;
  api.reduce_support = t->calls.reduce_support;
  api.all_reduce = [t](void* comm, void* in, void* out, size_t count, int type, int op, void** request) {
    return t->calls.all_reduce(comm, in, out, static_cast<Count>(count), type, op, nullptr, nullptr, request);
  };
  api.all_gather = [t](void* comm, void* in, void* out, size_t per_rank, size_t offset, size_t bytes,
                       void** request) {
    Part<PartBytes> whole = part<PartBytes>(out, bytes);
    return t->calls.all_gather(comm, in, 1, &whole, per_rank, offset, bytes, nullptr, request);
  };
  api.reduce_scatter = [t](void* comm, void* in, void* out, size_t per_rank, size_t offset, size_t bytes,
                           int type, int op, void** request) {
    Part<PartBytes> whole = part<PartBytes>(in, bytes);
    return t->calls.reduce_scatter(comm, 1, &whole, out, per_rank, offset, bytes, type, op, nullptr, request);
  };
  api.test = t->calls.test;
  api.close = t->calls.close;
  api.close_listen = t->calls.close_listen;
  return api;
}

template <typename Count, typename PartBytes, typename Table>
CollNetApi load_old_coll_net(Table* t) {
  CollNetApi api = collectives<Count, PartBytes>(t);
  api.init = [t] { return t->init(log_line); };
  api.listen = [t](void* handle, void** comm) { return t->listen(0, handle, comm); };
  return api;
}

template <typename Table>
CollNetApi load_coll_net_v11(Table* t) {
  CollNetApi api = collectives<size_t, size_t>(t);
  auto* const context = new void*(nullptr);
  api.init = [t, context] { return t->init(context, 1, log_line); };
  api.listen = [t, context](void* handle, void** comm) { return t->listen(*context, 0, handle, comm); };
  return api;
}

}  // namespace

void log_line(int /*level*/, unsigned long /*flags*/, const char* /*file*/, int /*line*/, const char* format,
              ...) {
  std::array<char, 1024> text = {};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  const std::lock_guard lock(log_mutex);
  logged += std::string(text.data()) + "\n";
}

std::string log_text() {
  const std::lock_guard lock(log_mutex);
  return logged;
}

void* table(const std::string& name) {
  void* const library =
      dlopen(NETSUM_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);  // as NCCL does; it is beside the program
  void* const found = library != nullptr ? dlsym(library, name.c_str()) : nullptr;
  if (found == nullptr) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), dlerror());
    std::abort();
  }
  return found;
}

NetApi load_net(int version) {
  void* const found = table("ncclNetPlugin_v" + std::to_string(version));
  switch (version) {
    case 8:
      return load_v8<int>(static_cast<NetV8*>(found));
    case 9:
      return load_v8<size_t>(static_cast<NetV9*>(found));
    case 10:
      return load_v10(static_cast<NetV10*>(found));
    case 11:
      return load_v11(static_cast<NetV11<PropertiesV11>*>(found));
    default:
      return load_v11(static_cast<NetV11<PropertiesV12>*>(found));
  }
}

CollNetApi load_coll_net(int version) {
  void* const found = table("ncclCollNetPlugin_v" + std::to_string(version));
  switch (version) {
    case 8:
      return load_old_coll_net<int, uint32_t>(static_cast<CollNetV8*>(found));
    case 9:
    case 10:
      return load_old_coll_net<size_t, size_t>(static_cast<CollNetV9*>(found));
    case 11:
      return load_coll_net_v11(static_cast<CollNetV11<PropertiesV11>*>(found));
    default:
      return load_coll_net_v11(static_cast<CollNetV11<PropertiesV12>*>(found));
  }
}

void Board::meet(int which, int ranks) {
  ++counters[which];
  while (counters[which] < ranks) sched_yield();
}

Board& Board::open(const char* path) {
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  require(file >= 0 && ftruncate(file, sizeof(Board)) == 0, std::string("the file ") + path);
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  require(memory != MAP_FAILED, "its memory");
  close(file);
  return *static_cast<Board*>(memory);
}

void require(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "wrong: %s\nlogged:\n%s", what.c_str(), log_text().c_str());
  std::_Exit(1);
}

void* join_collective(const CollNetApi& api, Board& board, int rank, int ranks, int which) {
  require(api.init() == kSuccess, "init");
  void* listener = nullptr;
  require(api.listen(board.handles[which][rank], &listener) == kSuccess, "listen");
  board.meet(20 + 2 * which, ranks);
  std::vector<void*> handles;
  for (int r = 0; r < ranks; ++r) handles.push_back(board.handles[which][r]);
  void* comm = nullptr;
  require(api.connect(handles.data(), ranks, rank, listener, &comm) == kSuccess && comm != nullptr,
          "connect");
  require(api.close_listen(listener) == kSuccess, "close_listen");
  return comm;
}

std::vector<int> run_ranks(int ranks, const std::function<void(Board&, int rank)>& body) {
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const board = new (memory) Board{};
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kLimitS);
      body(*board, rank);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  munmap(memory, sizeof(Board));
  return ends;
}

Result finish(Result (*test)(void*, int*, int*), void* request, int* bytes, double limit_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (true) {
    int done = 0;
    const Result result = test(request, &done, bytes);
    if (result != kSuccess || done != 0) return result;
    require(std::chrono::steady_clock::now() < deadline, "a request did not end");
    sched_yield();
  }
}

}  // namespace netsum::nccl
