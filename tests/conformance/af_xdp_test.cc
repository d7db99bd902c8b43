// What is particular to AF_XDP: packets arrive by the ring, the rest by the UDP socket, unusable interfaces are refused,
// and other traffic is not affected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "src/base/clock.h"
#include "src/base/file_descriptor.h"
#include "src/net/af_xdp/af_xdp_io.h"
#include "src/net/udp/udp_io.h"
#include "tests/conformance/veth_lab.h"

namespace netsum::af_xdp_test {
namespace {

using conformance::VethLab;
using testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

constexpr int64_t kPatienceUs = 20'000'000;

// Datagrams that the kernel's UDP has received and sent in the namespace of the calling thread.
struct KernelUdp {
  uint64_t received = 0, sent = 0;
};

KernelUdp kernel_udp() {
  std::ifstream file("/proc/thread-self/net/snmp");
  std::string line, names, values;
  while (std::getline(file, line)) {
    if (!line.starts_with("Udp:")) continue;
    (names.empty() ? names : values) = line;
  }
  std::istringstream name(names), value(values);
  KernelUdp out;
  for (std::string key, text; name >> key && value >> text;) {
    if (key == "InDatagrams") out.received = std::stoull(text);
    if (key == "OutDatagrams") out.sent = std::stoull(text);
  }
  return out;
}

bool send_all(int fd, const Bytes& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

class AfXdpTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<std::unique_ptr<VethLab>> probe = VethLab::make(0, {});
    if (!probe.ok() && probe.status().code() == ErrorCode::kPermissionDenied) {
      GTEST_SKIP() << probe.status().message();
    }
  }

  void make_lab(int hosts, int mtu = 1500, bool known_neighbours = true) {
    Result<std::unique_ptr<VethLab>> made =
        VethLab::make(hosts, {.mtu = mtu, .known_neighbours = known_neighbours});
    ASSERT_TRUE(made.ok()) << made.status().message();
    lab_ = std::move(made).value();
  }

  // On a thread of its own in the host's namespace. Sockets that `body` opens stay there.
  void in_host(int host, const std::function<void()>& body) const {
    std::thread([&] {
      const VethLab::Inside inside = lab_->in_host(host);
      body();
    }).join();
  }

  Result<std::unique_ptr<PacketIo>> try_open(int host, AfXdpIoOptions options = {}) const {
    if (!options.remote.valid()) options.remote = VethLab::switch_address(9);
    Result<std::unique_ptr<PacketIo>> io = Status(ErrorCode::kInternal, "not opened");
    in_host(host, [&] { io = open_af_xdp(options); });
    return io;
  }
  std::unique_ptr<PacketIo> open(int host) const {
    Result<std::unique_ptr<PacketIo>> io = try_open(host);
    EXPECT_TRUE(io.ok()) << io.status().to_string();
    return io.ok() ? std::move(io).value() : nullptr;
  }
  std::unique_ptr<PacketIo> open_plain(int host, const char* bind, uint32_t max_packet = 1472) const {
    std::unique_ptr<PacketIo> io;
    UdpIoOptions options;
    options.bind = Address::parse(bind).value();
    options.max_packet = max_packet;
    options.dont_fragment = false;
    in_host(host, [&] { io = open_udp(options).value(); });
    return io;
  }
  KernelUdp kernel_udp_of(int host) const {
    KernelUdp out;
    in_host(host, [&] { out = kernel_udp(); });
    return out;
  }
  void expect_refusal(const Result<std::unique_ptr<PacketIo>>& io, ErrorCode code, const char* words) const {
    ASSERT_FALSE(io.ok());
    EXPECT_EQ(io.status().code(), code) << io.status().message();
    EXPECT_THAT(io.status().message(), HasSubstr(words));
  }

