// A virtual network: every host is connected by an up-link and a down-link to a core without limits. Links delay,
// reorder, lose, duplicate, corrupt and queue packets as their options and the seed determine.
#ifndef NETSUM_EMULATE_NETWORK_H_
#define NETSUM_EMULATE_NETWORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "emulate/clock.h"
#include "src/base/rng.h"
#include "src/net/packet_io.h"
#include "wire/packet.h"

namespace netsum::emulate {

struct LinkOptions {
  int64_t delay_us = 10;
  int64_t jitter_us = 0;  // added, uniform in [0, jitter_us]: more than the packets' spacing reorders them
  double loss = 0;        // probabilities per packet from here on
  double duplicate = 0;
  double corrupt = 0;        // one to three bits flip
  double truncate = 0;       // the tail is cut off
  double late = 0;           // takes longer, by late_us at most
  int64_t late_us = 0;       // uniform in [late_us / 2, late_us]
  double bytes_per_us = 0;   // bandwidth; 0: no limit
  uint32_t queue_bytes = 0;  // with a bandwidth: size of the queue; packets beyond it are dropped
  uint32_t mtu_bytes = 0;    // longer datagrams vanish; 0: no limit
};

struct NetworkCounters {
  uint64_t sent = 0;
  uint64_t delivered = 0;
  uint64_t lost = 0;     // by chance, by the filter, too long, or its destination is gone
  uint64_t cut_off = 0;  // by a partition
  uint64_t duplicated = 0;
  uint64_t corrupted = 0;  // or truncated
  uint64_t late = 0;
  uint64_t tail_dropped = 0;
};

class Network {
 public:
  using Receiver = std::function<void(const InPacket&)>;
  // Sees every packet before it leaves; false loses it.
  using Filter = std::function<bool(const Address& from, const OutPacket&)>;
  // Is called with the fate of every packet: "sent", "delivered", "lost", "cut off", "duplicated", "corrupted", "late",
  // "dropped by the queue".
  using Observer = std::function<void(const char* what, const Address& from, const OutPacket&)>;

  Network(VirtualClock* clock, uint64_t seed) : clock_(clock), rng_(seed) {}

  void attach(const Address& address, const LinkOptions& up, const LinkOptions& down, Receiver receiver);
  // From now on; queues stay as long as they are. Links of that host without a limit get one.
  void set_rate(const Address& address, double bytes_per_us);
  void detach(const Address& address) { hosts_.erase(address); }
  // From now on packets from and to `address` take the links of `host`, in its queues, while that is attached.
  void share_links(const Address& address, const Address& host) { shared_links_[address] = host; }
  void set_filter(Filter filter) { filter_ = std::move(filter); }
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  // From now on every link takes this much longer.
  void set_extra_delay(int64_t us) { extra_delay_us_ = us; }
  // Packets that enter the links of `address` before `until_us` leave them only then, in order, as if the host were
  // suspended.
  void hold(const Address& address, int64_t until_us);
  // Until then, packets that `address` sends (outbound), that are sent to it (inbound), or both, are lost. Packets in flight
  // still arrive.
  void cut_off(const Address& address, bool outbound, bool inbound, int64_t until_us);
  // Until then its links have this bandwidth in both directions and queue 20 000 bytes.
  void slow_down(const Address& address, double bytes_per_us, int64_t until_us);

  // Copies the bytes. A packet from or to an address that is not attached is lost.
  void send(const Address& from, const OutPacket& packet);

  const NetworkCounters& counters() const { return counters_; }
  // Of all packets sent and delivered: headers (with the check of the payload), addresses and times. Equal
  // runs have equal hashes.
  uint64_t trace_hash() const { return trace_hash_; }

 private:
  struct Link {
    LinkOptions options;
    double free_at_us = 0;  // when the last queued byte has left
    int64_t held_until_us = 0;
    int64_t cut_until_us = 0;
    int64_t slow_until_us = 0;
    double slow_bytes_per_us = 0;
  };
  struct Host {
    Link up;
    Link down;
    Receiver receiver;
  };
  struct Packet {
    Address from;
    Address to;
    std::vector<uint8_t> bytes;
  };

  struct HashOfAddress {
    size_t operator()(const Address& address) const {
      return static_cast<size_t>(netsum_mix64(netsum_load64(address.ip.data()) ^
                                              netsum_load64(address.ip.data() + 8) << 1 ^
                                              uint64_t{address.scope} << 16 ^ address.port));
    }
  };

  // Whose links `address` uses; nullptr: nobody is attached there.
  Host* links_of(const Address& address);
  // The time at which a packet that enters now arrives; -1: dropped.
  int64_t pass(Link* link, const Packet& packet);
  void damage(const LinkOptions& options, Packet* packet);
  void enter_up_link(Link* link, std::shared_ptr<Packet> packet);
  void enter_down_link(const std::shared_ptr<Packet>& packet);
  void deliver(const Packet& packet);
  void tell(const char* what, const Packet& packet) const;
  void trace(uint64_t what, const Address& from, const Address& to, const uint8_t* data, size_t size);

  VirtualClock* clock_;
  Rng rng_;
  std::unordered_map<Address, Host, HashOfAddress> hosts_;
  std::unordered_map<Address, Address, HashOfAddress>
      shared_links_;  // of addresses without links of their own
  Filter filter_;
  Observer observer_;
  NetworkCounters counters_;
  uint64_t trace_hash_ = 0;
  int64_t extra_delay_us_ = 0;
};

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_NETWORK_H_
