#include "src/net/udp/udp_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "src/base/clock.h"
#include "src/net/udp/local_addresses.h"
#include "src/net/udp/sender.h"
#include "src/net/udp/socket.h"

namespace netsum::udp_io_test {
namespace {

using testing::HasSubstr;

Address at(const char* text) {
  return Address::parse(text).value();
}

std::unique_ptr<PacketIo> open_loopback(UdpIoOptions options = {}) {
  options.bind = at("127.0.0.1:0");
  Result<std::unique_ptr<PacketIo>> io = open_udp(options);
  EXPECT_TRUE(io.ok()) << io.status().to_string();
  return std::move(io).value();
}

void expect_error(const UdpIoOptions& options, ErrorCode code, const char* text) {
  const Result<std::unique_ptr<PacketIo>> io = open_udp(options);
  ASSERT_FALSE(io.ok());
  EXPECT_EQ(io.status().code(), code) << io.status().to_string();
  EXPECT_THAT(io.status().message(), HasSubstr(text));
}

TEST(UdpIoTest, PortInUseIsSaid) {
  const std::unique_ptr<PacketIo> first = open_loopback();
  UdpIoOptions options;
  options.bind = first->local_address();
  expect_error(options, ErrorCode::kAddressInUse, options.bind.to_string().c_str());
}

// By the first byte.
UdpIoOptions with_queues(int queues) {
  UdpIoOptions options;
  options.bind = at("127.0.0.1:0");
  options.gro = false;
  options.queues = queues;
  options.queue_selector = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0), BPF_STMT(BPF_RET | BPF_A, 0)};
  return options;
}

void send_bytes(PacketIo* from, PacketIo* to, uint8_t byte, int times) {
  for (int i = 0; i < times; ++i) {
    const OutPacket one{&byte, 1, to->local_address()};
    from->send({&one, 1});
  }
}

TEST(UdpIoTest, QueuesAreReadByTurns) {
  const std::unique_ptr<PacketIo> io = open_udp(with_queues(3)).value();
  const std::unique_ptr<PacketIo> sender = open_loopback();
  send_bytes(sender.get(), io.get(), 1, 1000);
  send_bytes(sender.get(), io.get(), 2, 1);
  std::array<InPacket, 64> burst;
  ASSERT_EQ(io->receive(burst), burst.size());
  const auto is_2 = [](const InPacket& packet) { return packet.data[0] == 2; };
  EXPECT_TRUE(std::any_of(burst.begin(), burst.end(), is_2));
  // Also those that come while the other is being read.
  send_bytes(sender.get(), io.get(), 2, 1);
  ASSERT_EQ(io->receive(burst), burst.size());
  EXPECT_TRUE(std::any_of(burst.begin(), burst.end(), is_2));
  size_t rest = 0;
  while (const size_t count = io->receive(burst)) rest += count;
  EXPECT_EQ(rest, 1002 - 2 * burst.size());
}

TEST(UdpIoTest, WhatNoQueueIsSelectedForArrives) {
  const std::unique_ptr<PacketIo> io = open_udp(with_queues(3)).value();
  const std::unique_ptr<PacketIo> sender = open_loopback();
  send_bytes(sender.get(), io.get(), 77, 10);
  std::array<InPacket, 64> burst;
  EXPECT_EQ(io->receive(burst), 10u);
}

