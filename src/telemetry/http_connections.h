// Limits the connections of an HTTP server, whose library limits only their number and times of inactivity: who sends a line
// of a request every few seconds on each of them would keep all others out.
#ifndef NETSUM_SRC_TELEMETRY_HTTP_CONNECTIONS_H_
#define NETSUM_SRC_TELEMETRY_HTTP_CONNECTIONS_H_

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace netsum {

// Closes a connection by shutting its socket down, which the server notices. Thread rule: any thread may call any method.
class HttpConnections {
 public:
  static constexpr unsigned kMost = 16;
  // From when it is opened, or its last page is sent, until the next page is sent.
  static constexpr std::chrono::seconds kPatience{5};

  ~HttpConnections();
  // False: there is no thread for it.
  bool start();

  void opened(const void* connection, int fd, const std::string& address);
  void completed(const void* connection);
  void closed(const void* connection);

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {
    int fd = -1;
    std::string address;
    Clock::time_point since;
    bool is_shut = false;
  };

  void watch();
  static void shut(Open* connection);
  // With the lock held: shuts the oldest one of the address that has the most.
  void make_room();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::map<const void*, Open> open_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace netsum

#endif  // NETSUM_SRC_TELEMETRY_HTTP_CONNECTIONS_H_
