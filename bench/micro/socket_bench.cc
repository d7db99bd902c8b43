// What the kernel takes to send packets over UDP on loopback, and to receive them: as netsum does it (sendmmsg with segmentation,
// recvmmsg with coalescing), and by what else the kernel offers. One thread sends a burst of 88 packets of 1456 bytes, the
// worker's burst, and receives it; to send includes to deliver. Times are per burst.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <liburing.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr size_t kPacket = 1456, kPackets = 88, kSegments = 44;
constexpr size_t kCoalesced = 64 << 10;
constexpr int kBufferBytes = 8 << 20;

struct Sockets {
  int to = -1, from = -1;  // connected to each other on loopback
  std::string problem;

  Sockets() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    from = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    to = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    if (bind(from, name, size) != 0 || getsockname(from, name, &size) != 0 || connect(to, name, size) != 0)
      problem = std::strerror(errno);
    setsockopt(from, SOL_SOCKET, SO_RCVBUFFORCE, &kBufferBytes, sizeof kBufferBytes);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  ~Sockets() {
    close(to);
    close(from);
  }

  void set(int fd, int level, int option, int value) {
    if (setsockopt(fd, level, option, &value, sizeof value) != 0) problem = std::strerror(errno);
  }
};

enum class Send { kEach, kMany, kSegmented, kOnePiece, kZeroCopy, kRing, kRingZeroCopy };
enum class Receive { kEach, kMany, kCoalesced, kBusyPoll, kRing };

// The messages of a burst.
class Sender {
 public:
  Sender(Sockets* sockets, Send how) : sockets_(*sockets), how_(how), bytes_(kPackets * kPacket) {
    const bool segmented = how != Send::kEach && how != Send::kMany;
    const size_t per_message = segmented ? kSegments : 1;
    // Apart, packets are pieces of their own.
    const bool one_piece = how != Send::kSegmented;
    messages_.resize(kPackets / per_message);
    pieces_.resize(kPackets);
    for (size_t i = 0; i < kPackets; ++i) pieces_[i] = {&bytes_[i * kPacket], kPacket};
    for (size_t m = 0; m < messages_.size(); ++m) {
      msghdr& header = messages_[m].msg_hdr;
      header.msg_iov = &pieces_[m * per_message];
      header.msg_iovlen = one_piece ? 1 : per_message;
      if (one_piece) header.msg_iov->iov_len = per_message * kPacket;
    }
    if (segmented) sockets_.set(sockets_.to, IPPROTO_UDP, UDP_SEGMENT, kPacket);
    if (how == Send::kZeroCopy) sockets_.set(sockets_.to, SOL_SOCKET, SO_ZEROCOPY, 1);
    if (uses_ring() && io_uring_queue_init(256, &ring_, 0) < 0) sockets_.problem = "no io_uring";
  }
  ~Sender() {
    if (uses_ring()) io_uring_queue_exit(&ring_);
  }

  void send() {
    const auto count = static_cast<unsigned>(messages_.size());
    if (how_ == Send::kEach) {
      for (mmsghdr& message : messages_) check(sendmsg(sockets_.to, &message.msg_hdr, MSG_DONTWAIT) > 0);
    } else if (!uses_ring()) {
      const int flags = MSG_DONTWAIT | (how_ == Send::kZeroCopy ? MSG_ZEROCOPY : 0);
      check(sendmmsg(sockets_.to, messages_.data(), count, flags) == static_cast<int>(count));
      if (how_ == Send::kZeroCopy) take_notifications();
    } else {
      for (mmsghdr& message : messages_) {
        io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
        if (how_ == Send::kRingZeroCopy)
          io_uring_prep_sendmsg_zc(entry, sockets_.to, &message.msg_hdr, 0);
        else
          io_uring_prep_sendmsg(entry, sockets_.to, &message.msg_hdr, 0);
      }
      check(io_uring_submit(&ring_) == static_cast<int>(count));
      take_completions(count);
    }
  }

