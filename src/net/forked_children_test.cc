#include "src/net/tcp_sockets.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <utility>

#include "src/base/file_descriptor.h"

namespace netsum::forked_children_test {
namespace {

// Runs `body` in a forked child and returns its answer.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 1 : 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

bool is_socket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}
bool is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

// A TCP connection on loopback, as a library holds one.
struct Connection {
  explicit Connection(int family) {
    listening = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_storage name{};
    const Address any = Address::parse(family == AF_INET ? "127.0.0.1:0" : "[::]:0").value();
    socklen_t size = any.to_sockaddr(&name);
    EXPECT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&name), size), 0);
    EXPECT_EQ(listen(listening, 1), 0);
    size = sizeof name;
    EXPECT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&name), &size), 0);
    address = Address::parse("127.0.0.1:1").value();
    address.port = Address::from_sockaddr(name).port;
    client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size = address.to_sockaddr(&name);
    EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&name), size), 0);
    accepted = accept(listening, nullptr, nullptr);
  }
  ~Connection() {
    for (const int fd : {listening, client, accepted}) close(fd);
  }
  int listening = -1, client = -1, accepted = -1;
  Address address;
};

TEST(ForkedChildren, DoNotKeepDescriptorsOfOurs) {
  const FileDescriptor ours(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const int theirs = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  EXPECT_TRUE(in_child([&] { return !is_socket(ours.get()) && is_socket(theirs); }));
  // The number is not free for others: its owner in the child will close it.
  EXPECT_TRUE(in_child([&] { return is_open(ours.get()); }));
  EXPECT_TRUE(is_socket(ours.get()));
  close(theirs);
}

TEST(ForkedChildren, KeepANumberThatIsNoLongerOurs) {
  int number = -1;
  {
    const FileDescriptor ours(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    number = ours.get();
  }
  const int theirs = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(theirs, number);
  EXPECT_TRUE(in_child([&] { return is_socket(theirs); }));
  close(theirs);
}

TEST(ForkedChildren, DoNotKeepConnectionsToARegisteredPeer) {
  const Connection one(AF_INET), other(AF_INET);
  {
    const auto registered = forked_children::TcpSockets::connected_to(one.address);
    EXPECT_TRUE(in_child([&] { return !is_socket(one.client) && is_open(one.client); }));
    EXPECT_TRUE(in_child([&] { return is_socket(one.listening) && is_socket(one.accepted); }));
    EXPECT_TRUE(in_child([&] { return is_socket(other.client) && is_socket(other.accepted); }));
    EXPECT_TRUE(is_socket(one.client));
  }
  EXPECT_TRUE(in_child([&] { return is_socket(one.client); }));
}

TEST(ForkedChildren, DoNotKeepSocketsOfARegisteredPort) {
  for (const int family : {AF_INET, AF_INET6}) {
    const Connection one(family), other(family);
    const auto registered = forked_children::TcpSockets::with_local_port(one.address.port);
    EXPECT_TRUE(in_child([&] { return !is_socket(one.listening) && !is_socket(one.accepted); }));
    EXPECT_TRUE(in_child([&] { return is_socket(one.client) && is_socket(other.listening); }));
  }
}

// The point of it: the other end sees the end of the process although its child lives on.
TEST(ForkedChildren, DoNotHideThatTheirParentIsDead) {
  Connection connection(AF_INET);
  int go[2];
  ASSERT_EQ(pipe2(go, O_CLOEXEC), 0);
  const pid_t rank = fork();
  if (rank == 0) {
    const auto registered = forked_children::TcpSockets::connected_to(connection.address);
    const pid_t worker = fork();
    if (worker == 0) {
      char c = 0;
      [[maybe_unused]] const ssize_t n = read(go[0], &c, 1);  // until the test ends
      _exit(0);
    }
    raise(SIGKILL);
  }
  close(std::exchange(connection.client, -1));
  const timeval patience{30, 0};
  setsockopt(connection.accepted, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  char c = 0;
  EXPECT_EQ(recv(connection.accepted, &c, 1, 0), 0) << "the connection did not end";
  EXPECT_EQ(waitpid(rank, nullptr, 0), rank);
  ASSERT_EQ(write(go[1], "", 1), 1);
  close(go[0]);
  close(go[1]);
}

}  // namespace
}  // namespace netsum::forked_children_test
