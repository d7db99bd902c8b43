// Sends and receives bursts of packets, with one virtual call per burst. Implementations: udp/ (sockets), af_xdp/ (rings);
// decorator: lossy.h. The simulator drives the same protocol cores with its own network.
//
// Thread rule: one thread at a time uses an object, except wake(), counters() and overflowed(), which any thread may
// call.
#ifndef NETSUM_SRC_NET_PACKET_IO_H_
#define NETSUM_SRC_NET_PACKET_IO_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "src/base/assert.h"
#include "src/base/counter.h"
#include "src/net/address.h"

namespace netsum {

// A datagram to send. The bytes are read during send() only.
struct OutPacket {
  const uint8_t* data = nullptr;
  uint32_t size = 0;
  Address to;
  uint16_t local = 0;  // the local address to send from: that of an InPacket, or 0: the system chooses
};

// A datagram received. The bytes belong to the PacketIo and stay valid until its next receive().
struct InPacket {
  const uint8_t* data = nullptr;
  uint32_t size = 0;
  Address from;
  uint16_t local = 0;      // number of the local address it was sent to, if there are several; 0: not known
  bool in_memory = false;  // it has never left this process, so its tag proves nothing
};

struct PacketIoCounters {
  Counter packets_sent;
  Counter packets_received;
  Counter bytes_sent;  // datagram payloads (no UDP, IP or Ethernet headers)
  Counter bytes_received;
  Counter send_calls;     // system calls, for batching figures
  Counter receive_calls;  // system calls, or polls of a ring
  Counter send_refused;   // packets that the system refused (buffer full, unreachable); they are lost
  Counter truncated;      // received longer than the largest packet, dropped
};

// Packets that come to a thread by memory, beside those of its PacketIo.
class Inbox {
 public:
  virtual ~Inbox() = default;
  virtual bool has_packets() const = 0;
  // The thread is about to sleep: from now on whoever sends wakes it. False: there is a packet, and it does not sleep.
  virtual bool fall_asleep() = 0;
  virtual void wake_up() = 0;
};

class PacketIo {
 public:
  virtual ~PacketIo() = default;

  // Sends the burst without waiting: packets that the system refuses are lost and counted. Runs of packets with equal
  // destination and size (the last may be shorter) cost least.
  virtual void send(std::span<const OutPacket> burst) = 0;

  // Fills `burst` with arrived packets and returns their number, without waiting. A short count does not mean that nothing
  // is left: call it until it returns 0, or call wait(), which returns at once while anything is left.
  virtual size_t receive(std::span<InPacket> burst) = 0;

  // Waits until something can be received, wake() is called or `timeout_us` has passed (< 0: no limit). A wake() while no
  // thread waits ends the next wait().
  virtual void wait(int64_t timeout_us) = 0;
  virtual void wake() = 0;
  // From now on wait() waits for packets of `inbox`, too. Only of what has descriptors to wait for.
  virtual void watch(Inbox* /*inbox*/) { NETSUM_ASSERT(false); }

  virtual Address local_address() const = 0;
  virtual const PacketIoCounters& counters() const = 0;
  // How many packets the system has dropped because its receive buffer was full. Any thread; a system call per socket.
  virtual uint64_t overflowed() const = 0;
  // For messages: "udp (GSO, GRO)".
  virtual std::string_view description() const = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_PACKET_IO_H_
