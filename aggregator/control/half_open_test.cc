// Strangers who begin calls and connections and do not go on, before any token is asked for: over raw HTTP/2, because a gRPC
// client would not do this.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <set>
#include <thread>

#include "aggregator/control/call_limits.h"
#include "aggregator/control/connections.h"
#include "aggregator/control/control_service.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "src/base/file_descriptor.h"
#include "src/control/client.h"

namespace netsum::half_open_test {
namespace {

using std::chrono::milliseconds;

constexpr int kPatienceS = 30;
constexpr uint32_t kCalls = 20'000;
constexpr long kMostGrowth = 128l << 20;  // of which 80 MiB are the streams of one connection

long resident_bytes() {
  malloc_trim(0);
  long all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// What calls keep. While gRPC receives them faster than they are looked at, as on a busy machine, they take more.
long growth_since(long before) {
  for (int i = 0; i < kPatienceS * 10 && resident_bytes() - before >= kMostGrowth; ++i)
    std::this_thread::sleep_for(milliseconds(100));
  return resident_bytes() - before;
}

FileDescriptor connect_to(const std::string& address, const char* from = "127.0.0.1") {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{}, own{};
  own.sin_family = to.sin_family = AF_INET;
  ::inet_pton(AF_INET, from, &own.sin_addr);
  ::inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  to.sin_port = htons(static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1))));
  const timeval patience{kPatienceS, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << errno;
  return fd;
}

std::string frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string text;
  for (const int shift : {16, 8, 0}) text += static_cast<char>(payload.size() >> shift & 0xff);
  text += static_cast<char>(type);
  text += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) text += static_cast<char>(stream >> shift & 0xff);
  return text + payload;
}

// HTTP/2 on one connection; reads on a thread what the server sends, and counts the streams that it ends.
class Http2 {
 public:
  explicit Http2(const std::string& address, uint32_t window)
      : address_(address), fd_(connect_to(address)), reader_([this] { read(); }) {
    std::string settings("\0\4", 2);  // SETTINGS_INITIAL_WINDOW_SIZE
    for (const int shift : {24, 16, 8, 0}) settings += static_cast<char>(window >> shift & 0xff);
    send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + frame(4, 1, 0, ""));
  }
  ~Http2() {
    ::shutdown(fd_.get(), SHUT_RDWR);
    reader_.join();
  }

  // The headers of a call and, if `request`, an empty message and the end of the stream.
  void call(const std::string& method, bool request) {
    const std::string path = "/netsum.control.Aggregator/" + method;
    std::string headers("\x83\x86", 2);  // POST, http
    headers += std::string("\x04", 1) + static_cast<char>(path.size()) + path;
    headers += std::string("\x01", 1) + static_cast<char>(address_.size()) + address_;
    headers += std::string("\x0f\x10\x10", 3) + "application/grpc";
    headers += std::string("\x00\x02", 2) + "te" + std::string("\x08", 1) + "trailers";
    std::string text = frame(1, 4, next_, headers);
    if (request) text += frame(0, 1, next_, std::string(5, '\0'));
    next_ += 2;
    send(text);
  }

  bool closed() const { return closed_; }
  // The server may end them all with the connection.
  bool wait_until_ended(uint32_t count) const {
    for (int i = 0; i < kPatienceS * 100 && ended_ < count && !closed_; ++i)
      std::this_thread::sleep_for(milliseconds(10));
    return ended_ >= count || closed_;
  }

 private:
  void send(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const ssize_t sent = ::send(fd_.get(), text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += static_cast<size_t>(sent);
    }
  }
  bool take(void* into, size_t bytes) {
    return ::recv(fd_.get(), into, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }
  void read() {
    read_frames();
    closed_ = true;
  }
  void read_frames() {
    uint8_t head[9];
    while (take(head, sizeof head)) {
      std::string payload(size_t{head[0]} << 16 | size_t{head[1]} << 8 | head[2], '\0');
      if (!payload.empty() && !take(payload.data(), payload.size())) return;
      const uint8_t type = head[3], flags = head[4];
      const uint32_t stream =
          uint32_t{head[5]} << 24 | uint32_t{head[6]} << 16 | uint32_t{head[7]} << 8 | head[8];
      if (type == 6 && (flags & 1) == 0) send(frame(6, 1, 0, payload));               // answers pings
      const bool ends = type == 3 || ((type == 0 || type == 1) && (flags & 1) != 0);  // reset, or its end
      if (ends && over_.insert(stream).second) ++ended_;
    }
  }

  const std::string address_;
  const FileDescriptor fd_;
  uint32_t next_ = 1;
  std::atomic<uint32_t> ended_{0};
  std::atomic<bool> closed_{false};
  std::set<uint32_t> over_;  // streams; of the thread that reads
  std::thread reader_;
};