TEST(UdpIoTest, SeveralPortsAreWaitedForTogether) {
  const FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  UdpIoOptions options;
  options.epoll = epoll.get();
  const std::unique_ptr<PacketIo> first = open_loopback(options);
  std::unique_ptr<PacketIo> second = open_loopback(options);
  const std::unique_ptr<PacketIo> sender = open_loopback();
  epoll_event event{};
  const auto is_readable = [&](int timeout_ms) {
    return epoll_wait(epoll.get(), &event, 1, timeout_ms) == 1;
  };
  EXPECT_FALSE(is_readable(0));
  for (PacketIo* port : {first.get(), second.get()}) {
    const uint8_t byte = 7;
    const OutPacket packet{&byte, 1, port->local_address()};
    sender->send({&packet, 1});
    ASSERT_TRUE(is_readable(10'000));
    std::array<InPacket, 4> burst;
    EXPECT_EQ(port->receive(burst), 1u);
    EXPECT_EQ(port->receive(burst), 0u);
    EXPECT_FALSE(is_readable(0));
  }
  second.reset();
  EXPECT_FALSE(is_readable(0));
}

TEST(UdpIoTest, APortWithQueuesIsInUseLikeAnother) {
  const std::unique_ptr<PacketIo> first = open_udp(with_queues(3)).value();
  UdpIoOptions options = with_queues(3);
  options.bind = first->local_address();
  expect_error(options, ErrorCode::kAddressInUse, options.bind.to_string().c_str());
  options.queues = 1;
  expect_error(options, ErrorCode::kAddressInUse, options.bind.to_string().c_str());
}

TEST(UdpIoTest, RefusesQueuesThatCannotWork) {
  expect_error(with_queues(0), ErrorCode::kInvalidArgument, "0 queues");
  expect_error(with_queues(129), ErrorCode::kInvalidArgument, "1 to 128");
  UdpIoOptions options = with_queues(2);
  options.queue_selector = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0)};  // returns nothing
  expect_error(options, ErrorCode::kUnsupported, "queues");
}

TEST(UdpIoTest, AddressOfAnotherHostIsSaid) {
  UdpIoOptions options;
  options.bind = at("198.51.100.7:0");
  expect_error(options, ErrorCode::kInvalidArgument, "198.51.100.7:0");
}

TEST(UdpIoTest, RefusesOptionsThatCannotWork) {
  UdpIoOptions options;
  expect_error(options, ErrorCode::kInvalidArgument, "no address");
  options.bind = at("127.0.0.1:0");
  options.max_packet = 0;
  expect_error(options, ErrorCode::kInvalidArgument, "largest packet 0");
  options.max_packet = 65'508;
  expect_error(options, ErrorCode::kInvalidArgument, "largest packet 65508");
}

TEST(UdpIoTest, DescribesWhatIsInUse) {
  UdpIoOptions options;
  options.gso = options.gro = false;
  EXPECT_EQ(open_loopback(options)->description(), "udp (no GSO, no GRO)");
  EXPECT_THAT(std::string(open_loopback()->description()), HasSubstr("udp ("));
}

// Runs of sizes, as {packets, bytes, destination port} triples, and how the first message is cut.
std::vector<OutPacket> packets(std::initializer_list<std::array<uint32_t, 3>> runs) {
  static const uint8_t kByte = 0;
  std::vector<OutPacket> out;
  for (const auto& [count, size, port] : runs) {
    Address to = at("10.0.0.1:0");
    to.port = static_cast<uint16_t>(port);
    out.insert(out.end(), count, OutPacket{&kByte, size, to});
  }
  return out;
}

