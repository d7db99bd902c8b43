// The HTTP endpoint for monitoring: /metrics (Prometheus), /healthz (alive), /readyz (ready to serve).
//
// One thread serves one page at a time. A connection is closed if its request is not complete, or its page not read, within
// 5 s; and of too many connections, the oldest of the address that has the most, so that a new one is always served. Pages
// of metrics are at most 100 ms old. Plain HTTP without passwords: bind it to loopback or to a management network.
#ifndef NETSUM_SRC_TELEMETRY_METRICS_ENDPOINT_H_
#define NETSUM_SRC_TELEMETRY_METRICS_ENDPOINT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "netsum/status.h"
#include "src/telemetry/metrics_page.h"

struct MHD_Daemon;

namespace netsum {

class HttpConnections;

// Thread rule: any thread may call any method.
class MetricsEndpoint {
 public:
  // Something that has metrics. Both functions are called on the endpoint's thread and must not block.
  struct Source {
    std::function<void(MetricsPage*)> add_metrics;
    std::function<std::string()> not_ready;  // empty: ready; else why not, in a line
  };

  // The process's endpoint at "host:port": the first call opens it, further calls with this text or with its address()
  // share it while it is open. Port 0 chooses a free port, each time another one.
  // Errors: kInvalidArgument, kAddressInUse, kPermissionDenied.
  static Result<std::shared_ptr<MetricsEndpoint>> open(const std::string& address);
  ~MetricsEndpoint();

  const std::string& address() const { return address_; }  // with the port that was bound

  // The source is used until remove(), which returns when no call of it is in progress. The endpoint is ready if all
  // sources are.
  uint64_t add(Source source);
  void remove(uint64_t id);

  struct Page {
    int status = 200;
    std::string type;
    std::string body;
  };
  Page get(const std::string& path);

 private:
  MetricsEndpoint();
  static Result<std::shared_ptr<MetricsEndpoint>> start(const std::string& address);

  std::string address_;
  std::mutex mutex_;  // held while sources are called
  std::map<uint64_t, Source> sources_;
  uint64_t next_id_ = 1;
  std::string metrics_;  // the page, and when it was made; "": it is to be made
  std::chrono::steady_clock::time_point metrics_made_;
  std::unique_ptr<HttpConnections> connections_;
  MHD_Daemon* daemon_ = nullptr;
};

// Removes a source in its destructor.
class MetricsSource {
 public:
  static Result<std::unique_ptr<MetricsSource>> open(const std::string& address,
                                                     MetricsEndpoint::Source source);
  ~MetricsSource() { endpoint_->remove(id_); }
  MetricsSource(const MetricsSource&) = delete;
  MetricsSource& operator=(const MetricsSource&) = delete;
  const std::string& address() const { return endpoint_->address(); }

 private:
  MetricsSource(std::shared_ptr<MetricsEndpoint> endpoint, uint64_t id)
      : endpoint_(std::move(endpoint)), id_(id) {}

  std::shared_ptr<MetricsEndpoint> endpoint_;
  uint64_t id_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_TELEMETRY_METRICS_ENDPOINT_H_
