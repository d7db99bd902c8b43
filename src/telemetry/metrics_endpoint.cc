#include "src/telemetry/metrics_endpoint.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/net/address.h"
#include "src/telemetry/http_connections.h"

namespace netsum {
namespace {

constexpr unsigned kInactivityS = 5;
constexpr int kBacklog = 64;
constexpr std::chrono::milliseconds kPageShared{100};

Status cannot_listen(const std::string& address, int error) {
  const std::string what = "metrics: cannot listen on " + address + ": ";
  switch (error) {
    case EADDRINUSE:
      return Status(ErrorCode::kAddressInUse,
                    what + "another process does already; choose another port, or port 0 for a free one");
    case EACCES:
      return Status(ErrorCode::kPermissionDenied,
                    what + std::strerror(error) + "; ports below 1024 need privileges");
    case EADDRNOTAVAIL:
      return Status(ErrorCode::kInvalidArgument, what + "this host has no such address");
    default:
      return Status(ErrorCode::kInvalidArgument, what + std::strerror(error));
  }
}

// A listening socket, or an error with its reason, which the HTTP library would not return.
Result<int> listen_on(const Address& address) {
  sockaddr_storage storage{};
  const uint32_t length = address.to_sockaddr(&storage);
  const int fd = ::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return cannot_listen(address.to_string(), errno);
  // So that connections of an earlier run that are still closing do not block the address.
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&storage), length) != 0 || ::listen(fd, kBacklog) != 0) {
    const int error = errno;
    ::close(fd);
    return cannot_listen(address.to_string(), error);
  }
  return fd;
}

std::string bound_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length);
  return Address::from_sockaddr(storage).to_string();
}

MHD_Result answer(void* endpoint, MHD_Connection* connection, const char* url, const char* method,
                  const char* /*version*/, const char* /*upload*/, size_t* upload_bytes, void** state) {
  // The library calls once for the head of a request, and again after its body, which is ignored.
  if (*state == nullptr || *upload_bytes > 0) {
    *state = endpoint;
    *upload_bytes = 0;
    return MHD_YES;
  }
  MetricsEndpoint::Page page{405, "text/plain", "only GET is served\n"};
  const bool get = std::strcmp(method, MHD_HTTP_METHOD_GET) == 0;
  if (get || std::strcmp(method, MHD_HTTP_METHOD_HEAD) == 0) {
    page = static_cast<MetricsEndpoint*>(endpoint)->get(url);
  }
  MHD_Response* response =
      MHD_create_response_from_buffer(page.body.size(), page.body.data(), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, page.type.c_str());
  const MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(page.status), response);
  MHD_destroy_response(response);
  return queued;
}

void on_connection(void* connections, MHD_Connection* connection, void** /*context*/,
                   MHD_ConnectionNotificationCode what) {
  if (what == MHD_CONNECTION_NOTIFY_CLOSED)
    return static_cast<HttpConnections*>(connections)->closed(connection);
  const MHD_ConnectionInfo* fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  const MHD_ConnectionInfo* from = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  sockaddr_storage storage{};
  if (from != nullptr && from->client_addr != nullptr)
    std::memcpy(&storage, from->client_addr,
                from->client_addr->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  Address address = Address::from_sockaddr(storage);
  address.port = 0;
  if (fd != nullptr)
    static_cast<HttpConnections*>(connections)->opened(connection, fd->connect_fd, address.to_string());
}

void on_completed(void* connections, MHD_Connection* connection, void** /*context*/,
                  MHD_RequestTerminationCode /*how*/) {
  static_cast<HttpConnections*>(connections)->completed(connection);
}

// The endpoints of this process, to share them by address.
struct OpenEndpoints {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<MetricsEndpoint>> by_address;  // "pid host:port"
};
OpenEndpoints& open_endpoints() {
  static OpenEndpoints endpoints;
  return endpoints;
}

}  // namespace

