#include "aggregator/user/queues.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "aggregator/slot/slot.h"
#include "src/net/udp/udp_io.h"

namespace netsum::queues_test {
namespace {

// A port sorted for `max_jobs` jobs, with small buffers, and somebody who sends to it. Packets are told apart
// by their job and type, and by a mark in the member's place.
class QueuedPort {
 public:
  explicit QueuedPort(uint32_t max_jobs) {
    JobQueues queues = queues_for_jobs(max_jobs);
    UdpIoOptions options{.bind = Address::parse("127.0.0.1:0").value()};
    sender_ = open_udp(options).value();
    options.receive_buffer = 16 << 10;
    options.queues = queues.count;
    options.queue_selector = std::move(queues.selector);
    port_ = open_udp(options).value();
  }
  void send(uint8_t type, uint16_t job, uint16_t mark, int times = 1) {
    std::array<uint8_t, 1000> packet{};
    netsum_header header{};
    header.magic = NETSUM_MAGIC;
    header.version_type = static_cast<uint8_t>(NETSUM_VERSION << 4 | type);
    header.job = netsum_put16(job);
    header.member = netsum_put16(mark);
    std::copy_n(reinterpret_cast<const uint8_t*>(&header), sizeof header, packet.begin());
    send(packet.data(), packet.size(), times);
  }
  void send(const uint8_t* bytes, size_t size, int times = 1) {
    for (int i = 0; i < times; ++i) {
      const OutPacket one{bytes, static_cast<uint32_t>(size), port_->local_address()};
      sender_->send({&one, 1});
    }
  }
  uint64_t overflowed() const { return port_->overflowed(); }
  // Marks of all that has arrived; 0 for what has none.
  std::vector<uint16_t> arrived() {
    std::vector<uint16_t> marks;
    std::array<InPacket, 64> burst;
    while (const size_t count = port_->receive(burst)) {
      for (size_t i = 0; i < count; ++i) {
        netsum_header header{};
        if (burst[i].size >= sizeof header) {
          std::copy_n(burst[i].data, sizeof header, reinterpret_cast<uint8_t*>(&header));
        }
        marks.push_back(netsum_get16(header.member));
      }
    }
    return marks;
  }

 private:
  std::unique_ptr<PacketIo> sender_, port_;
};

constexpr int kMoreThanAQueueHolds = 200;
constexpr uint16_t kFlood = 1;

size_t count_of(const std::vector<uint16_t>& marks, uint16_t mark) {
  return static_cast<size_t>(std::count(marks.begin(), marks.end(), mark));
}

TEST(JobQueues, AFloodOfOneJobLeavesTheOthersTheirs) {
  QueuedPort port(4);
  port.send(NETSUM_TYPE_CONTRIBUTION, 2, kFlood, kMoreThanAQueueHolds);
  uint16_t mark = kFlood;
  for (const uint16_t job : {0, 1, 3}) {
    for (const uint8_t type : {NETSUM_TYPE_CONTRIBUTION, NETSUM_TYPE_PROBE, NETSUM_TYPE_HELLO}) {
      port.send(type, job, ++mark);
    }
  }
  // Of parents, who call one of our jobs 2 as well.
  for (uint8_t type = 1; type < 16; ++type) {
    if (netsum_is_parents(type)) port.send(type, 2, ++mark);
  }
  // Of jobs that there are not.
  for (const uint16_t job : {4, 5, 65535}) port.send(NETSUM_TYPE_CONTRIBUTION, job, ++mark);
  const std::vector<uint16_t> marks = port.arrived();
  EXPECT_LT(count_of(marks, kFlood), size_t{kMoreThanAQueueHolds}) << "or the queue was not full";
  EXPECT_EQ(port.overflowed(), kMoreThanAQueueHolds - count_of(marks, kFlood));
  EXPECT_GT(count_of(marks, kFlood), 0u);
  for (uint16_t m = kFlood + 1; m <= mark; ++m) EXPECT_EQ(count_of(marks, m), 1u) << m;
}

TEST(JobQueues, AFloodOfStrayPacketsOrOfParentsLeavesTheJobsTheirs) {
  QueuedPort port(2);
  port.send(NETSUM_TYPE_CONTRIBUTION, 2, kFlood, kMoreThanAQueueHolds);
  port.send(NETSUM_TYPE_RESULT, 0, kFlood, kMoreThanAQueueHolds);
  for (const uint16_t job : {0, 1}) port.send(NETSUM_TYPE_CONTRIBUTION, job, static_cast<uint16_t>(10 + job));
  const std::vector<uint16_t> marks = port.arrived();
  EXPECT_LT(count_of(marks, kFlood), size_t{2 * kMoreThanAQueueHolds});
  EXPECT_EQ(count_of(marks, 10), 1u);
  EXPECT_EQ(count_of(marks, 11), 1u);
}

TEST(JobQueues, WhatIsTooShortForAHeaderArrives) {
  QueuedPort port(4);
  const std::array<uint8_t, 5> bytes{};
  for (size_t size = 1; size <= bytes.size(); ++size) port.send(bytes.data(), size);
  EXPECT_EQ(port.arrived().size(), bytes.size());
}

TEST(JobQueues, MoreJobsThanQueuesShareThem) {
  constexpr uint16_t kJobs = 3 * JobQueues::kMostJobs;
  EXPECT_EQ(queues_for_jobs(kJobs).count, queues_for_jobs(JobQueues::kMostJobs).count);
  QueuedPort port(kJobs);
  for (uint16_t job = 0; job < kJobs; ++job) port.send(NETSUM_TYPE_CONTRIBUTION, job, job);
  EXPECT_EQ(port.arrived().size(), size_t{kJobs});
  // Whose index differs has another queue.
  port.send(NETSUM_TYPE_CONTRIBUTION, JobQueues::kMostJobs + 1, kFlood, kMoreThanAQueueHolds);
  port.send(NETSUM_TYPE_CONTRIBUTION, 2, 99);
  EXPECT_EQ(count_of(port.arrived(), 99), 1u);
}

}  // namespace
}  // namespace netsum::queues_test
