#include "src/net/in_process.h"

#include <algorithm>
#include <cstring>

namespace netsum {
namespace {

// Calls `send` for each run of packets that go the same way: to the link that `link_to` names, or null.
template <typename LinkTo, typename Send>
void for_each_run(std::span<const OutPacket> burst, LinkTo link_to, Send send) {
  while (!burst.empty()) {
    const Address& to = burst.front().to;
    auto* const link = link_to(to);
    size_t run = 1;
    while (run < burst.size() &&
           (burst[run].to == to || (link == nullptr && link_to(burst[run].to) == nullptr)))
      ++run;
    send(link, burst.first(run));
    burst = burst.subspan(run);
  }
}

// A run of packets of one link: the lane takes what it has room for, and `inner` the rest. Returns how many the lane took.
template <typename Wake>
size_t send_by(InProcessLane* lane, std::span<const OutPacket> run, PacketIo* inner, Wake wake) {
  bool wakes = false;
  const size_t passed = lane->send(run, &wakes);
  if (wakes) wake(passed);
  if (passed < run.size()) inner->send(run.subspan(passed));
  return passed;
}

}  // namespace

InProcessLane::InProcessLane(uint32_t max_packet)
    : max_packet_(max_packet),
      // Memory that no packet has been in takes no page.
      frames_(std::make_unique_for_overwrite<uint8_t[]>(kPackets * size_t{max_packet})) {}

size_t InProcessLane::send(std::span<const OutPacket> packets, bool* wakes) {
  const uint64_t sent = sent_.load(std::memory_order_relaxed);
  const size_t room = kPackets - static_cast<size_t>(sent - received_.load(std::memory_order_acquire));
  size_t count = 0;
  for (; count < std::min(room, packets.size()) && packets[count].size <= max_packet_; ++count) {
    const OutPacket& packet = packets[count];
    if (packet.size > 0) std::memcpy(frame(sent + count), packet.data, packet.size);
    sizes_[(sent + count) % kPackets] = packet.size;
  }
  // Both in one order with those of fall_asleep(): either this thread sees that the receiver sleeps, or that one the packets.
  sent_.store(sent + count, std::memory_order_seq_cst);
  *wakes = sleeps_.load(std::memory_order_seq_cst) && sleeps_.exchange(false, std::memory_order_seq_cst);
  return count;
}

size_t InProcessLane::receive(std::span<InPacket> burst, const Address& from) {
  received_.store(taken_, std::memory_order_release);
  const uint64_t sent = sent_.load(std::memory_order_acquire);
  const size_t count = std::min(burst.size(), static_cast<size_t>(sent - taken_));
  for (size_t i = 0; i < count; ++i, ++taken_)
    burst[i] = {.data = frame(taken_), .size = sizes_[taken_ % kPackets], .from = from, .in_memory = true};
  return count;
}

bool InProcessLane::fall_asleep() {
  sleeps_.store(true, std::memory_order_seq_cst);
  if (sent_.load(std::memory_order_seq_cst) == taken_) return true;
  wake_up();
  return false;
}

InProcessLink* InProcessHub::link_to(const Address& member) const {
  for (InProcessLink* link : links_)
    if (link->member == member) return link;
  return nullptr;
}

void InProcessHub::send(std::span<const OutPacket> burst) {
  if (links_.empty()) return inner_->send(burst);
  for_each_run(
      burst, [this](const Address& to) { return link_to(to); },
      [this](InProcessLink* link, std::span<const OutPacket> run) {
        if (link == nullptr) return inner_->send(run);
        const size_t passed =
            send_by(&link->to_member, run, inner_.get(), [link](size_t) { link->member_io->wake(); });
        uint64_t bytes = 0;
        for (const OutPacket& packet : run.first(passed)) bytes += packet.size;
        packets_sent_.add(passed);
        bytes_sent_.add(bytes);
      });
}

size_t InProcessHub::receive(std::span<InPacket> burst) {
  size_t count = 0;
  for (InProcessLink* link : links_) count += link->to_hub.receive(burst.subspan(count), link->member);
  return count < burst.size() && !lanes_only_ ? count + inner_->receive(burst.subspan(count)) : count;
}

bool InProcessHub::has_packets() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const InProcessLink* link) { return link->to_hub.has_packets(); });
}

bool InProcessHub::fall_asleep() {
  for (InProcessLink* link : links_) {
    if (link->to_hub.fall_asleep()) continue;
    wake_up();
    return false;
  }
  return true;
}

void InProcessHub::wake_up() {
  for (InProcessLink* link : links_) link->to_hub.wake_up();
}

void InProcessMember::send(std::span<const OutPacket> burst) {
  // To others first, and at once: what the hub gets may be served here.
  to_others_.clear();
  to_hub_.clear();
  for (const OutPacket& packet : burst) (packet.to == link_->hub ? to_hub_ : to_others_).push_back(packet);
  if (!to_others_.empty()) inner_->send(to_others_);
  if (!to_hub_.empty()) send_by(&link_->to_hub, to_hub_, inner_.get(), link_->wake_hub);
}

size_t InProcessMember::receive(std::span<InPacket> burst) {
  const size_t count = link_->to_member.receive(burst, link_->hub);
  return count < burst.size() ? count + inner_->receive(burst.subspan(count)) : count;
}

}  // namespace netsum
