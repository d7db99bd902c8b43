#include "tests/torch/accelerator/device.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace netsum::test_accelerator {
namespace {

constexpr size_t kArena = size_t{4} << 30;  // of addresses; pages take memory when they are written
constexpr int kPoolStreams = 6, kUserStreams = 4;
constexpr c10::StreamId kFirstUserStream = 100;

int64_t setting(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoll(text, nullptr, 10);
}

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Task {
  std::function<void()> run;
  MarkPtr waits_for, passes;
  bool delayed = false;
  size_t copied = 0;
  Direction direction = Direction::kNone;
};

struct StreamState {
  std::deque<Task> tasks;
  uint64_t submitted = 0, ended = 0;
  bool has_thread = false;
  Direction last = Direction::kNone;
  std::mt19937_64 random;
};

using Key = std::pair<c10::DeviceIndex, c10::StreamId>;
Key key(const c10::Stream& stream) {
  return {stream.device_index(), stream.id()};
}

struct Block {
  size_t size = 0;
  c10::Stream stream;
  std::vector<c10::Stream> recorded;
  std::vector<MarkPtr> waits_for;  // once it is free
};

// Never destroyed: the threads of streams run until the process ends.
struct Device {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Key, StreamState> streams;
  int next_pool = 0, next_user = 0;
  std::string fault;
  bool let_go = false;
  const pid_t process = getpid();
  static uint64_t seed() { return static_cast<uint64_t>(setting("NETSUM_ACCELERATOR_SEED", 1)); }
  const int64_t delay_us = setting("NETSUM_ACCELERATOR_DELAY_US", 0);
  int64_t bytes_per_s = setting("NETSUM_ACCELERATOR_BYTES_PER_S", 0);
  std::pair<size_t, size_t> copied;  // bytes to the host, and from it
  // When the last copy of each device and direction ends: streams share the bus.
  std::map<std::pair<c10::DeviceIndex, Direction>, std::chrono::steady_clock::time_point> bus_until;

  std::byte *hidden = nullptr, *used = nullptr;
  size_t arena_used = 0;
  std::map<const void*, Block> blocks;           // that tensors have
  std::vector<std::pair<void*, Block>> waiting;  // free, but perhaps still used by another stream
  std::map<std::pair<Key, size_t>, std::vector<void*>> free;

  Device() {
    const int file = memfd_create("netsum test accelerator", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kArena) == 0, "test accelerator: no memory file");
    const auto map = [file](int protection) {
      void* const at = mmap(nullptr, kArena, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
      TORCH_CHECK(at != MAP_FAILED, "test accelerator: the memory cannot be mapped");
      return static_cast<std::byte*>(at);
    };
    hidden = map(PROT_NONE);
    used = map(PROT_READ | PROT_WRITE);
    close(file);
  }

  void run(const c10::Stream& stream);
};

Device& device() {
  static Device* const only = new Device;
  TORCH_CHECK(only->process == getpid(),
              "test accelerator: cannot be used in a process that was forked after it was initialised");
  return *only;
}

void Device::run(const c10::Stream& stream) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::unique_lock lock(mutex);
  StreamState& state = streams[key(stream)];
  while (true) {
    changed.wait(lock, [&] { return !state.tasks.empty(); });
    Task task = std::move(state.tasks.front());
    state.tasks.pop_front();
    std::chrono::nanoseconds delay{0};
    if (task.delayed && delay_us > 0 && state.random() % 2 == 0)
      delay = std::chrono::microseconds(state.random() % static_cast<uint64_t>(delay_us));
    if (task.waits_for) changed.wait(lock, [&] { return task.waits_for->passed; });
    const bool runs = task.run && fault.empty();
    std::chrono::steady_clock::time_point ends;
    if (task.copied > 0 && bytes_per_s > 0) {
      auto& until = bus_until[{stream.device_index(), task.direction}];
      until = std::max(until, std::chrono::steady_clock::now()) +
              std::chrono::nanoseconds(static_cast<int64_t>(1e9 * static_cast<double>(task.copied) /
                                                            static_cast<double>(bytes_per_s)));
      ends = until;
    }
    lock.unlock();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    std::string error;
    if (runs) {
      try {
        task.run();
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
    }
    std::this_thread::sleep_until(ends);
    task.run = nullptr;  // outside of the lock: it may free memory
    lock.lock();
    if (!error.empty() && fault.empty()) fault = error;
    if (task.passes) {
      task.passes->passed = true;
      task.passes->passed_ns = now_ns();
    }
    ++state.ended;
    changed.notify_all();
  }
}

// With the lock.
void push(Device& device, const c10::Stream& stream, Task task) {
  StreamState& state = device.streams[key(stream)];
  if (!state.has_thread) {
    state.has_thread = true;
    state.random.seed(Device::seed() * 1000003 + static_cast<uint64_t>(stream.id()) * 31 +
                      static_cast<uint64_t>(stream.device_index()));
    std::thread([&device, stream] { device.run(stream); }).detach();
  }
  ++state.submitted;
  state.tasks.push_back(std::move(task));
  device.changed.notify_all();
}

// With the lock.
MarkPtr mark(Device& device, const c10::Stream& stream) {
  auto made = std::make_shared<Mark>(Mark{.stream = stream, .last = device.streams[key(stream)].last});
  push(device, stream, {.passes = made});
  return made;
}

thread_local c10::DeviceIndex t_device = 0;
thread_local std::array<c10::StreamId, kDevices> t_streams = {};
std::atomic<bool> g_capturing = false;

bool is_pool(const c10::Stream& stream) {
  return stream.id() > 0 && stream.id() < kFirstUserStream;
}

c10::Stream make_stream(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), id);
}

}  // namespace

