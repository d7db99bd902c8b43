#include "tests/conformance/network_run.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <set>

#include "src/base/assert.h"
#include "wire/codec.h"

namespace netsum::conformance {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint16_t kFenceJob = 63;
constexpr netsum_key kFenceKey{0xF37CE, 0};

// Where the socket is bound.
Address local_address_of(int fd) {
  sockaddr_storage local{};
  socklen_t bytes = sizeof local;
  NETSUM_ASSERT(getsockname(fd, reinterpret_cast<sockaddr*>(&local), &bytes) == 0);
  return Address::from_sockaddr(local);
}

}  // namespace

void pin_to_one_cpu() {
  cpu_set_t allowed, one;
  NETSUM_ASSERT(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  NETSUM_ASSERT(sched_setaffinity(0, sizeof one, &one) == 0);
}

int open_peer(const Address& local, const Address& remote) {
  sockaddr_storage from{}, to{};
  const socklen_t from_bytes = local.to_sockaddr(&from), to_bytes = remote.to_sockaddr(&to);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&from), from_bytes) != 0 ||
      connect(fd, reinterpret_cast<sockaddr*>(&to), to_bytes) != 0) {
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

NetworkRun::NetworkRun(Dataplane* dataplane, std::vector<int> sockets, bool lengthens, int turns)
    : dataplane_(dataplane), sockets_(std::move(sockets)), lengthens_(lengthens), turns_(turns) {
  static uint16_t epoch = 0;
  fence_job_ = {.job = kFenceJob,
                .epoch = ++epoch,
                .key = kFenceKey,
                .tag = NETSUM_TAG_COOKIE,  // all dataplanes can
                .members = kNetworkPeers,
                .data_slots = 1,
                .scale_slots = 0,
                .payload_bytes = 32};
  NETSUM_ASSERT(dataplane_->install(fence_job_).ok());
  before_ = all_drops();
}

NetworkRun::~NetworkRun() {
  for (const DataplaneJob& job : installed_) dataplane_->remove(job.job, job.epoch);
  dataplane_->remove(fence_job_.job, fence_job_.epoch);
}

void NetworkRun::install(const VectorJob& job) {
  installed_.push_back(
      dataplane_job(job, [&](Peer peer) { return local_address_of(sockets_[static_cast<size_t>(peer)]); }));
  // Each stripe needs one of the parent's; packets concern the first.
  if (installed_.back().parent) {
    std::vector<Address>& stripes = installed_.back().parent->stripes;
    stripes.resize(dataplane_->endpoints().size(), stripes.front());
  }
  NETSUM_ASSERT(dataplane_->install(installed_.back()).ok());
}

size_t NetworkRun::largest_datagram() const {
  return NETSUM_HEADER_BYTES + dataplane_->limits().capabilities.payload_bytes();
}

bool NetworkRun::sums_values() const {
  return netsum::sums_values(dataplane_->limits().capabilities);
}

bool NetworkRun::adds_floats() const {
  return netsum::adds_floats(dataplane_->limits().capabilities);
}

bool NetworkRun::is_welcome(const Bytes& datagram) const {
  netsum_fields f{};
  return netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), &f) == NETSUM_DROP_NONE &&
         f.type == NETSUM_TYPE_WELCOME && f.job == kFenceJob && f.round == fences_;
}

bool NetworkRun::fence(std::span<const Peer> peers, std::vector<Reply>* replies) {
  netsum_fields hello{};
  hello.type = NETSUM_TYPE_HELLO;
  hello.job = kFenceJob;
  hello.epoch = fence_job_.epoch;
  hello.round = ++fences_;
  for (const Peer peer : peers) {
    hello.member = static_cast<uint16_t>(peer);
    uint8_t frame[NETSUM_HEADER_BYTES];
    const uint32_t size = wire::write_header(hello, wire::stripe_key(kFenceKey, 0), frame);
    if (send(sockets_[static_cast<size_t>(peer)], frame, size, 0) != static_cast<ssize_t>(size)) return false;
  }
  std::set<Peer> waiting(peers.begin(), peers.end());
  std::vector<pollfd> polls;
  for (const int fd : sockets_) polls.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  const auto deadline = Clock::now() + kNetworkPatience;
  while (!waiting.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || poll(polls.data(), polls.size(), static_cast<int>(left)) <= 0) return false;
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents == 0) continue;
      Bytes datagram(65536);
      const ssize_t size = recv(polls[i].fd, datagram.data(), datagram.size(), 0);
      if (size < 0) continue;
      datagram.resize(static_cast<size_t>(size));
      const Peer peer = static_cast<Peer>(i);
      if (is_welcome(datagram)) {
        waiting.erase(peer);
      } else {
        replies->push_back({peer, datagram});
      }
    }
  }
  return true;
}

std::vector<Reply> NetworkRun::feed(Peer from, const Bytes& datagram) {
  std::vector<Reply> replies;
  const ssize_t sent = send(sockets_[static_cast<size_t>(from)], datagram.data(), datagram.size(), 0);
  std::vector<Peer> all(kNetworkPeers);
  std::iota(all.begin(), all.end(), 0);
  // The first fences prove that the packet has been dealt with, or is in the burst that is being dealt with;
  // the others, that the answers have arrived.
  bool answered = sent == static_cast<ssize_t>(datagram.size());
  for (int turn = 0; turn < turns_; ++turn) answered = answered && fence({&from, 1}, &replies);
  if (!answered || !fence(all, &replies)) {
    static constexpr std::string_view kLost = "the fence was not answered";
    return {{from, Bytes(kLost.begin(), kLost.end())}};  // shows in the comparison
  }
  return replies;
}

std::map<std::string, uint64_t> NetworkRun::all_drops() const {
  static constexpr std::string_view kPrefix = "drop_";
  std::map<std::string, uint64_t> drops;
  for (const AggregatorCounter& counter : dataplane_->counters()) {
    if (counter.name.starts_with(kPrefix)) drops[counter.name.substr(kPrefix.size())] = counter.value;
  }
  return drops;
}

std::map<std::string, uint64_t> NetworkRun::drops() {
  std::map<std::string, uint64_t> drops = all_drops();
  for (auto& [name, count] : drops) count -= before_[name];
  return drops;
}

}  // namespace netsum::conformance
