#include "src/net/udp/udp_io.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/net/udp/receiver.h"
#include "src/net/udp/sender.h"
#include "src/net/udp/socket.h"
#include "src/net/wake_event.h"

namespace netsum {
namespace {

enum class Feature { kOn, kOff, kMissing, kRefused };

// Fixed texts, because the answer can change on the data path, where nothing allocates.
std::string_view describe(Feature gso, bool gro) {
  switch (gso) {
    case Feature::kOn:
      return gro ? "udp (GSO, GRO)" : "udp (GSO, no GRO)";
    case Feature::kRefused:
      return gro ? "udp (GSO refused by the route, GRO)" : "udp (GSO refused by the route, no GRO)";
    case Feature::kMissing:
      return gro ? "udp (kernel has no GSO, GRO)" : "udp (kernel has no GSO, no GRO)";
    case Feature::kOff:
      return gro ? "udp (no GSO, GRO)" : "udp (no GSO, no GRO)";
  }
  return "udp";
}

Status no_epoll() {
  return Status(ErrorCode::kResourceExhausted,
                std::string("cannot watch sockets by epoll: ") + std::strerror(errno));
}

// Which of several sockets have something to read, in the order in which they will be.
class ReadySockets {
 public:
  // Error: kResourceExhausted.
  static Result<ReadySockets> open(const std::vector<int>& sockets) {
    FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
    bool watched = epoll.valid();
    for (size_t i = 0; i < sockets.size() && watched; ++i) {
      epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
      watched = epoll_ctl(epoll.get(), EPOLL_CTL_ADD, sockets[i], &event) == 0;
    }
    if (!watched) return no_epoll();
    return ReadySockets(std::move(epoll), sockets);
  }

  // Takes in those that have become readable. One system call.
  void look() {
    const int count = epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), 0);
    for (int i = 0; i < count; ++i) {
      const size_t socket = events_[static_cast<size_t>(i)].data.u64;
      if (std::exchange(is_in_line_[socket], true)) continue;
      line_[(head_ + count_++) % line_.size()] = socket;
    }
  }
  size_t count() const { return count_; }
  int front() const { return sockets_[line_[head_]]; }
  // The front one has been read: it goes to the end of the line, or, `drained`, out of it.
  void next(bool drained) {
    const size_t socket = line_[head_];
    head_ = (head_ + 1) % line_.size();
    is_in_line_[socket] = !drained;
    if (drained) {
      --count_;
    } else {
      line_[(head_ + count_ - 1) % line_.size()] = socket;
    }
  }
  // Readable while look() would find any.
  int descriptor() const { return epoll_.get(); }

 private:
  ReadySockets(FileDescriptor epoll, const std::vector<int>& sockets)
      : epoll_(std::move(epoll)),
        sockets_(sockets),
        events_(sockets.size()),
        line_(sockets.size()),
        is_in_line_(sockets.size()) {}

  FileDescriptor epoll_;
  std::vector<int> sockets_;
  std::vector<epoll_event> events_;
  std::vector<size_t> line_;  // a ring: `count_` of them from `head_` on
  std::vector<uint8_t> is_in_line_;
  size_t head_ = 0;
  size_t count_ = 0;
};

class UdpIo final : public PacketIo {
 public:
  // `ready` where there is more than one socket; `sockets`: the first sends.
  UdpIo(std::vector<UdpSocket> sockets, std::optional<ReadySockets> ready, WakeEvent event,
        const UdpIoOptions& options)
      : sockets_(std::move(sockets)),
        socket_(sockets_.front()),
        ready_(std::move(ready)),
        event_(std::move(event)),
        gso_asked_(options.gso),
        locals_(socket_.says_local ? std::make_unique<LocalAddresses>() : nullptr),
        sender_(socket_.fd.get(), socket_.gso, locals_.get()),
        receiver_(socket_.gro, options.max_packet, locals_.get()) {}

  void send(std::span<const OutPacket> burst) override { sender_.send(burst, &counters_); }

  size_t receive(std::span<InPacket> burst) override;

  void wait(int64_t timeout_us) override;

