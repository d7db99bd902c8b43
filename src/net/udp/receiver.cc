#include "src/net/udp/receiver.h"

#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace netsum {
namespace {

constexpr size_t kCacheLine = 64;
// A coalesced datagram is at most 64 KiB. The odd lines spread the beginnings of the buffers over the sets of
// the cache. Pages that are never written to are never backed by memory.
constexpr size_t kCoalescedBytes = 64 << 10;
constexpr size_t kCoalescedStride = kCoalescedBytes + 3 * kCacheLine;
constexpr size_t kCoalescedBuffers = 64;
constexpr size_t kPlainBuffers = 256;
// Errors left on the socket by ICMP messages are reported by recvmmsg instead of data; each is reported once.
constexpr int kErrorsPassedOver = 8;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The length of each packet in a coalesced datagram, or 0 if it is a single one.
uint32_t coalesced_segment(msghdr* header) {
  for (cmsghdr* control = CMSG_FIRSTHDR(header); control != nullptr; control = CMSG_NXTHDR(header, control)) {
    if (control->cmsg_level != IPPROTO_UDP || control->cmsg_type != UDP_GRO) continue;
    int segment = 0;
    std::memcpy(&segment, CMSG_DATA(control), sizeof segment);
    return segment > 0 ? static_cast<uint32_t>(segment) : 0;
  }
  return 0;
}

}  // namespace

UdpReceiver::UdpReceiver(bool gro, uint32_t max_packet, LocalAddresses* locals)
    : max_packet_(max_packet),
      locals_(locals),
      stride_(gro ? kCoalescedStride : round_up(max_packet, kCacheLine)) {
  const size_t count = gro ? kCoalescedBuffers : kPlainBuffers;
  const size_t capacity = gro ? kCoalescedBytes : max_packet;
  buffers_ = std::make_unique_for_overwrite<uint8_t[]>(count * stride_);
  headers_.resize(count);
  iovecs_.resize(count);
  names_.resize(count);
  controls_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    iovecs_[i] = {buffers_.get() + i * stride_, capacity};
    msghdr& header = headers_[i].msg_hdr;
    header.msg_iov = &iovecs_[i];
    header.msg_iovlen = 1;
    header.msg_name = &names_[i];
    header.msg_control = controls_[i].bytes.data();
    make_ready(&header);
  }
}

// For the kernel, which changes these of what it fills.
void UdpReceiver::make_ready(msghdr* header) {
  header->msg_namelen = sizeof(sockaddr_storage);
  header->msg_controllen = sizeof(Control);
  header->msg_flags = 0;
}

size_t UdpReceiver::receive(int fd, std::span<InPacket> burst, PacketIoCounters* counters) {
  size_t filled = take_leftovers(burst, counters);
  bool drained = false;
  while (!drained && filled < burst.size() && has_room()) {
    filled += read(fd, burst.size() - filled, burst.subspan(filled), counters, &drained);
  }
  return filled;
}

size_t UdpReceiver::take_leftovers(std::span<InPacket> burst, PacketIoCounters* counters) {
  // What the last call handed out is no longer in use, so without leftovers every buffer is free.
  if (!has_leftovers()) {
    for (size_t i = 0; i < arrived_; ++i) make_ready(&headers_[i].msg_hdr);
    arrived_ = current_ = 0;
  }
  return hand_out(burst, counters);
}

size_t UdpReceiver::read(int fd, size_t messages, std::span<InPacket> burst, PacketIoCounters* counters,
                         bool* drained) {
  *drained = !fetch(fd, messages, counters);
  return hand_out(burst, counters);
}

bool UdpReceiver::fetch(int fd, size_t wanted, PacketIoCounters* counters) {
  wanted = std::min(wanted, headers_.size() - arrived_);
  for (int errors = 0; errors <= kErrorsPassedOver; ++errors) {
    counters->receive_calls.add();
    const int got = recvmmsg(fd, &headers_[arrived_], wanted, MSG_DONTWAIT, nullptr);
    if (got >= 0) {
      arrived_ += got;
      return static_cast<size_t>(got) == wanted;
    }
    if (errno == EAGAIN) return false;
  }
  return false;
}

void UdpReceiver::begin_message() {
  mmsghdr& message = headers_[current_];
  const uint32_t coalesced = coalesced_segment(&message.msg_hdr);
  segment_ = coalesced != 0 ? coalesced : std::max<uint32_t>(message.msg_len, 1);
  offset_ = 0;
  from_ = Address::from_sockaddr(names_[current_]);
  local_ = locals_ == nullptr ? 0 : locals_->number_of(&message.msg_hdr);
}

size_t UdpReceiver::hand_out(std::span<InPacket> burst, PacketIoCounters* counters) {
  size_t filled = 0;
  while (filled < burst.size() && has_leftovers()) {
    if (segment_ == 0) begin_message();
    const mmsghdr& message = headers_[current_];
    const uint32_t size = std::min(segment_, message.msg_len - offset_);
    const bool whole = (message.msg_hdr.msg_flags & MSG_TRUNC) == 0 && size <= max_packet_;
    if (whole) {
      burst[filled++] = {buffers_.get() + current_ * stride_ + offset_, size, from_, local_};
      counters->packets_received.add();
      counters->bytes_received.add(size);
    } else {
      counters->truncated.add();
    }
    offset_ += size;
    if (offset_ >= message.msg_len) {
      ++current_;
      segment_ = 0;
    }
  }
  return filled;
}

}  // namespace netsum
