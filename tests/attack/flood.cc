#include "tests/attack/flood.h"

#include <linux/udp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "netsum/communicator.h"
#include "src/net/address.h"
#include "wire/codec.h"

namespace netsum::attack {
namespace {

constexpr std::chrono::seconds kPatience{120};
constexpr size_t kFullDatagram = NETSUM_HEADER_BYTES + 1440;
constexpr size_t kRun = 44;  // full packets in one send

Status errno_status(const char* what) {
  return {ErrorCode::kInternal, std::string(what) + ": " + std::strerror(errno)};
}

std::vector<uint8_t> packet(const netsum_fields& fields, const netsum_key& key) {
  std::vector<uint8_t> bytes(NETSUM_HEADER_BYTES + fields.payload_bytes);
  wire::write_header(fields, key, bytes.data());
  return bytes;
}

}  // namespace

QuietJob::QuietJob(const std::string& aggregator) : aggregator_(aggregator) {
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks_.emplace_back([this, rank] {
      results_[rank] = sum(rank);
      ++under_way_;  // also where it failed: nobody waits for it
    });
  }
  while (under_way_ < kRanks) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

Status QuietJob::end() {
  stop_ = true;
  for (std::thread& rank : ranks_) rank.join();
  for (const Status& result : results_) {
    if (!result.ok()) return result;
  }
  return {};
}

Status QuietJob::sum(int rank) {
  CommunicatorOptions options;
  options.rank = rank;
  options.world_size = kRanks;
  options.job = "quiet";
  options.aggregators = {aggregator_};
  options.shares = Shares::kOff;  // the aggregator sums all, whatever its link
  options.shared_memory = false;
  options.connect_timeout = options.timeout = kPatience;
  auto communicator = Communicator::connect(options);
  if (!communicator.ok()) return communicator.status();
  std::vector<int32_t> tensor(kElements);
  // The ranks agree on the end as on everything: the last element counts those who have been told to stop.
  for (bool first = true;; first = false) {
    for (size_t i = 0; i < kElements; ++i) tensor[i] = static_cast<int32_t>(i) * (rank + 1);
    tensor.back() = stop_ ? 1 : 0;
    AllReduceOptions reduce;
    reduce.type = DataType::kInt32;
    const Work work =
        communicator.value()->all_reduce(TensorView{tensor.data(), tensor.data(), kElements}, reduce);
    if (const Status status = work.wait(); !status.ok()) return status;
    for (size_t i = 0; i + 1 < kElements; ++i) {
      if (tensor[i] != static_cast<int32_t>(i) * 3) return {ErrorCode::kInternal, "a sum was wrong"};
    }
    if (rank == 0) ++sums_;
    if (first) ++under_way_;
    if (tensor.back() == kRanks) return {};
  }
}

Result<std::unique_ptr<Flood>> Flood::of_member(const std::string& aggregator, uint64_t packets_per_s,
                                                bool knows_the_key) {
  std::unique_ptr<Flood> flood(new Flood(packets_per_s));
  JoinParameters join;
  join.address = aggregator;
  join.job.set_name("flooding");
  join.timeout = kPatience;
  auto member = ControlClient::join(join, [](const Status&) {});
  if (!member.ok()) return member.status();
  flood->member_ = std::move(member).value();
  const Membership& membership = flood->member_->membership();
  if (const Status opened = flood->open(membership.stripes.front().endpoint); !opened.ok()) return opened;
  netsum_key key = wire::stripe_key(membership.key, 0);
  netsum_fields f{};
  f.type = NETSUM_TYPE_HELLO;
  f.job = membership.job;
  f.epoch = membership.epoch;
  if (const Status known = flood->say_hello(packet(f, key)); !known.ok()) return known;
  f.type = NETSUM_TYPE_CONTRIBUTION;
  f.format = NETSUM_FORMAT_SUM_I32;
  f.round = 1;
  f.payload_bytes = membership.payload_bytes;
  if (!knows_the_key) key.k0 ^= 1;
  if (const Status begun = flood->begin(packet(f, key)); !begun.ok()) return begun;
  return flood;
}

Result<std::unique_ptr<Flood>> Flood::of_tenant(const std::string& aggregator, uint64_t packets_per_s) {
  return of_member(aggregator, packets_per_s, true);
}

Result<std::unique_ptr<Flood>> Flood::of_forgeries(const std::string& aggregator, uint64_t packets_per_s) {
  return of_member(aggregator, packets_per_s, false);
}

Result<std::unique_ptr<Flood>> Flood::of_nothing(const std::string& endpoint, uint64_t packets_per_s) {
  std::unique_ptr<Flood> flood(new Flood(packets_per_s));
  if (const Status opened = flood->open(endpoint); !opened.ok()) return opened;
  if (const Status begun = flood->begin(std::vector<uint8_t>(kFullDatagram)); !begun.ok()) return begun;
  return flood;
}

Status Flood::open(const std::string& endpoint) {
  const Result<Address> address = Address::parse(endpoint);
  if (!address.ok()) return address.status();
  sockaddr_storage to{};
  const socklen_t to_bytes = address->to_sockaddr(&to);
  fd_ = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0 || connect(fd_, reinterpret_cast<const sockaddr*>(&to), to_bytes) != 0) {
    return errno_status("socket");
  }
  return {};
}

Status Flood::say_hello(const std::vector<uint8_t>& hello) {
  for (int tries = 0; tries < 100; ++tries) {
    if (send(fd_, hello.data(), hello.size(), 0) < 0) return errno_status("send");
    pollfd readable{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, 100) > 0) return {};
  }
  return {ErrorCode::kTimeout, "nobody answers HELLO"};
}

// The kernel cuts what is sent at once into packets: so one thread can send more than an aggregator can read.
Status Flood::begin(const std::vector<uint8_t>& packet) {
  const int packet_bytes = static_cast<int>(packet.size());
  if (setsockopt(fd_, IPPROTO_UDP, UDP_SEGMENT, &packet_bytes, sizeof packet_bytes) != 0) {
    return errno_status("segmentation of UDP");
  }
  for (size_t i = 0; i < kRun; ++i) run_.insert(run_.end(), packet.begin(), packet.end());
  thread_ = std::thread([this] { loop(); });
  return {};
}

void Flood::loop() {
  using Clock = std::chrono::steady_clock;
  std::vector<uint8_t> answers(1 << 16);
  const auto began = Clock::now();
  while (!stop_) {
    if (packets_per_s_ != 0) {
      std::this_thread::sleep_until(began +
                                    std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                        static_cast<double>(sent_) / static_cast<double>(packets_per_s_))));
    }
    if (send(fd_, run_.data(), run_.size(), 0) > 0) sent_ += kRun;
    while (recv(fd_, answers.data(), answers.size(), MSG_DONTWAIT) > 0) {
    }
  }
}

void Flood::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

Flood::~Flood() {
  stop();
  if (fd_ >= 0) close(fd_);
}

uint64_t counter(const Aggregator& aggregator, const std::string& name) {
  for (const AggregatorCounter& counter : aggregator.status().counters) {
    if (counter.name == name) return counter.value;
  }
  return 0;
}

}  // namespace netsum::attack