 private:
  bool uses_ring() const { return how_ == Send::kRing || how_ == Send::kRingZeroCopy; }
  void check(bool sent) {
    if (!sent) sockets_.problem = std::string("cannot send: ") + std::strerror(errno);
  }
  void take_notifications() {
    std::array<uint8_t, 128> control;
    msghdr message{};
    for (;;) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      if (recvmsg(sockets_.to, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    }
  }
  // Of `count` messages: a result each and, with zero copy, a notification each.
  void take_completions(unsigned count) {
    for (unsigned left = count; left > 0;) {
      io_uring_cqe* completion = nullptr;
      if (io_uring_wait_cqe(&ring_, &completion) < 0) return check(false);
      if ((completion->flags & IORING_CQE_F_NOTIF) == 0 && completion->res < 0) {
        errno = -completion->res;
        check(false);
      }
      if ((completion->flags & IORING_CQE_F_MORE) == 0) --left;
      io_uring_cqe_seen(&ring_, completion);
    }
  }

  Sockets& sockets_;
  const Send how_;
  std::vector<uint8_t> bytes_;
  std::vector<iovec> pieces_;
  std::vector<mmsghdr> messages_;
  io_uring ring_{};
};

class Receiver {
 public:
  Receiver(Sockets* sockets, Receive how) : sockets_(*sockets), how_(how) {
    const bool coalesced = how != Receive::kEach && how != Receive::kMany;
    if (coalesced) sockets_.set(sockets_.from, IPPROTO_UDP, UDP_GRO, 1);
    if (how == Receive::kBusyPoll) sockets_.set(sockets_.from, SOL_SOCKET, SO_BUSY_POLL, 50);
    const size_t room = coalesced ? kCoalesced : kPacket;
    const size_t count = coalesced ? kPackets / kSegments : kPackets;
    bytes_.resize(count * room);
    pieces_.resize(count);
    messages_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      pieces_[i] = {&bytes_[i * room], room};
      messages_[i].msg_hdr.msg_iov = &pieces_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
    if (how == Receive::kRing && io_uring_queue_init(256, &ring_, 0) < 0) sockets_.problem = "no io_uring";
  }
  ~Receiver() {
    if (how_ == Receive::kRing) io_uring_queue_exit(&ring_);
  }

  // Everything that has come.
  void receive() {
    size_t left = kPackets * kPacket;
    while (left > 0 && sockets_.problem.empty()) {
      const size_t got = how_ == Receive::kEach ? one() : how_ == Receive::kRing ? by_ring() : many();
      if (got == 0) sockets_.problem = std::string("cannot receive: ") + std::strerror(errno);
      left -= std::min(left, got);
    }
  }

 private:
  size_t one() {
    const ssize_t got = recvmsg(sockets_.from, &messages_[0].msg_hdr, MSG_DONTWAIT);
    return got > 0 ? static_cast<size_t>(got) : 0;
  }
  size_t many() {
    const int got = recvmmsg(sockets_.from, messages_.data(), static_cast<unsigned>(messages_.size()),
                             MSG_DONTWAIT, nullptr);
    size_t bytes = 0;
    for (int i = 0; i < got; ++i) bytes += messages_[static_cast<size_t>(i)].msg_len;
    return bytes;
  }
  size_t by_ring() {
    for (mmsghdr& message : messages_)
      io_uring_prep_recvmsg(io_uring_get_sqe(&ring_), sockets_.from, &message.msg_hdr, MSG_DONTWAIT);
    const auto count = static_cast<unsigned>(messages_.size());
    if (io_uring_submit_and_wait(&ring_, count) < 0) return 0;
    size_t bytes = 0;
    for (unsigned i = 0; i < count; ++i) {
      io_uring_cqe* completion = nullptr;
      if (io_uring_wait_cqe(&ring_, &completion) < 0) return 0;
      if (completion->res > 0) bytes += static_cast<size_t>(completion->res);
      io_uring_cqe_seen(&ring_, completion);
    }
    return bytes;
  }

  Sockets& sockets_;
  const Receive how_;
  std::vector<uint8_t> bytes_;
  std::vector<iovec> pieces_;
  std::vector<mmsghdr> messages_;
  io_uring ring_{};
};

void burst(benchmark::State& state, Send send, Receive receive) {
  Sockets sockets;
  Sender sender(&sockets, send);
  Receiver receiver(&sockets, receive);
  for (auto _ : state) {
    sender.send();
    receiver.receive();
    if (!sockets.problem.empty()) {
      state.SkipWithError(sockets.problem.c_str());
      break;
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kPackets * kPacket));
}

BENCHMARK_CAPTURE(burst, a call for each packet, Send::kEach, Receive::kEach)->UseRealTime();
BENCHMARK_CAPTURE(burst, sendmmsg and recvmmsg, Send::kMany, Receive::kMany)->UseRealTime();
BENCHMARK_CAPTURE(burst, with segmentation, Send::kSegmented, Receive::kMany)->UseRealTime();
BENCHMARK_CAPTURE(burst, and coalescing, Send::kSegmented, Receive::kCoalesced)->UseRealTime();
BENCHMARK_CAPTURE(burst, and packets side by side, Send::kOnePiece, Receive::kCoalesced)->UseRealTime();
BENCHMARK_CAPTURE(burst, and SO_BUSY_POLL, Send::kOnePiece, Receive::kBusyPoll)->UseRealTime();
BENCHMARK_CAPTURE(burst, and MSG_ZEROCOPY, Send::kZeroCopy, Receive::kCoalesced)->UseRealTime();
BENCHMARK_CAPTURE(burst, sent by io_uring, Send::kRing, Receive::kCoalesced)->UseRealTime();
BENCHMARK_CAPTURE(burst, sent by io_uring without copy, Send::kRingZeroCopy, Receive::kCoalesced)
    ->UseRealTime();
BENCHMARK_CAPTURE(burst, sent and received by io_uring, Send::kRing, Receive::kRing)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
