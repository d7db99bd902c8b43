#include "src/telemetry/http_connections.h"

#include <sys/socket.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace netsum {

HttpConnections::~HttpConnections() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool HttpConnections::start() {
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void HttpConnections::opened(const void* connection, int fd, const std::string& address) {
  const std::lock_guard lock(mutex_);
  open_[connection] = {.fd = fd, .address = address, .since = Clock::now()};
  const auto open =
      std::count_if(open_.begin(), open_.end(), [](const auto& one) { return !one.second.is_shut; });
  if (open > kMost) make_room();
  changed_.notify_all();
}

void HttpConnections::completed(const void* connection) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(connection);
  if (found != open_.end()) found->second.since = Clock::now();
}

// The server calls it before it closes the socket, whose number may then stand for another.
void HttpConnections::closed(const void* connection) {
  const std::lock_guard lock(mutex_);
  open_.erase(connection);
}

void HttpConnections::shut(Open* connection) {
  connection->is_shut = true;
  ::shutdown(connection->fd, SHUT_RDWR);
}

void HttpConnections::make_room() {
  std::map<std::string, std::pair<unsigned, Open*>> of_address;  // how many it has, and the oldest
  for (auto& [connection, open] : open_) {
    if (open.is_shut) continue;
    auto& [count, oldest] = of_address[open.address];
    ++count;
    if (oldest == nullptr || open.since < oldest->since) oldest = &open;
  }
  const auto most = std::max_element(of_address.begin(), of_address.end(), [](const auto& a, const auto& b) {
    return a.second.first < b.second.first;
  });
  shut(most->second.second);
}

void HttpConnections::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const Clock::time_point now = Clock::now();
    Clock::time_point next = now + std::chrono::hours(1);
    for (auto& [connection, open] : open_) {
      if (open.is_shut) continue;
      if (now - open.since >= kPatience)
        shut(&open);
      else
        next = std::min(next, open.since + kPatience);
    }
    changed_.wait_until(lock, next);
  }
}

}  // namespace netsum
