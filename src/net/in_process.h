// Packets between a rank and the shard that it embeds: they stay in the memory of the process. Each end is a decorator of the
// PacketIo that carries its other packets, and also those for which a lane has no room.
#ifndef NETSUM_SRC_NET_IN_PROCESS_H_
#define NETSUM_SRC_NET_IN_PROCESS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "src/base/counter.h"
#include "src/net/address.h"
#include "src/net/packet_io.h"

namespace netsum {

// One direction of a link: a ring of packets from one thread to another.
class InProcessLane final : public Inbox {
 public:
  static constexpr size_t kPackets = 256;

  explicit InProcessLane(uint32_t max_packet);

  // Copies as many of the packets as there is room for, and returns their number. *wakes: the receiver sleeps, and it is on the
  // caller to wake it.
  size_t send(std::span<const OutPacket> packets, bool* wakes);

  // As PacketIo::receive(); the packets come from `from`.
  size_t receive(std::span<InPacket> burst, const Address& from);
  // By the receiver.
  bool has_packets() const override { return sent_.load(std::memory_order_acquire) != taken_; }
  bool fall_asleep() override;
  void wake_up() override { sleeps_.store(false, std::memory_order_relaxed); }

 private:
  uint8_t* frame(uint64_t number) { return frames_.get() + number % kPackets * max_packet_; }

  const uint32_t max_packet_;
  const std::unique_ptr<uint8_t[]> frames_;
  std::array<uint32_t, kPackets> sizes_{};
  alignas(64) std::atomic<uint64_t> sent_{0};      // packets since the beginning
  alignas(64) std::atomic<uint64_t> received_{0};  // those that the receiver does not need any more
  uint64_t taken_ = 0;                             // by the receiver
  alignas(64) std::atomic<bool> sleeps_{false};
};

struct InProcessLink {
  explicit InProcessLink(uint32_t max_packet) : to_hub(max_packet), to_member(max_packet) {}

  InProcessLane to_hub, to_member;
  Address hub, member;            // as they would see each other over `PacketIo`
  PacketIo* member_io = nullptr;  // to wake the member by
  // By the member's thread: the hub sleeps, and so many packets have come.
  std::function<void(size_t)> wake_hub;
};

// The end of the shard. Links come and go on the thread that uses the object.
class InProcessHub final : public PacketIo {
 public:
  explicit InProcessHub(std::unique_ptr<PacketIo> inner) : inner_(std::move(inner)) {}

  void attach(InProcessLink* link) { links_.push_back(link); }
  void detach(InProcessLink* link) { std::erase(links_, link); }

  void send(std::span<const OutPacket> burst) override;
  size_t receive(std::span<InPacket> burst) override;
  // As of a lane, of all of them. The thread waits for its sockets and for `wake_hub` by other means than wait().
  bool has_packets() const;
  bool fall_asleep();
  void wake_up();
  // Whether receive() leaves packets in the socket.
  void set_lanes_only(bool lanes_only) { lanes_only_ = lanes_only; }

  void wait(int64_t timeout_us) override { inner_->wait(timeout_us); }
  void wake() override { inner_->wake(); }
  Address local_address() const override { return inner_->local_address(); }
  const PacketIoCounters& counters() const override { return inner_->counters(); }  // without links
  uint64_t overflowed() const override { return inner_->overflowed(); }
  std::string_view description() const override { return inner_->description(); }

  // By links. Any thread.
  const Counter& packets_sent() const { return packets_sent_; }
  const Counter& bytes_sent() const { return bytes_sent_; }

 private:
  InProcessLink* link_to(const Address& member) const;

  const std::unique_ptr<PacketIo> inner_;
  std::vector<InProcessLink*> links_;
  bool lanes_only_ = false;
  Counter packets_sent_, bytes_sent_;
};

// The end of the rank.
class InProcessMember final : public PacketIo {
 public:
  // `detach` is called by the destructor; the hub has let go of the link when it returns.
  InProcessMember(std::unique_ptr<PacketIo> inner, std::unique_ptr<InProcessLink> link,
                  std::function<void()> detach)
      : inner_(std::move(inner)), link_(std::move(link)), detach_(std::move(detach)) {
    inner_->watch(&link_->to_member);
  }
  InProcessMember(const InProcessMember&) = delete;
  InProcessMember& operator=(const InProcessMember&) = delete;
  ~InProcessMember() override { detach_(); }

  void send(std::span<const OutPacket> burst) override;
  size_t receive(std::span<InPacket> burst) override;
  void wait(int64_t timeout_us) override { inner_->wait(timeout_us); }
  void wake() override { inner_->wake(); }
  Address local_address() const override { return inner_->local_address(); }
  const PacketIoCounters& counters() const override { return inner_->counters(); }  // without the link
  uint64_t overflowed() const override { return inner_->overflowed(); }
  std::string_view description() const override { return inner_->description(); }

 private:
  const std::unique_ptr<PacketIo> inner_;
  const std::unique_ptr<InProcessLink> link_;
  const std::function<void()> detach_;
  std::vector<OutPacket> to_others_, to_hub_;  // of one burst
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_IN_PROCESS_H_