TEST(SegmentRunTest, CutsWhereTheKernelMust) {
  EXPECT_EQ(segment_run({}), 0u);
  EXPECT_EQ(segment_run(packets({{1, 1472, 1}})), 1u);
  EXPECT_EQ(segment_run(packets({{5, 1472, 1}})), 5u);
  EXPECT_EQ(segment_run(packets({{5, 1472, 1}, {5, 1472, 2}})), 5u);
  EXPECT_EQ(segment_run(packets({{5, 1472, 1}, {5, 1473, 1}})), 5u);
  EXPECT_EQ(segment_run(packets({{5, 1472, 1}, {5, 100, 1}})), 6u) << "one shorter tail";
  EXPECT_EQ(segment_run(packets({{5, 1472, 1}, {5, 100, 2}})), 5u);
  EXPECT_EQ(segment_run(packets({{5, 1472, 1}, {1, 0, 1}})), 5u) << "an empty packet is no segment";
  EXPECT_EQ(segment_run(packets({{5, 0, 1}})), 1u);
  EXPECT_EQ(segment_run(packets({{100, 8, 1}})), 64u);
  EXPECT_EQ(segment_run(packets({{64, 8, 1}, {1, 4, 1}})), 64u) << "the tail counts";
  EXPECT_EQ(segment_run(packets({{63, 8, 1}, {1, 4, 1}})), 64u);
  EXPECT_EQ(segment_run(packets({{100, 1472, 1}})), 44u) << "65507 / 1472";
  EXPECT_EQ(segment_run(packets({{44, 1472, 1}, {1, 8, 1}})), 44u);
  EXPECT_EQ(segment_run(packets({{100, 9000, 1}})), 7u);
  EXPECT_EQ(segment_run(packets({{3, 65'507, 1}})), 1u);
}

TEST(GatherTest, JoinsPacketsThatAreAdjacent) {
  std::array<uint8_t, 1000> bytes{};
  std::array<iovec, 6> pieces;
  // What is gathered, as {offset, bytes} pairs.
  const auto gathered = [&](std::initializer_list<std::array<uint32_t, 2>> packets) {
    std::vector<OutPacket> run;
    for (const auto& [offset, size] : packets) run.push_back({&bytes[offset], size, {}});
    pieces.fill({nullptr, 77});
    std::vector<std::array<size_t, 2>> all;
    for (size_t i = 0, count = gather(run, pieces.data()); i < count; ++i) {
      const auto offset = static_cast<const uint8_t*>(pieces[i].iov_base) - bytes.data();
      all.push_back({static_cast<size_t>(offset), pieces[i].iov_len});
    }
    EXPECT_EQ(pieces.back().iov_base, nullptr) << "nothing is written behind the last piece";
    return all;
  };
  using Pieces = std::vector<std::array<size_t, 2>>;
  EXPECT_EQ(gathered({}), Pieces());
  EXPECT_EQ(gathered({{0, 100}}), (Pieces{{0, 100}}));
  EXPECT_EQ(gathered({{0, 100}, {100, 100}, {200, 40}}), (Pieces{{0, 240}})) << "the last one is shorter";
  EXPECT_EQ(gathered({{0, 100}, {108, 100}, {208, 100}, {0, 100}, {100, 9}}),
            (Pieces{{0, 100}, {108, 200}, {0, 109}}));
  EXPECT_EQ(gathered({{300, 100}, {200, 100}, {200, 100}}), (Pieces{{300, 100}, {200, 100}, {200, 100}}));
  const OutPacket empty;
  EXPECT_EQ(gather({&empty, 1}, pieces.data()), 1u);
}

// Sends `count` packets of `size` bytes and returns how many of them came, all checked.
size_t exchange(PacketIo* from, PacketIo* to, size_t count, uint32_t size) {
  std::vector<std::vector<uint8_t>> bytes(count, std::vector<uint8_t>(size));
  std::vector<OutPacket> burst;
  for (size_t i = 0; i < count; ++i) {
    std::memset(bytes[i].data(), static_cast<int>(i), size);
    burst.push_back({bytes[i].data(), size, to->local_address()});
  }
  const uint64_t refused_before = from->counters().send_refused.get();
  from->send(burst);
  const size_t expected = count - (from->counters().send_refused.get() - refused_before);
  std::vector<InPacket> got(count);
  size_t received = 0;
  for (const int64_t deadline_us = monotonic_us() + 10'000'000;
       received < expected && monotonic_us() < deadline_us;) {
    to->wait(100'000);
    const size_t n = to->receive(got);
    for (size_t i = 0; i < n; ++i, ++received) {
      EXPECT_EQ(std::vector<uint8_t>(got[i].data, got[i].data + got[i].size), bytes[received]);
      EXPECT_EQ(got[i].from, from->local_address());
    }
  }
  return received;
}

TEST(UdpIoTest, AGroupsSocketTakesOnlyWhatItsSourcesSend) {
  UdpIoOptions options;
  options.multicast_ttl = 1;
  const std::unique_ptr<PacketIo> senders[] = {open_loopback(options), open_loopback(options),
                                               open_loopback(options)};
  UdpIoOptions member;
  member.multicast_groups = {{at("239.77.255.1:0"), at("127.0.0.1:0"), {}}};
  Address group = at("239.77.255.1:0");
  group.port = senders[0]->local_address().port;
  member.multicast_groups[0].multicast_group = group;
  member.multicast_groups[0].sources = {senders[0]->local_address(), senders[2]->local_address()};
  const std::unique_ptr<PacketIo> receiver = open_loopback(member);

  std::vector<uint8_t> bytes(1000);
  std::array<size_t, 3> from{};
  for (const auto& sender : senders) {
    const std::vector<OutPacket> burst(20, {bytes.data(), 1000, group});
    sender->send(burst);
  }
  std::array<InPacket, 64> got;
  // The senders send in turn, so what the second has sent comes before the last of the third.
  for (const int64_t deadline_us = monotonic_us() + 10'000'000;
       from[2] < 20 && monotonic_us() < deadline_us;) {
    receiver->wait(100'000);
    const size_t n = receiver->receive(got);
    for (size_t i = 0; i < n; ++i) {
      for (size_t one = 0; one < 3; ++one) from[one] += got[i].from == senders[one]->local_address() ? 1 : 0;
    }
  }
  EXPECT_EQ(from, (std::array<size_t, 3>{20, 0, 20}));
}

TEST(UdpIoTest, EverySocketInAGroupGetsWhatIsSentToIt) {
  UdpIoOptions options;
  options.multicast_ttl = 1;
  const std::unique_ptr<PacketIo> sender = open_loopback(options);
  UdpIoOptions member;
  member.multicast_groups = {{at("239.77.255.1:0"), at("127.0.0.1:0")}};
  member.multicast_groups[0].multicast_group.port = sender->local_address().port;
  const std::unique_ptr<PacketIo> members[] = {open_loopback(member), open_loopback(member)};
  const std::unique_ptr<PacketIo> stranger = open_loopback();

  const std::vector<uint8_t> to_all(1000, 1), to_one(900, 2);
  std::vector<OutPacket> burst(40, {to_all.data(), 1000, member.multicast_groups[0].multicast_group});
  for (const auto& one : members) burst.push_back({to_one.data(), 900, one->local_address()});
  sender->send(burst);
  for (const auto& one : members) {
    size_t by_group = 0, by_address = 0;
    std::array<InPacket, 7> got;  // fewer than arrive by either way
    for (const int64_t deadline_us = monotonic_us() + 10'000'000;
         by_group + by_address < 41 && monotonic_us() < deadline_us;) {
      one->wait(100'000);
      const size_t n = one->receive(got);
      for (size_t i = 0; i < n; ++i) {
        EXPECT_EQ(got[i].from, sender->local_address());
        ++(got[i].size == 1000 ? by_group : by_address);
      }
    }
    EXPECT_EQ(by_group, 40u);
    EXPECT_EQ(by_address, 1u);
  }
  std::array<InPacket, 1> nothing;
  EXPECT_EQ(stranger->receive(nothing), 0u);
}

TEST(UdpIoTest, SaysWhyItCannotUseAGroup) {
  UdpIoOptions options;
  options.bind = at("127.0.0.1:0");
  options.multicast_groups = {{at("239.77.255.1:7000"), at("198.51.100.7:0")}};
  expect_error(options, ErrorCode::kInvalidArgument, "cannot join multicast group 239.77.255.1:7000");
  options.multicast_groups.assign(UdpIoOptions::kMaxGroups + 1, {at("239.77.255.1:7000"), at("127.0.0.1:0")});
  expect_error(options, ErrorCode::kInvalidArgument, "9 multicast groups are more than 8");
  options.multicast_groups.clear();
  options.bind = at("0.0.0.0:0");
  options.multicast_ttl = 1;
  expect_error(options, ErrorCode::kInvalidArgument, "needs one IPv4 address of this host");
}

// Runs `body` in a network namespace of its own, with a loopback of the given MTU. The namespace is the
// thread's and ends with it. Returns what kept it from being made, or an empty string.
std::string in_namespace(int mtu, const std::function<void()>& body) {
  std::string obstacle;
  std::thread thread([&] {
    if (unshare(CLONE_NEWNET) != 0) {
      obstacle = std::string("cannot make a network namespace: ") + std::strerror(errno);
      return;
    }
    const FileDescriptor control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_mtu = mtu;
    ASSERT_EQ(ioctl(control.get(), SIOCSIFMTU, &request), 0) << std::strerror(errno);
    request.ifr_flags = IFF_UP;
    ASSERT_EQ(ioctl(control.get(), SIOCSIFFLAGS, &request), 0) << std::strerror(errno);
    body();
  });
  thread.join();
  return obstacle;
}

TEST(UdpIoTest, SegmentationIsSwitchedOffWhereOnlyItIsRefused) {
  std::string obstacle = in_namespace(1500, [] {
    // Packets over the MTU may leave as fragments, but a segment may not.
    UdpIoOptions options;
    options.max_packet = 4000;
    options.dont_fragment = false;
    const std::unique_ptr<PacketIo> from = open_loopback(options);
    const std::unique_ptr<PacketIo> to = open_loopback(options);
    if (from->description().find("kernel has no GSO") != std::string_view::npos) return;
    EXPECT_EQ(exchange(from.get(), to.get(), 100, 1400), 100u);
    EXPECT_THAT(std::string(from->description()), testing::Not(HasSubstr("refused")));
    EXPECT_EQ(exchange(from.get(), to.get(), 100, 4000), 100u);
    EXPECT_THAT(std::string(from->description()), HasSubstr("GSO refused by the route"));
    EXPECT_EQ(from->counters().send_refused.get(), 0u);
    EXPECT_EQ(exchange(from.get(), to.get(), 100, 1400), 100u);
    EXPECT_EQ(from->counters().packets_sent.get(), 300u);
  });
  if (!obstacle.empty()) GTEST_SKIP() << obstacle;
}

TEST(UdpIoTest, PacketsOverTheMtuAreRefusedAndTheRestGoes) {
  std::string obstacle = in_namespace(1500, [] {
    UdpIoOptions options;
    options.max_packet = 4000;
    const std::unique_ptr<PacketIo> from = open_loopback(options);
    const std::unique_ptr<PacketIo> to = open_loopback(options);
    const std::string described(from->description());
    EXPECT_EQ(exchange(from.get(), to.get(), 10, 1472), 10u);
    EXPECT_EQ(exchange(from.get(), to.get(), 10, 1473), 0u);
    EXPECT_EQ(from->counters().send_refused.get(), 10u);
    EXPECT_EQ(exchange(from.get(), to.get(), 10, 1472), 10u);
    EXPECT_EQ(from->description(), described) << "it was not the segmentation that was refused";
    // Nor is it if a short last packet passes.
    const std::vector<uint8_t> bytes(4000);
    std::vector<OutPacket> burst(10, {bytes.data(), 4000, to->local_address()});
    burst.back().size = 100;
    from->send(burst);
    EXPECT_EQ(from->counters().send_refused.get(), 19u);
    EXPECT_EQ(from->description(), described);
  });
  if (!obstacle.empty()) GTEST_SKIP() << obstacle;
}

// A socket on a wildcard address is asked at each of `asked`, by packets in one burst, and answers each with runs
// of packets and single ones: they come from the address that was asked.
void expect_answers_from(const char* wildcard, std::initializer_list<const char*> asked, bool gso) {
  UdpIoOptions options;
  options.bind = at(wildcard);
  options.gso = gso;
  options.answer_from_address_asked = true;
  const std::unique_ptr<PacketIo> server = open_udp(options).value();
  std::vector<std::unique_ptr<PacketIo>> clients;
  const uint8_t request = 1;
  for (const char* text : asked) {
    UdpIoOptions client;
    client.bind = at(wildcard);
    clients.push_back(open_udp(client).value());
    const Address local = server->local_address();
    Address to = at(text);
    to.port = local.port;
    clients.back()->send(std::array{OutPacket{&request, 1, to}});
  }
  std::vector<OutPacket> answers;
  const std::vector<uint8_t> bytes(1000);
  std::array<InPacket, 4> got;
  for (const int64_t deadline_us = monotonic_us() + 10'000'000;
       answers.size() < 11 * clients.size() && monotonic_us() < deadline_us;) {
    server->wait(100'000);
    const size_t n = server->receive(got);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_NE(got[i].local, 0);
      answers.insert(answers.end(), 10, {bytes.data(), 1000, got[i].from, got[i].local});
      answers.push_back({bytes.data(), 900, got[i].from, got[i].local});
    }
  }
  server->send(answers);
  size_t number = 0;
  for (const char* text : asked) {
    Address expected = at(text);
    expected.port = server->local_address().port;
    size_t received = 0;
    for (const int64_t deadline_us = monotonic_us() + 10'000'000;
         received < 11 && monotonic_us() < deadline_us;) {
      clients[number]->wait(100'000);
      const size_t n = clients[number]->receive(got);
      for (size_t i = 0; i < n; ++i, ++received) EXPECT_EQ(got[i].from, expected) << got[i].from.to_string();
    }
    EXPECT_EQ(received, 11u) << text;
    ++number;
  }
}

TEST(UdpIoTest, AnswersFromTheAddressAsked) {
  for (const bool gso : {true, false}) {
    expect_answers_from("0.0.0.0:0", {"127.0.0.1:0", "127.0.0.2:0", "127.77.0.3:0"}, gso);
    expect_answers_from("[::]:0", {"[::1]:0"}, gso);
  }
}

TEST(UdpIoTest, AnswersFromTheIpv6AddressAsked) {
  const std::string obstacle = in_namespace(1500, [] {
    // The kernel makes the route to an address later, in a work queue.
    ASSERT_EQ(
        std::system(
            "for address in fd77::1 fd77::2 fe80::77; do ip address add $address/64 dev lo nodad; done; "
            "for address in fd77::1 fd77::2 fe80::77; do timeout 60 sh -c "
            "'until ip route get '$address' oif lo | grep -q ^local; do sleep 0.01; done' || exit 1; "
            "done"),
        0);
    for (const bool gso : {true, false}) {
      expect_answers_from("[::]:0", {"[::1]:0", "[fd77::1]:0", "[fd77::2]:0", "[fe80::77%lo]:0"}, gso);
    }
  });
  if (!obstacle.empty()) GTEST_SKIP() << obstacle;
}

TEST(UdpIoTest, RemembersOnlySoManyOfItsAddresses) {
  LocalAddresses locals;
  std::array<uint8_t, LocalAddresses::kControlBytes> control{};
  msghdr message{};
  message.msg_control = control.data();
  const auto number_of = [&](uint32_t ip) {
    message.msg_controllen = CMSG_SPACE(sizeof(in_pktinfo));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_IP;
    header->cmsg_type = IP_PKTINFO;
    header->cmsg_len = CMSG_LEN(sizeof(in_pktinfo));
    in_pktinfo info{};
    info.ipi_spec_dst.s_addr = ip;
    std::memcpy(CMSG_DATA(header), &info, sizeof info);
    return locals.number_of(&message);
  };
  for (uint32_t ip = 1; ip <= LocalAddresses::kMost; ++ip) EXPECT_EQ(number_of(ip), ip);
  std::array<uint8_t, LocalAddresses::kControlBytes> source{};
  const auto sends_from = [&](uint16_t number) {
    locals.write_source(number, reinterpret_cast<cmsghdr*>(source.data()));
    in_pktinfo info;
    std::memcpy(&info, CMSG_DATA(reinterpret_cast<cmsghdr*>(source.data())), sizeof info);
    return info.ipi_spec_dst.s_addr;
  };
  EXPECT_EQ(sends_from(7), 7u);
  // As many as anybody likes to name: the next one still gets a number, 7 keeps its own, and so does what was just asked.
  EXPECT_EQ(number_of(8), 8);
  for (uint32_t ip = 5000; ip < 5000 + LocalAddresses::kLeastUnanswered; ++ip) {
    const uint16_t number = number_of(ip);
    EXPECT_NE(number, 0);
    EXPECT_NE(number, 7);
    EXPECT_NE(number, 8);
  }
  EXPECT_EQ(number_of(7), 7);
  EXPECT_EQ(sends_from(number_of(6000)), 6000u);
  // All numbers that may be given anew are answered from.
  for (uint32_t ip = 10'000; ip < 20'000; ++ip) {
    const uint16_t number = number_of(ip);
    if (number == 0) break;
    EXPECT_EQ(sends_from(number), ip);
  }
  EXPECT_EQ(number_of(20'000), 0);
  EXPECT_EQ(sends_from(7), 7u);
  message.msg_controllen = 0;
  EXPECT_EQ(locals.number_of(&message), 0) << "the kernel did not say";
}

// What the kernel believes after an ICMP message, which anybody may have sent.
TEST(UdpIoTest, AReportedPathMtuDoesNotLimitWhatIsSent) {
  const std::string obstacle = in_namespace(1500, [] {
    ASSERT_EQ(std::system("ip route change local 127.0.0.1 dev lo table local mtu 600"), 0);
    const std::unique_ptr<PacketIo> from = open_loopback();
    const std::unique_ptr<PacketIo> to = open_loopback();
    EXPECT_EQ(exchange(from.get(), to.get(), 100, 1472), 100u);
    EXPECT_EQ(from->counters().send_refused.get(), 0u);
  });
  if (!obstacle.empty()) GTEST_SKIP() << obstacle;
}

TEST(UdpIoTest, PacketsThatLieSideBySideArriveAsTheyWere) {
  constexpr uint32_t kSize = 1472, kLast = 1000;
  for (const bool gso : {true, false}) {
    UdpIoOptions options;
    options.gso = gso;
    const std::unique_ptr<PacketIo> from = open_loopback(options);
    const std::unique_ptr<PacketIo> to = open_loopback();
    std::vector<uint8_t> bytes(100 * kSize);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 256);
    std::vector<OutPacket> burst;
    for (size_t i = 0; i < 100; ++i) {
      if (i % 10 != 3) burst.push_back({&bytes[i * kSize], kSize, to->local_address()});
    }
    burst.back().size = kLast;
    from->send(burst);
    std::vector<InPacket> got(burst.size());
    size_t received = 0;
    for (const int64_t deadline_us = monotonic_us() + 10'000'000;
         received < burst.size() && monotonic_us() < deadline_us;) {
      to->wait(100'000);
      const size_t n = to->receive(got);
      for (size_t i = 0; i < n && received < burst.size(); ++i, ++received) {
        const OutPacket& sent = burst[received];
        ASSERT_EQ(got[i].size, sent.size);
        EXPECT_EQ(std::memcmp(got[i].data, sent.data, sent.size), 0) << received;
      }
    }
    EXPECT_EQ(received, burst.size());
  }
}

TEST(UdpIoTest, SegmentingSavesMessages) {
  const std::unique_ptr<PacketIo> from = open_loopback();
  const std::unique_ptr<PacketIo> to = open_loopback();
  EXPECT_EQ(exchange(from.get(), to.get(), 880, 1472), 880u);
  // 20 messages of 44 segments, of which one call takes 23: without segmentation it would be 14 calls of 64.
  if (from->description() == "udp (GSO, GRO)") {
    EXPECT_EQ(from->counters().send_calls.get(), 1u);
  }
}

}  // namespace
}  // namespace netsum::udp_io_test