c10::DeviceIndex current_device() {
  return t_device;
}

void set_current_device(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "test accelerator: there is no device ",
              static_cast<int>(index));
  t_device = index;
}

c10::Stream current_stream(c10::DeviceIndex index) {
  return make_stream(index, t_streams.at(static_cast<size_t>(index)));
}

void set_current_stream(const c10::Stream& stream) {
  t_streams.at(static_cast<size_t>(stream.device_index())) = stream.id();
}

c10::Stream default_stream(c10::DeviceIndex index) {
  return make_stream(index, 0);
}

c10::Stream pool_stream(c10::DeviceIndex index) {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  return make_stream(index, 1 + used.next_pool++ % kPoolStreams);
}

c10::Stream user_stream(c10::DeviceIndex index) {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  return make_stream(index, kFirstUserStream + used.next_user++ % kUserStreams);
}

void enqueue(const c10::Stream& stream, std::function<void()> task, Direction direction, size_t copied) {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  if (direction != Direction::kNone) used.streams[key(stream)].last = direction;
  (direction == Direction::kToHost ? used.copied.first : used.copied.second) += copied;
  push(used, stream, {.run = std::move(task), .delayed = true, .copied = copied, .direction = direction});
}

MarkPtr mark(const c10::Stream& stream) {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  return mark(used, stream);
}

void block(const MarkPtr& mark, const c10::Stream& stream) {
  const bool on_pool = is_pool(mark->stream);
  if (is_pool(stream) ? is_omitted(on_pool ? "pool waits for pool" : "pool waits for caller")
                      : on_pool && is_omitted("caller waits for pool"))
    return;
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  push(used, stream, {.waits_for = mark});
}

bool has_passed(const MarkPtr& mark) {
  const bool to_host = mark->last == Direction::kToHost, to_device = mark->last == Direction::kToDevice;
  const bool on_pool = is_pool(mark->stream);
  if (!on_pool ? is_omitted("host waits for caller")
               : (to_host && is_omitted("host waits for copies in")) ||
                     (to_device && is_omitted("host waits for copies out")))
    return true;
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  TORCH_CHECK(used.fault.empty(), "test accelerator: ", used.fault);
  return mark->passed;
}

void wait_for(const MarkPtr& mark) {
  Device& used = device();
  std::unique_lock lock(used.mutex);
  used.changed.wait(lock, [&] { return mark->passed; });
  TORCH_CHECK(used.fault.empty(), "test accelerator: ", used.fault);
}

void synchronize(const c10::Stream& stream) {
  wait_for(mark(stream));
}

void synchronize_device(c10::DeviceIndex index) {
  Device& used = device();
  std::unique_lock lock(used.mutex);
  std::vector<MarkPtr> marks;
  std::vector<Key> keys;
  for (const auto& [one, state] : used.streams)
    if (one.first == index && state.has_thread) keys.push_back(one);
  for (const auto& [on_device, id] : keys) marks.push_back(mark(used, make_stream(on_device, id)));
  for (const MarkPtr& one : marks) used.changed.wait(lock, [&] { return one->passed; });
  TORCH_CHECK(used.fault.empty(), "test accelerator: ", used.fault);
}

void set_fault(const std::string& what) {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  used.fault = what;
}

void check_fault() {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  TORCH_CHECK(used.fault.empty(), "test accelerator: ", used.fault);
}

void wait_until_let_go() {
  Device& used = device();
  std::unique_lock lock(used.mutex);
  used.changed.wait(lock, [&used] { return used.let_go; });
}

void let_go() {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  used.let_go = true;
  used.changed.notify_all();
}

void set_copy_rate(int64_t bytes_per_s) {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  used.bytes_per_s = bytes_per_s;
}

std::pair<size_t, size_t> copied_bytes() {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  return used.copied;
}

void set_capturing(bool capturing) {
  g_capturing = capturing;
}

bool is_capturing() {
  return g_capturing;
}

bool is_omitted(const char* synchronization) {
  const char* const omitted = std::getenv("NETSUM_ACCELERATOR_OMIT");
  return omitted != nullptr && std::strcmp(omitted, synchronization) == 0;
}

// --- Memory -----------------------------------------------------------------------------------------------------