Result<std::shared_ptr<MetricsEndpoint>> MetricsEndpoint::open(const std::string& address) {
  const Result<HostPort> parts = split_host_port(address);
  if (!parts.ok()) return Status(parts.status().code(), "metrics: " + parts.status().message());
  OpenEndpoints& known = open_endpoints();
  const std::lock_guard lock(known.mutex);
  // A forked child has its parent's endpoints in memory, but not their threads.
  const std::string process = std::to_string(::getpid()) + " ";
  if (parts->port != 0) {
    if (std::shared_ptr<MetricsEndpoint> shared = known.by_address[process + address].lock()) return shared;
  }
  Result<std::shared_ptr<MetricsEndpoint>> started = start(address);
  if (!started.ok()) return started;
  if (parts->port != 0) known.by_address[process + address] = started.value();
  known.by_address[process + started.value()->address()] = started.value();
  return started;
}

Result<std::shared_ptr<MetricsEndpoint>> MetricsEndpoint::start(const std::string& text) {
  const Result<Address> address = Address::resolve(text);
  if (!address.ok()) return Status(address.status().code(), "metrics: " + address.status().message());
  const Result<int> fd = listen_on(address.value());
  if (!fd.ok()) return fd.status();
  std::shared_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());
  endpoint->address_ = bound_address(fd.value());
  HttpConnections* connections = endpoint->connections_.get();
  if (connections->start()) {
    // Room for connections that are to be closed, but are not yet.
    endpoint->daemon_ = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, nullptr, nullptr, &answer, endpoint.get(), MHD_OPTION_LISTEN_SOCKET,
        fd.value(), MHD_OPTION_CONNECTION_LIMIT, unsigned{4 * HttpConnections::kMost},
        MHD_OPTION_CONNECTION_TIMEOUT, kInactivityS, MHD_OPTION_NOTIFY_CONNECTION, &on_connection,
        connections, MHD_OPTION_NOTIFY_COMPLETED, &on_completed, connections, MHD_OPTION_END);
  }
  if (endpoint->daemon_ == nullptr) {
    ::close(fd.value());
    return Status(ErrorCode::kResourceExhausted,
                  "metrics: cannot serve on " + text + ": no thread or no memory for the HTTP server");
  }
  return endpoint;
}

MetricsEndpoint::MetricsEndpoint() : connections_(std::make_unique<HttpConnections>()) {}

MetricsEndpoint::~MetricsEndpoint() {
  if (daemon_ != nullptr) MHD_stop_daemon(daemon_);  // closes open connections
}

uint64_t MetricsEndpoint::add(Source source) {
  const std::lock_guard lock(mutex_);
  metrics_.clear();
  sources_.emplace(next_id_, std::move(source));
  return next_id_++;
}

void MetricsEndpoint::remove(uint64_t id) {
  const std::lock_guard lock(mutex_);
  metrics_.clear();
  sources_.erase(id);
}

MetricsEndpoint::Page MetricsEndpoint::get(const std::string& path) {
  constexpr char kText[] = "text/plain; charset=utf-8";
  if (path == "/healthz") return {200, kText, "ok\n"};
  const std::lock_guard lock(mutex_);
  if (path == "/metrics") {
    if (metrics_.empty() || std::chrono::steady_clock::now() - metrics_made_ > kPageShared) {
      MetricsPage page;
      for (const auto& [id, source] : sources_) source.add_metrics(&page);
      metrics_ = page.text();
      metrics_made_ = std::chrono::steady_clock::now();
    }
    return {200, "text/plain; version=0.0.4; charset=utf-8", metrics_};
  }
  if (path == "/readyz") {
    std::string reasons;
    for (const auto& [id, source] : sources_) {
      if (const std::string reason = source.not_ready(); !reason.empty()) reasons += reason + "\n";
    }
    if (sources_.empty()) reasons = "nothing is served here yet\n";
    return reasons.empty() ? Page{200, kText, "ready\n"} : Page{503, kText, reasons};
  }
  return {404, kText, "not found; there are /metrics, /healthz and /readyz\n"};
}

Result<std::unique_ptr<MetricsSource>> MetricsSource::open(const std::string& address,
                                                           MetricsEndpoint::Source source) {
  auto endpoint = MetricsEndpoint::open(address);
  if (!endpoint.ok()) return endpoint.status();
  const uint64_t id = endpoint.value()->add(std::move(source));
  return std::unique_ptr<MetricsSource>(new MetricsSource(std::move(endpoint).value(), id));
}

}  // namespace netsum
