#include "engine/network_core.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

namespace netsum {

NetworkCore::NetworkCore(std::unique_ptr<PacketIo> io, const WorkerOptions& options)
    : io_(std::move(io)), worker_(options) {}

void NetworkCore::poll() {
  received_count_ = io_->receive(received_);
}

bool NetworkCore::advance(int64_t now_us) {
  for (size_t i = 0; i < received_count_; ++i) worker_.on_packet(now_us, received_[i]);
  return std::exchange(received_count_, 0) > 0;
}

bool NetworkCore::send(int64_t now_us) {
  const std::span<const OutPacket> due = worker_.collect(now_us);
  if (due.empty()) return false;
  io_->send(due);
  return true;
}

void NetworkCore::wait(int64_t timeout_us) {
  io_->wait(timeout_us == INT64_MAX ? -1 : std::max<int64_t>(0, timeout_us));
}

}  // namespace netsum