class HalfOpenTest : public ::testing::Test {
 protected:
  void start(milliseconds read_timeout) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    ControlServiceOptions options;
    options.token = "house";
    options.read_timeout = read_timeout;
    auto service = ControlService::start(options, &dataplane_);
    ASSERT_TRUE(service.ok()) << service.status().to_string();
    service_ = std::move(service).value();
    // What gRPC allocates once is no growth.
    EXPECT_TRUE(status().ok());
  }
  Result<RemoteStatus> status() const {
    return query_status(service_->address(), "house", {}, std::chrono::seconds(kPatienceS));
  }

  FakeDataplane dataplane_;
  std::unique_ptr<ControlService> service_;
};

TEST_F(HalfOpenTest, CallsWithoutARequestTakeABoundedAmountOfMemory) {
  start(std::chrono::minutes(1));
  const long before = resident_bytes();
  Http2 stranger(service_->address(), 65535);
  for (uint32_t i = 0; i < kCalls; ++i) stranger.call(i % 2 == 0 ? "Join" : "GetStatus", false);
  EXPECT_TRUE(stranger.wait_until_ended(kCalls - CallLimits::kMostOfOnePeer));
  EXPECT_LT(growth_since(before), kMostGrowth);
}

// Fewer than one connection may have.
TEST_F(HalfOpenTest, MoreCallsOfOnePeerThanItMayHaveAreRefused) {
  start(std::chrono::minutes(1));
  constexpr uint32_t kMany = 3000;
  Http2 stranger(service_->address(), 65535);
  for (uint32_t i = 0; i < kMany; ++i) stranger.call("Fail", false);
  EXPECT_TRUE(stranger.wait_until_ended(kMany - CallLimits::kMostOfOnePeer));
  EXPECT_FALSE(stranger.closed());
}

TEST_F(HalfOpenTest, CallsWithoutARequestEnd) {
  start(milliseconds(500));
  Http2 stranger(service_->address(), 65535);
  constexpr uint32_t kFew = 300;
  for (uint32_t i = 0; i < kFew; ++i) stranger.call(i % 2 == 0 ? "Join" : "Alive", false);
  EXPECT_TRUE(stranger.wait_until_ended(kFew));
  EXPECT_TRUE(status().ok());
}

TEST_F(HalfOpenTest, RepliesThatAreNotReadTakeABoundedAmountOfMemory) {
  start(std::chrono::minutes(1));
  const long before = resident_bytes();
  Http2 stranger(service_->address(), 0);
  for (uint32_t i = 0; i < kCalls; ++i) stranger.call("Leave", true);
  EXPECT_TRUE(stranger.wait_until_ended(kCalls - CallLimits::kMostOfOnePeer));
  EXPECT_LT(growth_since(before), kMostGrowth);
}

TEST_F(HalfOpenTest, OnePeerDoesNotGetAllConnections) {
  start(std::chrono::minutes(1));
  std::vector<FileDescriptor> connections;
  for (size_t i = 0; i < Connections::kMostOfOnePeer + 100; ++i)
    connections.push_back(connect_to(service_->address(), "127.0.0.2"));
  // At least those beyond the limit are closed, which a server does otherwise only after its settings.
  size_t closed = 0;
  for (const FileDescriptor& connection : connections) {
    char bytes[512];
    ssize_t got = ::recv(connection.get(), bytes, sizeof bytes, 0);
    closed += got == 0 || (got < 0 && errno == ECONNRESET);
  }
  EXPECT_EQ(closed, 100u);
  EXPECT_TRUE(status().ok()) << "from another address";
  connections.clear();
  // When the server has seen that they are closed.
  ssize_t got = 0;
  for (int i = 0; i < kPatienceS * 100 && got <= 0; ++i) {
    char bytes[9];
    got = ::recv(connect_to(service_->address(), "127.0.0.2").get(), bytes, sizeof bytes, 0);
    if (got <= 0) std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_GT(got, 0) << "their places are free again";
}

}  // namespace
}  // namespace netsum::half_open_test
