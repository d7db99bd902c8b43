// The device: its memory, streams and events.
#ifndef NETSUM_TESTS_TORCH_ACCELERATOR_DEVICE_H_
#define NETSUM_TESTS_TORCH_ACCELERATOR_DEVICE_H_

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace netsum::test_accelerator {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

// What has come before a mark in its stream, as planted bugs tell synchronisations apart.
enum class Direction { kNone, kToHost, kToDevice };

// A place in a stream.
struct Mark {
  c10::Stream stream;
  Direction last = Direction::kNone;
  bool passed = false;  // guarded by the device's mutex
  int64_t passed_ns = 0;
};
using MarkPtr = std::shared_ptr<Mark>;

// --- Streams: a thread each, made at the first task. Tasks run in order, after a random delay.

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
void set_current_stream(const c10::Stream& stream);
c10::Stream default_stream(c10::DeviceIndex device);
// One of a few that callers share.
c10::Stream pool_stream(c10::DeviceIndex device);
// One of a few others, for the code under test to be told from its caller.
c10::Stream user_stream(c10::DeviceIndex device);

// `copied`: the bytes that cross the bus, which takes time if a rate is set.
void enqueue(const c10::Stream& stream, std::function<void()> task, Direction direction = Direction::kNone,
             size_t copied = 0);
MarkPtr mark(const c10::Stream& stream);
// The stream waits for the mark.
void block(const MarkPtr& mark, const c10::Stream& stream);
bool has_passed(const MarkPtr& mark);
void wait_for(const MarkPtr& mark);
// Throws the device's fault, if it has one.
void synchronize(const c10::Stream& stream);
void synchronize_device(c10::DeviceIndex device);

// All later uses of the device fail, as after an illegal access on a GPU.
void set_fault(const std::string& what);
void check_fault();
void wait_until_let_go();
void let_go();
// Of copies from the host, and of those to it; 0: as fast as they are.
void set_copy_rate(int64_t bytes_per_s);
// To the host, and from it, so far.
std::pair<size_t, size_t> copied_bytes();
void set_capturing(bool capturing);
bool is_capturing();

// Whether a synchronisation of this name is left out (NETSUM_ACCELERATOR_OMIT).
bool is_omitted(const char* synchronization);

// --- Memory: each page is mapped twice. Tensors have the addresses of pages that cannot be read or written; the streams'
// threads use the others. New blocks are filled with kPoison in the order of the stream that they are allocated on.

constexpr unsigned char kPoison = 0xA5;

c10::Allocator* device_allocator();
// Where the streams' threads find what has the address `address` in tensors.
void* shadow(const void* address);
// The block is not used again before all that is now in the stream has run.
void record_stream(const c10::DataPtr& memory, const c10::Stream& stream);

// Bytes that tensors have of the device's memory, and of pinned memory.
std::pair<size_t, size_t> allocated();

at::HostAllocator* pinned_allocator();
// While it is held, who frees pinned memory waits.
void hold_unpinning(bool held);
int waiting_to_unpin();
bool is_pinned(const void* address);

}  // namespace netsum::test_accelerator

#endif  // NETSUM_TESTS_TORCH_ACCELERATOR_DEVICE_H_
