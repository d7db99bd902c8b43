#include "src/net/af_xdp/rings.h"

#include <sys/socket.h>
#include <xdp/libxdp.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "src/base/assert.h"
#include "src/base/clock.h"
#include "src/base/file_descriptor.h"

// In newer kernels than the headers of Debian 12.
#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9
#endif

namespace netsum {
namespace {

constexpr size_t kMemoryBytes =
    size_t{XskRings::kSendFrames + XskRings::kReceiveFrames} * XskRings::kChunkBytes;
constexpr size_t kLongestBurst = 256;
constexpr uint32_t kKernelBudget = 32;  // frames that a call sends in copy mode: TX_BATCH_SIZE
constexpr int64_t kQueuePatienceUs = 5'000'000;
// In copy mode the kernel charges frames under way to the socket, each with some overhead.
constexpr int kSendBuffer = 8 << 20;

Status failure(const std::string& what, int error) {
  const std::string reason = what + ": " + std::strerror(error);
  switch (error) {
    case EPERM:
    case EACCES:
      return Status(ErrorCode::kPermissionDenied,
                    reason + "; AF_XDP needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW");
    case EBUSY:
      return Status(ErrorCode::kAddressInUse,
                    reason + ": queue 0 has an AF_XDP socket already, one at a time can have it");
    case ENOBUFS:
    case ENOMEM:
      return Status(ErrorCode::kResourceExhausted,
                    reason + "; it locks " + std::to_string(kMemoryBytes >> 20) +
                        " MiB of memory: raise the limit (ulimit -l), or give CAP_IPC_LOCK");
    default:
      return Status(ErrorCode::kUnsupported, reason + " (needs a kernel with CONFIG_XDP_SOCKETS)");
  }
}

uint64_t chunk_of(uint64_t address) {
  return address & ~uint64_t{XskRings::kChunkBytes - 1};
}

}  // namespace

Status XskRings::probe() {
  const FileDescriptor socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  return socket.valid() ? Status() : failure("cannot open an AF_XDP socket", errno);
}

Result<std::unique_ptr<XskRings>> XskRings::open(const std::string& interface) {
  std::unique_ptr<XskRings> rings(new XskRings);
  // The Status contains what libxdp would print.
  const libxdp_print_fn_t print_before = libxdp_set_print(nullptr);
  const Status status = rings->create(interface);
  libxdp_set_print(print_before);
  if (!status.ok()) return status;
  return rings;
}

Status XskRings::create(const std::string& interface) {
  void* memory =
      mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return failure("no memory for packets", errno);
  memory_ = static_cast<uint8_t*>(memory);

  const xsk_umem_config umem_config = {.fill_size = kReceiveFrames,
                                       .comp_size = kSendFrames,
                                       .frame_size = kChunkBytes,
                                       .frame_headroom = kHeadroom,
                                       .flags = 0};
  int error = -xsk_umem__create(&umem_, memory_, kMemoryBytes, &fill_, &sent_, &umem_config);
  if (error != 0) return failure("cannot share memory with the kernel for AF_XDP", error);
  xsk_socket_config config{};
  config.rx_size = kReceiveFrames;
  config.tx_size = kSendFrames;
  config.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
  config.bind_flags = XDP_USE_NEED_WAKEUP;  // zero-copy if possible, else copies
  // The kernel releases a closed socket's queue after close() has returned: on a busy machine more than a second later.
  const int64_t deadline_us = monotonic_us() + kQueuePatienceUs;
  do {
    error = -xsk_socket__create(&socket_, interface.c_str(), kQueue, umem_, &arrived_, &send_, &config);
    if (error == EBUSY) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (error == EBUSY && monotonic_us() < deadline_us);
  if (error != 0) return failure("cannot open an AF_XDP socket on " + interface, error);

  xdp_options options{};
  socklen_t size = sizeof options;
  zero_copy_ = getsockopt(fd(), SOL_XDP, XDP_OPTIONS, &options, &size) == 0 &&
               (options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
  // Both options only save system calls, so errors are ignored.
  const uint32_t budget = kSendFrames;
  setsockopt(fd(), SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof budget);
  setsockopt(fd(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBuffer, sizeof kSendBuffer);

  free_.reserve(kSendFrames);
  for (uint32_t i = 0; i < kSendFrames; ++i) free_.push_back(uint64_t{i} * kChunkBytes);
  handed_out_.reserve(kReceiveFrames);
  for (uint32_t i = 0; i < kReceiveFrames; ++i)
    handed_out_.push_back(uint64_t{kSendFrames + i} * kChunkBytes);
  give_back_received();
  return Status();
}

XskRings::~XskRings() {
  if (socket_ != nullptr) xsk_socket__delete(socket_);
  if (umem_ != nullptr) xsk_umem__delete(umem_);
  if (memory_ != MAP_FAILED) munmap(memory_, kMemoryBytes);
}

uint8_t* XskRings::next_frame() {
  if (free_.empty()) reclaim_sent();
  if (free_.empty() || xsk_prod_nb_free(&send_, 1) == 0) return nullptr;
  return memory_ + free_.back() + kHeadroom;
}

void XskRings::push(uint32_t size) {
  uint32_t index = 0;
  // next_frame() has found room.
  const uint32_t reserved = xsk_ring_prod__reserve(&send_, 1, &index);
  NETSUM_ASSERT(reserved == 1 && !free_.empty() && size <= kMaxFrame);
  *xsk_ring_prod__tx_desc(&send_, index) = {.addr = free_.back() + kHeadroom, .len = size, .options = 0};
  free_.pop_back();
  ++queued_;
}

uint32_t XskRings::flush() {
  if (queued_ == 0) return 0;
  xsk_ring_prod__submit(&send_, queued_);
  queued_ = 0;
  uint32_t calls = 0;
  uint32_t room = xsk_prod_nb_free(&send_, kSendFrames);
  // In copy mode each call sends up to the kernel's budget, and the rest stays in the ring for the next flush. Linux 6.1
  // updates the ring only when it is empty, so EAGAIN is the only sign that the budget, or the socket's send buffer, is
  // exhausted.
  const uint32_t calls_for_all = (kSendFrames - room) / kKernelBudget + 1;
  while (room < kSendFrames && xsk_ring_prod__needs_wakeup(&send_)) {
    ++calls;
    const ssize_t result = sendto(fd(), nullptr, 0, MSG_DONTWAIT, nullptr, 0);
    const bool more = result < 0 && errno == EAGAIN && calls < calls_for_all;
    if (result < 0 && errno == ENXIO) interface_lost_ = true;
    const uint32_t room_before = std::exchange(room, xsk_prod_nb_free(&send_, kSendFrames));
    if (zero_copy_ || (room == room_before && !more)) break;
  }
  return calls;
}

void XskRings::reclaim_sent() {
  uint32_t index = 0;
  const uint32_t count = xsk_ring_cons__peek(&sent_, kSendFrames, &index);
  for (uint32_t i = 0; i < count; ++i)
    free_.push_back(chunk_of(*xsk_ring_cons__comp_addr(&sent_, index + i)));
  if (count > 0) xsk_ring_cons__release(&sent_, count);
}

void XskRings::give_back_received() {
  if (handed_out_.empty()) return;
  uint32_t index = 0;
  // The ring is as long as there are chunks to receive into, but the kernel passes frames on before it shows that it has
  // taken their chunks from this ring.
  const auto wanted = static_cast<uint32_t>(handed_out_.size());
  const uint32_t count = std::min(wanted, xsk_prod_nb_free(&fill_, wanted));
  if (count == 0) return;
  const uint32_t reserved = xsk_ring_prod__reserve(&fill_, count, &index);
  NETSUM_ASSERT(reserved == count);
  for (uint32_t i = 0; i < count; ++i) *xsk_ring_prod__fill_addr(&fill_, index + i) = handed_out_[i];
  xsk_ring_prod__submit(&fill_, count);
  handed_out_.erase(handed_out_.begin(), handed_out_.begin() + count);
  // A driver in zero-copy mode that has run out of frames.
  if (xsk_ring_prod__needs_wakeup(&fill_)) recvfrom(fd(), nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
}

size_t XskRings::receive(std::span<const uint8_t*> frames) {
  give_back_received();
  uint32_t index = 0;
  const auto wanted = static_cast<uint32_t>(std::min(frames.size(), kLongestBurst));
  const uint32_t count = xsk_ring_cons__peek(&arrived_, wanted, &index);
  for (uint32_t i = 0; i < count; ++i) {
    const xdp_desc* frame = xsk_ring_cons__rx_desc(&arrived_, index + i);
    frames[i] = memory_ + frame->addr;
    handed_out_.push_back(chunk_of(frame->addr));
  }
  if (count > 0) xsk_ring_cons__release(&arrived_, count);
  return count;
}

uint64_t XskRings::overflowed() const {
  xdp_statistics statistics{};
  socklen_t size = sizeof statistics;
  getsockopt(fd(), SOL_XDP, XDP_STATISTICS, &statistics, &size);
  return statistics.rx_dropped + statistics.rx_ring_full;
}

}  // namespace netsum
