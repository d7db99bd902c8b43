// One AF_XDP socket with its memory: frames to send and frames received, by rings shared with the kernel.
//
// The memory is cut into chunks of 4 KiB; some are for sending, the others for receiving, and none changes
// sides. All of it is allocated by open().
#ifndef NETSUM_SRC_NET_AF_XDP_RINGS_H_
#define NETSUM_SRC_NET_AF_XDP_RINGS_H_

#include <sys/mman.h>
#include <xdp/xsk.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum {

class XskRings {
 public:
  static constexpr uint32_t kChunkBytes = 4096;
  // The kernel keeps 256 bytes before each frame, and we some more, so that what follows 42 bytes of headers
  // begins a cache line.
  static constexpr uint32_t kKernelHeadroom = 256;
  static constexpr uint32_t kHeadroom = 22;
  static constexpr uint32_t kMaxFrame = kChunkBytes - kKernelHeadroom - kHeadroom;
  static constexpr uint32_t kQueue = 0;  // of the interface
  static constexpr uint32_t kSendFrames = 1024;
  static constexpr uint32_t kReceiveFrames = 2048;

  // Whether the process may open AF_XDP sockets. Errors: kPermissionDenied, kUnsupported.
  static Status probe();
  // Bound to kQueue of `interface`; zero-copy if its driver can. Errors: kPermissionDenied, kUnsupported,
  // kAddressInUse (the queue has a socket), kResourceExhausted (memory that may be locked).
  static Result<std::unique_ptr<XskRings>> open(const std::string& interface);
  ~XskRings();
  XskRings(const XskRings&) = delete;
  XskRings& operator=(const XskRings&) = delete;

  int fd() const { return xsk_socket__fd(socket_); }
  uint64_t overflowed() const;  // as PacketIo
  bool zero_copy() const { return zero_copy_; }
  // A flush() has found that the interface is gone. What was queued is lost.
  bool interface_lost() const { return interface_lost_; }

  // Room for the next frame to send (kMaxFrame bytes), or nullptr while all are on their way, or the ring has no room: Linux
  // before 6.17 gives a sent chunk back before the ring shows room for it.
  uint8_t* next_frame();
  // Queues that frame.
  void push(uint32_t size);
  // Makes the kernel take what is queued. Returns how many system calls that took.
  uint32_t flush();

  // Fills `frames` with the beginnings of the frames that have arrived and returns how many. They stay valid
  // until the next receive().
  size_t receive(std::span<const uint8_t*> frames);
  // Something has arrived that receive() has not returned.
  bool has_arrivals() { return xsk_cons_nb_avail(&arrived_, 1) > 0; }

 private:
  friend class XskRingsTest;  // has rings of its own, and does what the kernel does with them
  XskRings() = default;
  Status create(const std::string& interface);
  void reclaim_sent();
  void give_back_received();

  uint8_t* memory_ = static_cast<uint8_t*>(MAP_FAILED);
  xsk_umem* umem_ = nullptr;
  xsk_socket* socket_ = nullptr;
  xsk_ring_prod fill_{};     // to the kernel: chunks to receive into
  xsk_ring_cons arrived_{};  // from the kernel: received frames
  xsk_ring_prod send_{};     // to the kernel: frames to send
  xsk_ring_cons sent_{};     // from the kernel: frames that it has sent
  bool zero_copy_ = false;
  bool interface_lost_ = false;

  std::vector<uint64_t> free_;        // chunks to send from
  std::vector<uint64_t> handed_out_;  // chunks that the caller reads, or that the fill ring had no room for
  uint32_t queued_ = 0;               // frames pushed since the last flush()
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_AF_XDP_RINGS_H_
