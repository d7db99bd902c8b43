#include "src/net/udp/sender.h"

#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace netsum {
namespace {

constexpr size_t kMaxSegments = 64;            // UDP_MAX_SEGMENTS of the oldest kernels that have it
constexpr size_t kMaxSegmentedBytes = 65'507;  // the whole run is one IPv4 datagram until it is cut up

// What to do about a message that the kernel did not take.
enum class Refusal {
  kTryAgain,   // the error was not about this message
  kUnsegment,  // perhaps only the segmentation was refused
  kFull,       // no buffer: neither this message nor those after it
  kDrop,       // this message cannot be sent
};

Refusal judge(int error, bool segmented, bool tried_again) {
  switch (error) {
    case EINTR:
      return Refusal::kTryAgain;
    case EAGAIN:
      return Refusal::kFull;
    case EMSGSIZE:  // a segment is longer than the path's MTU
    case EINVAL:    // the same on older kernels
    case EIO:       // the device does not compute checksums
      return segmented ? Refusal::kUnsegment : Refusal::kDrop;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
      // May be an ICMP error that an earlier packet left on the socket, and that is gone once reported. If it
      // comes twice it is about this message.
      return tried_again ? Refusal::kDrop : Refusal::kTryAgain;
    default:
      return Refusal::kDrop;
  }
}

}  // namespace

size_t segment_run(std::span<const OutPacket> burst) {
  if (burst.empty()) return 0;
  const uint32_t size = burst[0].size;
  if (size == 0) return 1;
  const size_t limit = std::min({burst.size(), kMaxSegments, std::max<size_t>(1, kMaxSegmentedBytes / size)});
  const auto same_way = [&](const OutPacket& packet) {
    return packet.to == burst[0].to && packet.local == burst[0].local;
  };
  size_t count = 1;
  while (count < limit && burst[count].size == size && same_way(burst[count])) ++count;
  const bool shorter_tail =
      count < limit && burst[count].size > 0 && burst[count].size < size && same_way(burst[count]);
  return shorter_tail ? count + 1 : count;
}

size_t gather(std::span<const OutPacket> run, iovec* pieces) {
  size_t count = 0;
  const uint8_t* end = nullptr;  // of the last piece
  for (const OutPacket& packet : run) {
    if (count > 0 && packet.data == end) {
      pieces[count - 1].iov_len += packet.size;
    } else {
      pieces[count++] = {const_cast<uint8_t*>(packet.data), packet.size};
    }
    end = packet.data + packet.size;
  }
  return count;
}

void UdpSender::Batch::add(std::span<const OutPacket> run, LocalAddresses* locals) {
  const size_t index = messages++;
  packets[index] = run;
  msghdr& header = headers[index].msg_hdr;
  header = {};
  header.msg_namelen = run[0].to.to_sockaddr(&names[index]);
  header.msg_name = &names[index];
  header.msg_iov = &iovecs[pieces];
  header.msg_iovlen = gather(run, &iovecs[pieces]);
  pieces += header.msg_iovlen;
  const bool from_one_address = locals != nullptr && run[0].local != 0;
  if (run.size() == 1 && !from_one_address) return;

  uint8_t* const controls_begin = controls[index].bytes.data();
  size_t used = 0;
  if (run.size() > 1) {
    auto* control = reinterpret_cast<cmsghdr*>(controls_begin);
    control->cmsg_level = IPPROTO_UDP;
    control->cmsg_type = UDP_SEGMENT;
    control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const auto segment_size = static_cast<uint16_t>(run[0].size);
    std::memcpy(CMSG_DATA(control), &segment_size, sizeof segment_size);
    used += CMSG_SPACE(sizeof segment_size);
  }
  if (from_one_address)
    used += locals->write_source(run[0].local, reinterpret_cast<cmsghdr*>(controls_begin + used));
  header.msg_control = controls_begin;
  header.msg_controllen = used;
}

void UdpSender::send(std::span<const OutPacket> burst, PacketIoCounters* counters) {
  while (!burst.empty()) {
    batch_.clear();
    while (!burst.empty()) {
      const size_t run = gso_ ? segment_run(burst) : 1;
      if (!batch_.has_room(run)) break;
      batch_.add(burst.first(run), locals_);
      burst = burst.subspan(run);
    }
    if (!flush(&batch_, counters)) {
      counters->send_refused.add(burst.size());
      return;
    }
  }
}

bool UdpSender::flush(Batch* batch, PacketIoCounters* counters) {
  size_t next = 0;
  bool tried_again = false;
  while (next < batch->messages) {
    counters->send_calls.add();
    const int sent = sendmmsg(fd_, &batch->headers[next], batch->messages - next, MSG_DONTWAIT);
    if (sent > 0) {
      for (const size_t end = next + sent; next < end; ++next) {
        counters->packets_sent.add(batch->packets[next].size());
        counters->bytes_sent.add(batch->headers[next].msg_len);
      }
      tried_again = false;
      continue;
    }
    const std::span<const OutPacket> run = batch->packets[next];
    bool full = false;
    switch (judge(errno, run.size() > 1, tried_again)) {
      case Refusal::kTryAgain:
        tried_again = true;
        continue;
      case Refusal::kUnsegment:
        full = !send_unsegmented(run, counters);
        ++next;
        break;
      case Refusal::kFull:
        full = true;
        break;
      case Refusal::kDrop:
        counters->send_refused.add(run.size());
        ++next;
        break;
    }
    tried_again = false;
    if (!full) continue;
    for (; next < batch->messages; ++next) counters->send_refused.add(batch->packets[next].size());
    return false;
  }
  return true;
}

bool UdpSender::send_unsegmented(std::span<const OutPacket> run, PacketIoCounters* counters) {
  const uint64_t sent_before = counters->packets_sent.get();
  single_.clear();
  single_.add(run.first(1), locals_);
  if (!flush(&single_, counters)) {
    counters->send_refused.add(run.size() - 1);
    return false;
  }
  // The first, which has the length of a segment, was taken by itself: it is the segmentation that this route cannot do. A
  // shorter last one proves nothing, because the others may be too long for the route.
  if (counters->packets_sent.get() > sent_before) gso_ = false;
  single_.clear();
  for (size_t i = 1; i < run.size(); ++i) single_.add(run.subspan(i, 1), locals_);
  return flush(&single_, counters);
}

}  // namespace netsum