  static void send(PacketIo* from, const Address& to, size_t count, uint32_t size = 1000) {
    const Bytes bytes(size, 0x5A);
    from->send(std::vector<OutPacket>(count, {bytes.data(), size, to}));
  }
  static size_t collect(PacketIo* io, size_t count, int64_t patience_us = kPatienceUs) {
    std::vector<InPacket> burst(64);
    size_t got = 0;
    for (const int64_t deadline_us = monotonic_us() + patience_us;
         got < count && monotonic_us() < deadline_us;) {
      const size_t n = io->receive(burst);
      if (n == 0) io->wait(10'000);
      got += n;
    }
    return got;
  }
  // Datagrams that get lost, as where an interface's queue is full, are sent again.
  static size_t deliver(PacketIo* from, PacketIo* to, const Address& address, size_t count) {
    size_t got = 0;
    for (const int64_t deadline_us = monotonic_us() + kPatienceUs;
         got < count && monotonic_us() < deadline_us;) {
      send(from, address, count - got);
      got += collect(to, count - got, 200'000);
    }
    return got;
  }

  std::unique_ptr<VethLab> lab_;
};

TEST_F(AfXdpTest, PacketsPassByTheKernel) {
  ASSERT_NO_FATAL_FAILURE(make_lab(2));
  const auto a = open(0), b = open(1);
  EXPECT_EQ(a->description(), "af_xdp (copy mode, eth0)");
  const KernelUdp of_a = kernel_udp_of(0), of_b = kernel_udp_of(1);
  EXPECT_EQ(deliver(a.get(), b.get(), b->local_address(), 500), 500u);
  // One a second goes by the socket, and this can take long on a busy machine.
  EXPECT_LT(kernel_udp_of(0).sent, of_a.sent + 100);
  EXPECT_EQ(kernel_udp_of(1).received, of_b.received);
}

TEST_F(AfXdpTest, NeighboursAreFoundOut) {
  ASSERT_NO_FATAL_FAILURE(make_lab(2, 1500, false));
  const auto a = open(0), b = open(1);
  const auto sent_by_ring = [&] { return a->counters().packets_sent.get() - kernel_udp_of(0).sent; };
  for (const int64_t deadline_us = monotonic_us() + kPatienceUs;
       sent_by_ring() == 0 && monotonic_us() < deadline_us;) {
    send(a.get(), b->local_address(), 1);
    EXPECT_EQ(collect(b.get(), 1), 1u);
  }
  EXPECT_GT(sent_by_ring(), 0u);
}

TEST_F(AfXdpTest, ARouterIsTheNextHop) {
  ASSERT_NO_FATAL_FAILURE(make_lab(2));
  const auto a = open(0);
  ASSERT_TRUE(lab_->ip_in_host(1, "address add 10.88.0.1/32 dev lo").ok());
  ASSERT_TRUE(lab_->ip_in_host(0, "route add 10.88.0.0/24 via 10.99.0.2").ok());
  const auto behind = open_plain(1, "10.88.0.1:0");
  const uint64_t by_kernel = kernel_udp_of(0).sent;
  EXPECT_EQ(deliver(a.get(), behind.get(), behind->local_address(), 200), 200u);
  EXPECT_LT(kernel_udp_of(0).sent, by_kernel + 100);
}

TEST_F(AfXdpTest, WhatTheRingCannotCarryGoesByTheSocket) {
  ASSERT_NO_FATAL_FAILURE(make_lab(2));
  const auto a = open(0);
  const auto neighbour = open_plain(0, "127.0.0.1:0");
  Address via_loopback = a->local_address();
  via_loopback.ip = {127, 0, 0, 1};
  send(a.get(), neighbour->local_address(), 10);
  EXPECT_EQ(collect(neighbour.get(), 10), 10u);
  send(neighbour.get(), via_loopback, 10);
  EXPECT_EQ(collect(a.get(), 10), 10u);
  send(a.get(), VethLab::host_address(1, 9), 3, 1473);
  EXPECT_EQ(a->counters().send_refused.get(), 3u) << "above the MTU";
}

TEST_F(AfXdpTest, FragmentsArrive) {
  ASSERT_NO_FATAL_FAILURE(make_lab(2));
  const Result<std::unique_ptr<PacketIo>> a = try_open(0, {.remote = {}, .max_packet = 3000});
  ASSERT_TRUE(a.ok()) << a.status().message();
  const auto b = open_plain(1, "0.0.0.0:0", 3000);
  send(b.get(), a.value()->local_address(), 5, 3000);
  EXPECT_EQ(collect(a.value().get(), 5), 5u);
}

TEST_F(AfXdpTest, OtherTrafficIsUnharmed) {
  ASSERT_NO_FATAL_FAILURE(make_lab(2));
  const auto a = open(0), b = open(1);
  const auto plain = open_plain(1, "0.0.0.0:0");
  constexpr size_t kBytes = 8 << 20;
  sockaddr_storage name{};
  const socklen_t length = VethLab::host_address(1, 5000).to_sockaddr(&name);
  FileDescriptor server, client;
  in_host(1, [&] {
    server = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(server.get(), reinterpret_cast<const sockaddr*>(&name), length), 0);
    ASSERT_EQ(listen(server.get(), 1), 0);
  });
  in_host(0, [&] { client = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); });
  const timeval patience{20, 0};
  for (const int fd : {server.get(), client.get()}) {
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }
  auto sums = std::async(std::launch::async, [&] {
    const FileDescriptor accepted(accept(server.get(), nullptr, nullptr));
    setsockopt(accepted.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    Bytes bytes(kBytes);
    const ssize_t got = recv(accepted.get(), bytes.data(), bytes.size(), MSG_WAITALL);
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes.size(); ++i) sum += bytes[i] * (i + 1);
    return std::pair(got, sum);
  });
  auto stream = std::async(std::launch::async, [&] {
    if (connect(client.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) return uint64_t{0};
    Bytes bytes(kBytes);
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
      sum += bytes[i] * (i + 1);
    }
    return send_all(client.get(), bytes) ? sum : 0;
  });
  // Meanwhile datagrams to our port, and to another of the same host.
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(deliver(a.get(), b.get(), b->local_address(), 50), 50u);
    const Address other_port = VethLab::host_address(1, plain->local_address().port);
    EXPECT_EQ(deliver(a.get(), plain.get(), other_port, 10), 10u);
  }
  const uint64_t sent_sum = stream.get();
  const auto [got, received_sum] = sums.get();
  EXPECT_EQ(got, static_cast<ssize_t>(kBytes));
  EXPECT_NE(sent_sum, 0u);
  EXPECT_EQ(received_sum, sent_sum);
}