  void wake() override { event_.wake(); }
  void watch(Inbox* inbox) override { event_.watch(inbox); }

  Address local_address() const override { return socket_.local; }
  const PacketIoCounters& counters() const override { return counters_; }
  uint64_t overflowed() const override {
    uint64_t sum = 0;
    for (const UdpSocket& socket : sockets_) sum += netsum::overflowed(socket.fd.get());
    return sum;
  }

  std::string_view description() const override {
    if (!gso_asked_) return describe(Feature::kOff, socket_.gro);
    if (!socket_.gso) return describe(Feature::kMissing, socket_.gro);
    return describe(sender_.gso() ? Feature::kOn : Feature::kRefused, socket_.gro);
  }

 private:
  // Of each socket in turn while others wait. A message can be 64 packets that were coalesced.
  static constexpr size_t kMessagesPerTurn = 4;

  std::vector<UdpSocket> sockets_;
  const UdpSocket& socket_;
  std::optional<ReadySockets> ready_;
  WakeEvent event_;
  bool gso_asked_;
  PacketIoCounters counters_;
  const std::unique_ptr<LocalAddresses> locals_;  // null: the socket has one address
  UdpSender sender_;
  UdpReceiver receiver_;
};

size_t UdpIo::receive(std::span<InPacket> burst) {
  if (!ready_) return receiver_.receive(socket_.fd.get(), burst, &counters_);
  size_t filled = receiver_.take_leftovers(burst, &counters_);
  if (filled < burst.size()) ready_->look();
  size_t messages = kMessagesPerTurn;
  while (filled < burst.size() && ready_->count() > 0 && receiver_.has_room()) {
    bool drained = false;
    filled += receiver_.read(ready_->front(), messages, burst.subspan(filled), &counters_, &drained);
    ready_->next(drained);
    messages = ready_->count() > 1 ? kMessagesPerTurn : burst.size() - filled;
  }
  return filled;
}

void UdpIo::wait(int64_t timeout_us) {
  if (receiver_.has_leftovers() || (ready_ && ready_->count() > 0)) return;
  event_.wait({}, timeout_us);
}

}  // namespace

Result<std::unique_ptr<PacketIo>> open_udp(const UdpIoOptions& options) {
  Result<std::vector<UdpSocket>> opened = open_udp_queues(options);
  if (!opened.ok()) return opened.status();
  std::vector<UdpSocket> sockets = std::move(opened).value();
  if (options.multicast_groups.size() > UdpIoOptions::kMaxGroups) {
    return Status(ErrorCode::kInvalidArgument,
                  "UDP socket: " + std::to_string(options.multicast_groups.size()) +
                      " multicast groups are more than " + std::to_string(UdpIoOptions::kMaxGroups));
  }
  for (const MulticastMembership& membership : options.multicast_groups) {
    Result<UdpSocket> group = open_multicast_socket(membership, options);
    if (!group.ok()) return group.status();
    sockets.push_back(std::move(group).value());
  }
  std::optional<ReadySockets> ready;
  if (sockets.size() > 1) {
    std::vector<int> descriptors;
    descriptors.reserve(sockets.size());
    for (const UdpSocket& socket : sockets) descriptors.push_back(socket.fd.get());
    Result<ReadySockets> watched = ReadySockets::open(descriptors);
    if (!watched.ok()) return watched.status();
    ready = std::move(watched).value();
  }
  for (const UdpSocket& socket : sockets) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = socket.fd.get()}};
    if (options.epoll < 0 || epoll_ctl(options.epoll, EPOLL_CTL_ADD, socket.fd.get(), &event) == 0) continue;
    return no_epoll();
  }
  Result<WakeEvent> event = WakeEvent::open(options.spin);
  if (!event.ok()) return event.status();
  if (Status status = event->add(ready ? ready->descriptor() : sockets.front().fd.get()); !status.ok())
    return status;
  return std::unique_ptr<PacketIo>(
      std::make_unique<UdpIo>(std::move(sockets), std::move(ready), std::move(event).value(), options));
}

}  // namespace netsum
