#include "tools/netsum/rate_flow.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "src/base/clock.h"
#include "src/base/thread.h"
#include "src/net/udp/udp_io.h"

namespace netsum::tool {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint32_t kMagic = 0x7261'7465;
// These bound the memory of a receiver: the last number, and how many numbers there may be for each packet received.
constexpr uint64_t kMaxSequence = 1 << 26, kMostNumbersPerPacket = 128, kFirstNumbers = 1 << 19;
constexpr size_t kBurst = 32;  // packets to one target before the next one's
// Small, so that what waits in the sender's queue when the time is over is little.
constexpr int kSendBuffer = 256 << 10;
constexpr milliseconds kHandshakeLimit{2'000};
constexpr milliseconds kHelloInterval{20}, kLongestHelloInterval{320};  // doubles while nobody answers
constexpr microseconds kFullQueuePause{200};
// The part of the test in which the rate is taken.
constexpr double kFrom = 0.3, kTo = 0.9;

enum class Kind : uint32_t { kHello = 1, kReady = 2, kData = 3 };

// Both ends run the same release on little-endian machines, so the header travels as it is in memory. `sequence`: of data,
// its number; of the others, the random number of the hello.
struct Header {
  uint32_t magic = kMagic;
  Kind kind = Kind::kHello;
  uint64_t nonce = 0;
  uint32_t flow = 0;
  uint32_t zero = 0;
  uint64_t sequence = 0;
};
static_assert(sizeof(Header) == kMinRatePacketBytes);

// False for packets of others.
bool parse_header(const InPacket& packet, uint64_t nonce, Header* header) {
  if (packet.size < sizeof *header) return false;
  std::memcpy(header, packet.data, sizeof *header);
  return header->magic == kMagic && header->nonce == nonce;
}

class Sender {
 public:
  Sender(PacketIo& io, const RateTest& test, std::span<const RateTarget> targets)
      : io_(io), test_(test), targets_(targets), sent_(targets.size(), 0) {
    frames_.resize(kBurst * test.packet_bytes);
  }

  // Before shake_hands(). Error: kInternal.
  Status choose_numbers() {
    hellos_.resize(targets_.size());
    const auto bytes = static_cast<ssize_t>(hellos_.size() * sizeof hellos_[0]);
    if (getrandom(hellos_.data(), hellos_.size() * sizeof hellos_[0], 0) == bytes) return {};
    return {ErrorCode::kInternal, std::string("no random numbers: ") + std::strerror(errno)};
  }

  Status shake_hands(const std::function<bool()>& cancelled) {
    for (const uint32_t bytes : {kMinRatePacketBytes, test_.packet_bytes}) {
      if (Status status = shake_hands(bytes, cancelled); !status.ok()) return status;
    }
    return {};
  }

  Status flood(const std::function<bool()>& cancelled) {
    const int64_t end_us = monotonic_us() + microseconds(test_.time).count();
    uint64_t sequence = 0;
    for (size_t i = 0; monotonic_us() < end_us; i = (i + 1) % targets_.size()) {
      if (cancelled()) return {ErrorCode::kAborted, "cancelled"};
      const uint64_t refused_before = io_.counters().send_refused.get();
      send(targets_[i], Kind::kData, sequence, test_.packet_bytes, kBurst);
      const uint64_t refused = io_.counters().send_refused.get() - refused_before;
      sent_[i] += kBurst - refused;
      if (i + 1 == targets_.size()) sequence += kBurst;
      if (refused > 0) std::this_thread::sleep_for(kFullQueuePause);
    }
    return {};
  }

  std::vector<uint64_t> sent() const { return sent_; }

 private:
  Status shake_hands(uint32_t bytes, const std::function<bool()>& cancelled) {
    std::set<size_t> silent;
    for (size_t i = 0; i < targets_.size(); ++i) silent.insert(i);
    const int64_t limit_us = monotonic_us() + microseconds(kHandshakeLimit).count();
    milliseconds interval = kHelloInterval;
    int64_t hello_us = 0;
    while (!silent.empty()) {
      const int64_t now_us = monotonic_us();
      if (cancelled()) return {ErrorCode::kAborted, "cancelled"};
      if (now_us >= limit_us) return no_answer(targets_[*silent.begin()], bytes);
      if (now_us >= hello_us) {
        for (const size_t i : silent) send(targets_[i], Kind::kHello, number_of(i, bytes), bytes, 1);
        hello_us = now_us + microseconds(interval).count();
        interval = std::min(2 * interval, kLongestHelloInterval);
      }
      io_.wait(hello_us - now_us);
      receive(bytes, &silent);
    }
    return {};
  }

  // What a hello of that size carries.
  uint64_t number_of(size_t target, uint32_t bytes) const { return hellos_[target] + bytes; }

  void send(const RateTarget& target, Kind kind, uint64_t sequence, uint32_t bytes, size_t count) {
    std::array<OutPacket, kBurst> burst;
    for (size_t i = 0; i < count; ++i) {
      uint8_t* const frame = &frames_[i * bytes];
      const Header header{.kind = kind, .nonce = test_.nonce, .flow = target.flow, .sequence = sequence + i};
      std::memcpy(frame, &header, sizeof header);
      burst[i] = {frame, bytes, target.to};
    }
    io_.send({burst.data(), count});
  }

  void receive(uint32_t bytes, std::set<size_t>* silent) {
    std::array<InPacket, kBurst> burst;
    while (const size_t count = io_.receive(burst)) {
      for (size_t i = 0; i < count; ++i) {
        Header header;
        if (!parse_header(burst[i], test_.nonce, &header) || header.kind != Kind::kReady) continue;
        std::erase_if(*silent, [&](size_t target) {
          return targets_[target].flow == header.flow && number_of(target, bytes) == header.sequence;
        });
      }
    }
  }

  Status no_answer(const RateTarget& target, uint32_t bytes) const {
    return {ErrorCode::kUnreachable, "no answer from " + target.to.to_string() + " to UDP packets of " +
                                         std::to_string(bytes) +
                                         (bytes == test_.packet_bytes && bytes > kMinRatePacketBytes
                                              ? " bytes, but to shorter ones: give a smaller --mtu"
                                              : " bytes: open UDP in firewalls between the hosts")};
  }

  PacketIo& io_;
  const RateTest test_;
  const std::span<const RateTarget> targets_;
  std::vector<uint8_t> frames_;
  std::vector<uint64_t> sent_;
  std::vector<uint64_t> hellos_;  // by target: random
};

}  // namespace

RateMeter::RateMeter(milliseconds time, size_t flows)
    : time_(time), bytes_by_ms_(static_cast<size_t>(time.count()), 0), seen_(flows), received_(flows, 0) {}

void RateMeter::on_data(int64_t now_us, uint32_t flow, uint64_t sequence, uint32_t bytes) {
  if (flow >= seen_.size()) return;
  if (sequence >= std::min(kMaxSequence, kFirstNumbers + kMostNumbersPerPacket * received_[flow])) return;
  std::vector<bool>& seen = seen_[flow];
  if (sequence >= seen.size()) seen.resize(std::max<size_t>(sequence + 1, 2 * seen.size()));
  if (seen[sequence]) return;
  seen[sequence] = true;
  ++received_[flow];
  if (!any_) first_us_ = now_us;
  any_ = true;
  const auto ms = static_cast<size_t>((now_us - first_us_) / 1000);
  if (ms < bytes_by_ms_.size()) bytes_by_ms_[ms] += bytes;
}

RateCounts RateMeter::counts() const {
  const auto begin = static_cast<size_t>(kFrom * static_cast<double>(bytes_by_ms_.size()));
  const auto end = static_cast<size_t>(kTo * static_cast<double>(bytes_by_ms_.size()));
  uint64_t bytes = 0;
  for (size_t ms = begin; ms < end; ++ms) bytes += bytes_by_ms_[ms];
  const double seconds = static_cast<double>(end - begin) / 1000;
  return {.bits_per_second = static_cast<double>(bytes) * 8 / seconds, .received = received_};
}

Result<std::unique_ptr<RateReceiver>> RateReceiver::open(const Address& bind, const RateTest& test,
                                                         size_t flows) {
  auto io = open_udp({.bind = bind, .max_packet = test.packet_bytes});
  if (!io.ok()) return io.status();
  std::unique_ptr<RateReceiver> receiver(new RateReceiver(std::move(io).value(), test, flows));
  RateReceiver* const self = receiver.get();
  if (Status status = start_thread(
          "to receive", [self] { self->loop(); }, &receiver->thread_);
      !status.ok())
    return status;
  return receiver;
}

RateReceiver::RateReceiver(std::unique_ptr<PacketIo> io, const RateTest& test, size_t flows)
    : io_(std::move(io)), test_(test), flows_(flows), meter_(test.time, flows) {}

RateReceiver::~RateReceiver() {
  if (thread_.joinable()) static_cast<void>(stop());
}

RateCounts RateReceiver::stop() {
  stop_ = true;
  io_->wake();
  thread_.join();
  return meter_.counts();
}

void RateReceiver::loop() {
  std::array<InPacket, 64> burst;
  while (!stop_) {
    const size_t count = io_->receive(burst);
    const int64_t now_us = monotonic_us();
    for (size_t i = 0; i < count; ++i) take(burst[i], now_us);
    if (count == 0) io_->wait(-1);
  }
}

void RateReceiver::take(const InPacket& packet, int64_t now_us) {
  Header header;
  if (!parse_header(packet, test_.nonce, &header) || header.flow >= flows_) return;
  if (header.kind == Kind::kData) {
    meter_.on_data(now_us, header.flow, header.sequence, packet.size);
  } else if (header.kind == Kind::kHello) {
    header.kind = Kind::kReady;
    const OutPacket ready{reinterpret_cast<const uint8_t*>(&header), sizeof header, packet.from,
                          packet.local};
    io_->send({&ready, 1});
  }
}

Result<std::vector<uint64_t>> send_rate_flows(const Address& from, const RateTest& test,
                                              std::span<const RateTarget> targets,
                                              const std::function<bool()>& cancelled) {
  auto io = open_udp({.bind = from, .max_packet = test.packet_bytes, .send_buffer = kSendBuffer});
  if (!io.ok()) return io.status();
  Sender sender(*io.value(), test, targets);
  if (Status status = sender.choose_numbers(); !status.ok()) return status;
  if (Status status = sender.shake_hands(cancelled); !status.ok()) return status;
  if (Status status = sender.flood(cancelled); !status.ok()) return status;
  return sender.sent();
}

}  // namespace netsum::tool