namespace {

void poison(Device& device, const c10::Stream& stream, void* address, size_t size) {
  push(device, stream, {.run = [at = shadow(address), size] { std::memset(at, kPoison, size); }});
}

// With the lock.
void recycle(Device& device) {
  std::erase_if(device.waiting, [&device](auto& one) {
    auto& [address, block] = one;
    for (const MarkPtr& mark : block.waits_for)
      if (!mark->passed) return false;
    device.free[{key(block.stream), block.size}].push_back(address);
    return true;
  });
}

void release(void* address) {
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  auto found = used.blocks.extract(address);
  Block block = std::move(found.mapped());
  for (const c10::Stream& stream : block.recorded) block.waits_for.push_back(mark(used, stream));
  used.waiting.emplace_back(address, std::move(block));
  recycle(used);
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device on(kType, current_device());
    if (bytes == 0) return {nullptr, nullptr, &release, on};
    Device& used = device();
    const std::lock_guard lock(used.mutex);
    TORCH_CHECK(used.fault.empty(), "test accelerator: ", used.fault);
    recycle(used);
    const c10::Stream stream = current_stream(on.index());
    const size_t size = std::bit_ceil(std::max(bytes, size_t{512}));
    auto& free = used.free[{key(stream), size}];
    void* address = nullptr;
    if (!free.empty()) {
      address = free.back();  // the one that was freed last: whoever still writes to it is found
      free.pop_back();
    } else {
      TORCH_CHECK(used.arena_used + size <= kArena, "test accelerator: out of memory");
      address = used.hidden + used.arena_used;
      used.arena_used += size;
    }
    used.blocks.emplace(address, Block{.size = size, .stream = stream});
    poison(used, stream, address, size);
    return {address, address, &release, on};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    enqueue(current_stream(current_device()),
            [to = shadow(to), from = shadow(from), bytes] { std::memcpy(to, from, bytes); });
  }
};

std::mutex g_pinned_mutex;
std::map<const std::byte*, size_t>& pinned_blocks() {
  static auto* const blocks = new std::map<const std::byte*, size_t>;
  return *blocks;
}

std::condition_variable g_unpinning;
bool g_unpinning_held = false;
int g_waiting_to_unpin = 0;

void release_pinned(void* address) {
  std::unique_lock lock(g_pinned_mutex);
  ++g_waiting_to_unpin;
  g_unpinning.wait(lock, [] { return !g_unpinning_held; });
  --g_waiting_to_unpin;
  pinned_blocks().erase(static_cast<const std::byte*>(address));
  std::free(address);  // NOLINT(cppcoreguidelines-no-malloc)
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(setting("NETSUM_ACCELERATOR_PINNED", 1) != 0, "test accelerator: no memory can be pinned");
    constexpr size_t kPage = 4096;
    void* const address = std::aligned_alloc(kPage, (bytes + kPage) / kPage * kPage);
    TORCH_CHECK(address != nullptr, "test accelerator: no memory");
    const std::lock_guard lock(g_pinned_mutex);
    pinned_blocks()[static_cast<const std::byte*>(address)] = bytes;
    return {address, address, &release_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  // Tasks hold the tensors that they copy.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

}  // namespace

c10::Allocator* device_allocator() {
  static auto* const only = new DeviceAllocator;
  return only;
}

std::pair<size_t, size_t> allocated() {
  std::pair<size_t, size_t> bytes;
  {
    Device& used = device();
    const std::lock_guard lock(used.mutex);
    for (const auto& [address, block] : used.blocks) bytes.first += block.size;
  }
  const std::lock_guard lock(g_pinned_mutex);
  for (const auto& [address, size] : pinned_blocks()) bytes.second += size;
  return bytes;
}

void* shadow(const void* address) {
  if (address == nullptr) return nullptr;
  Device& used = device();
  const auto offset = static_cast<const std::byte*>(address) - used.hidden;
  TORCH_CHECK(offset >= 0 && static_cast<size_t>(offset) < kArena, "test accelerator: not its memory");
  return used.used + offset;
}

void record_stream(const c10::DataPtr& memory, const c10::Stream& stream) {
  if (is_pool(stream) && is_omitted("record_stream")) return;
  Device& used = device();
  const std::lock_guard lock(used.mutex);
  const auto found = used.blocks.find(memory.get_context());
  if (found == used.blocks.end() || found->second.stream == stream) return;
  found->second.recorded.push_back(stream);
}

at::HostAllocator* pinned_allocator() {
  static auto* const only = new PinnedAllocator;
  return only;
}

void hold_unpinning(bool held) {
  const std::lock_guard lock(g_pinned_mutex);
  g_unpinning_held = held;
  g_unpinning.notify_all();
}

int waiting_to_unpin() {
  const std::lock_guard lock(g_pinned_mutex);
  return g_waiting_to_unpin;
}

bool is_pinned(const void* address) {
  const std::lock_guard lock(g_pinned_mutex);
  auto& blocks = pinned_blocks();
  auto after = blocks.upper_bound(static_cast<const std::byte*>(address));
  if (after == blocks.begin()) return false;
  --after;
  return static_cast<const std::byte*>(address) < after->first + std::max(after->second, size_t{1});
}

}  // namespace netsum::test_accelerator