TEST_F(AfXdpTest, OneAtATimePerInterface) {
  ASSERT_NO_FATAL_FAILURE(make_lab(2));
  auto a = open(0);
  expect_refusal(try_open(0), ErrorCode::kAddressInUse, "eth0");
  const auto b = open(1);
  send(a.get(), b->local_address(), 10);
  EXPECT_EQ(collect(b.get(), 10), 10u);
  a.reset();
  a = open(0);
  send(b.get(), a->local_address(), 10);
  EXPECT_EQ(collect(a.get(), 10), 10u);
}

TEST_F(AfXdpTest, RefusesWithTheReason) {
  ASSERT_NO_FATAL_FAILURE(make_lab(3, 3400));
  expect_refusal(try_open(0, {.remote = Address::parse("[::1]:1").value()}), ErrorCode::kUnsupported, "IPv4");
  expect_refusal(try_open(0, {.remote = VethLab::host_address(0, 1)}), ErrorCode::kUnreachable,
                 "on this host");
  expect_refusal(try_open(0, {.remote = Address::parse("127.0.0.1:1").value()}), ErrorCode::kUnreachable,
                 "on this host");
  expect_refusal(try_open(0, {.remote = Address::parse("192.0.2.1:1").value()}), ErrorCode::kUnreachable,
                 "192.0.2.1");
  expect_refusal(try_open(0, {.remote = {}, .max_packet = 3777}), ErrorCode::kUnsupported, "3776");
  ASSERT_TRUE(lab_->ip_in_host(0, "link set eth0 mtu 9000").ok());
  expect_refusal(try_open(0), ErrorCode::kUnsupported, "MTU of eth0 is 9000");
  ASSERT_TRUE(
      lab_->ip_in_host(1, "tuntap add t0 mode tun\naddress add 10.97.0.1/24 dev t0\nlink set t0 up").ok());
  expect_refusal(try_open(1, {.remote = Address::parse("10.97.0.2:1").value()}), ErrorCode::kUnsupported,
                 "no Ethernet");
  // An Ethernet without a driver that could.
  ASSERT_TRUE(
      lab_->ip_in_host(2, "link add d0 type bridge\naddress add 10.98.0.1/24 dev d0\nlink set d0 up").ok());
  expect_refusal(try_open(2, {.remote = Address::parse("10.98.0.2:1").value()}), ErrorCode::kUnsupported,
                 "d0 takes no native XDP program");
}

TEST_F(AfXdpTest, RefusesAnInterfaceWithShaping) {
  ASSERT_NO_FATAL_FAILURE(make_lab(1));
  in_host(0,
          [] { ASSERT_EQ(std::system("tc qdisc add dev eth0 root tbf rate 1gbit burst 64k limit 1m"), 0); });
  expect_refusal(try_open(0), ErrorCode::kUnsupported, "queueing discipline tbf");
  in_host(0, [] { ASSERT_EQ(std::system("tc qdisc del dev eth0 root"), 0); });
  EXPECT_TRUE(try_open(0).ok());
}

TEST_F(AfXdpTest, RefusesWithoutPrivilege) {
  ASSERT_NO_FATAL_FAILURE(make_lab(1));
  Result<std::unique_ptr<PacketIo>> io = Status(ErrorCode::kInternal, "not opened");
  // Capabilities are a thread's; one without them does not come back from the namespace.
  in_host(0, [&] {
    std::thread([&] {
      __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
      __user_cap_data_struct none[2] = {};
      ASSERT_EQ(syscall(SYS_capset, &header, none), 0);
      io = open_af_xdp({.remote = VethLab::switch_address(9)});
    }).join();
  });
  expect_refusal(io, ErrorCode::kPermissionDenied, "CAP_NET_RAW");
}

TEST_F(AfXdpTest, AnInterfaceThatVanishesIsSurvived) {
  ASSERT_NO_FATAL_FAILURE(make_lab(2));
  const auto a = open(0);
  const auto local = open_plain(0, "127.0.0.1:0");
  send(a.get(), VethLab::host_address(1, 9), 10);
  ASSERT_TRUE(lab_->ip_in_host(0, "link del eth0").ok());
  send(a.get(), VethLab::host_address(1, 9), 10);
  EXPECT_THAT(std::string(a->description()), HasSubstr("gone"));
  const int64_t begin_us = monotonic_us();
  a->wait(20'000);
  EXPECT_GE(monotonic_us() - begin_us, 20'000) << "it must not spin";
  const uint64_t refused = a->counters().send_refused.get();
  send(a.get(), VethLab::host_address(1, 9), 10);
  EXPECT_EQ(a->counters().send_refused.get(), refused + 10);
  send(a.get(), local->local_address(), 10);
  EXPECT_EQ(collect(local.get(), 10), 10u) << "what needs no interface still goes";
}

}  // namespace
}  // namespace netsum::af_xdp_test
