#include "src/host/peer_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>

namespace netsum {
namespace {

// Pieces of memory in one system call, besides the identity.
constexpr size_t kMostPieces = 63;

uint64_t random_identity() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

PeerMemory::PeerMemory(Segment* segment, size_t local, bool allowed)
    : segment_(*segment), local_(local), allowed_(allowed), identity_(random_identity()) {
  Segment::Peer& self = segment_.peer(local_);
  self.process = getpid();
  self.identity = identity_;
  self.identity_address = reinterpret_cast<uint64_t>(&identity_);
}

void PeerMemory::probe() {
  if (probed_) return;
  probed_ = true;
  bool reads = allowed_;
  for (size_t rank = 0; reads && rank < segment_.ranks(); ++rank)
    reads = rank == local_ || read(rank, {}, nullptr, 0);
  segment_.peer(local_).reads.store(reads ? 1 : 0, std::memory_order_relaxed);
}

bool PeerMemory::available() const {
  for (size_t rank = 0; rank < segment_.ranks(); ++rank)
    if (segment_.peer(rank).reads.load(std::memory_order_relaxed) == 0) return false;
  return true;
}

bool PeerMemory::read(size_t rank, std::span<const iovec> from, void* to, size_t bytes) const {
  auto* next = static_cast<uint8_t*>(to);
  for (; from.size() > kMostPieces; from = from.subspan(kMostPieces)) {
    size_t some = 0;
    for (const iovec& piece : from.first(kMostPieces)) some += piece.iov_len;
    if (!read_some(rank, from.first(kMostPieces), next, some)) return false;
    next += some;
    bytes -= some;
  }
  return read_some(rank, from, next, bytes);
}

bool PeerMemory::read_some(size_t rank, std::span<const iovec> from, void* to, size_t bytes) const {
  const Segment::Peer& peer = segment_.peer(rank);
  std::array<iovec, kMostPieces + 1> remote;
  std::copy(from.begin(), from.end(), remote.begin());
  remote[from.size()] = {reinterpret_cast<void*>(peer.identity_address), sizeof peer.identity};
  uint64_t identity = 0;
  const iovec local[2] = {{to, bytes}, {&identity, sizeof identity}};
  const ssize_t got = process_vm_readv(peer.process, local, 2, remote.data(), from.size() + 1, 0);
  return got == static_cast<ssize_t>(bytes + sizeof identity) && identity == peer.identity;
}

void PeerMemory::withdraw() {
  segment_.peer(local_).withdrawn.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before this rank writes to what others read
}

bool PeerMemory::withdrawn(size_t rank) const {
  std::atomic_thread_fence(std::memory_order_acquire);  // after what was read
  return segment_.peer(rank).withdrawn.load(std::memory_order_relaxed) != 0;
}

}  // namespace netsum
