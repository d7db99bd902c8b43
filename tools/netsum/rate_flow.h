// The packets of `netsum doctor --rates`: one host sends as fast as its socket takes them, another one counts.
//
// A flow starts with a handshake, so that a host sends only to one that expects it, whoever has asked for the flow:
//   sender -> receiver  hello, a header with a random number, repeated until answered
//   receiver -> sender  ready, a copy of that header
//   sender -> receiver  hello, of full size, with another number
//   receiver -> sender  ready, likewise
//   sender -> receiver  data, of full size, with sequence numbers
// Only a host that the packets reach knows the numbers.
#ifndef NETSUM_TOOLS_NETSUM_RATE_FLOW_H_
#define NETSUM_TOOLS_NETSUM_RATE_FLOW_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "netsum/status.h"
#include "src/net/packet_io.h"

namespace netsum::tool {

inline constexpr uint32_t kMinRatePacketBytes = 32;  // the header
inline constexpr size_t kMaxRateFlows = 64;          // of one sender or receiver at a time
inline constexpr std::chrono::milliseconds kMinRateTime{100};
inline constexpr std::chrono::milliseconds kMaxRateTime{10'000};

struct RateTest {
  uint64_t nonce = 0;  // of the measurement; other packets are ignored
  uint32_t packet_bytes = 1472;
  std::chrono::milliseconds time{1'000};  // for which data is sent
};

struct RateCounts {
  double bits_per_second = 0;      // of datagrams' contents, over all flows, while all of them are under way
  std::vector<uint64_t> received;  // packets by flow, each counted once
};

// Counts data packets; no I/O. The rate is that of the middle of the test: the beginning has what traffic shapers let
// pass in a burst and flows that are not there yet, the end flows that have ended.
class RateMeter {
 public:
  RateMeter(std::chrono::milliseconds time, size_t flows);
  void on_data(int64_t now_us, uint32_t flow, uint64_t sequence, uint32_t bytes);
  RateCounts counts() const;

 private:
  const std::chrono::milliseconds time_;
  int64_t first_us_ = 0;
  bool any_ = false;
  std::vector<uint64_t> bytes_by_ms_;
  std::vector<std::vector<bool>> seen_;  // by flow and sequence number
  std::vector<uint64_t> received_;
};

// Counts on a thread of its own from open() to stop().
class RateReceiver {
 public:
  // `bind`: port 0. Errors: those of open_udp().
  static Result<std::unique_ptr<RateReceiver>> open(const Address& bind, const RateTest& test, size_t flows);
  ~RateReceiver();
  uint16_t port() const { return io_->local_address().port; }
  RateCounts stop();

 private:
  RateReceiver(std::unique_ptr<PacketIo> io, const RateTest& test, size_t flows);
  void loop();
  void take(const InPacket& packet, int64_t now_us);

  const std::unique_ptr<PacketIo> io_;
  const RateTest test_;
  const size_t flows_;
  RateMeter meter_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

struct RateTarget {
  uint32_t flow = 0;  // its number at the receiver
  Address to;
};

// Sends to all targets in turn for the test's time; returns the packets sent to each. `from`: port 0. Errors:
// kUnreachable (a target does not answer), kAborted (`cancelled` has returned true; it is called often), those of
// open_udp().
Result<std::vector<uint64_t>> send_rate_flows(const Address& from, const RateTest& test,
                                              std::span<const RateTarget> targets,
                                              const std::function<bool()>& cancelled);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RATE_FLOW_H_
