// What the tag costs the user-space dataplane: its path of a packet (parse, rules, slot, lanes, result) with
// the tags and without, written out here side by side, and AggregatorCore itself. Of each result of four
// members, five tags are made: one per contribution and one of its own. No system calls: the share in a
// daemon, which spends most of its time in the kernel's, is smaller.
//
//   netsum_tag_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=20
//
// Time is per packet. All three must come to the same sums before they are timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "aggregator/user/core.h"
#include "src/base/assert.h"
#include "src/base/rng.h"
#include "src/kernels/kernels.h"
#include "wire/codec.h"

namespace netsum {
namespace {

constexpr uint16_t kMembers = 4;
constexpr uint32_t kSlots = 64;
constexpr uint32_t kPayload = 1440;
constexpr uint32_t kDatagram = NETSUM_HEADER_BYTES + kPayload;
constexpr uint32_t kRounds =
    8;  // then slots are fresh again: 3 MB of packets, more than a second-level cache
constexpr uint32_t kPackets = kRounds * kSlots * kMembers;
constexpr netsum_key kSecret{1, 2};
constexpr netsum_job_rules kRules{
    .epoch = 1, .members = kMembers, .slots = kSlots, .payload_bytes = kPayload};

Address address_of(uint16_t member) {
  Address address;
  address.family = 4;
  address.ip = {10, 0, 0, static_cast<uint8_t>(member)};
  address.port = 1;
  return address;
}

struct Packets {
  wire::PacketKey key{wire::stripe_key(kSecret, 0), kPayload};
  std::vector<uint8_t> bytes = std::vector<uint8_t>(size_t{kPackets} * kDatagram);
  std::vector<InPacket> all;
  std::vector<uint8_t> hellos = std::vector<uint8_t>(kMembers * NETSUM_HEADER_BYTES);

  Packets() {
    Rng rng(1);
    for (uint32_t i = 0; i < kPackets; ++i) {
      uint8_t* packet = &bytes[size_t{i} * kDatagram];
      for (uint32_t lane = 0; lane < kPayload; lane += 4) {
        netsum_store32(packet + NETSUM_HEADER_BYTES + lane, static_cast<uint32_t>(rng.below(1 << 20)));
      }
      netsum_fields f{};
      f.type = NETSUM_TYPE_CONTRIBUTION;
      f.format = NETSUM_FORMAT_SUM_I32;
      f.epoch = 1;
      f.member = static_cast<uint16_t>(i / kSlots % kMembers);
      f.slot = static_cast<uint16_t>(i % kSlots);
      f.round = 1 + i / (kSlots * kMembers);
      f.payload_bytes = kPayload;
      wire::write_header(f, key, packet);
      all.push_back({packet, kDatagram, address_of(f.member)});
    }
    for (uint16_t member = 0; member < kMembers; ++member) {
      netsum_fields f{};
      f.type = NETSUM_TYPE_HELLO;
      f.epoch = 1;
      f.member = member;
      wire::write_header(f, key, &hellos[member * size_t{NETSUM_HEADER_BYTES}]);
    }
  }
};

const Packets& packets() {
  static const Packets made;
  return made;
}

template <bool kTags>
class Path {
 public:
  void begin() { std::fill(slots_.begin(), slots_.end(), netsum_slot{}); }

  // True if the packet completes its round; its result is then in result().
  bool take(const InPacket& packet) {
    netsum_fields f;
    NETSUM_ASSERT(netsum_parse(packet.data, packet.size, &f) == NETSUM_DROP_NONE);
    NETSUM_ASSERT(netsum_check_rules(&f, &kRules) == NETSUM_DROP_NONE);
    const wire::PacketKey& key = packets().key;
    const uint8_t* lanes = packet.data + NETSUM_HEADER_BYTES;
    if constexpr (kTags) {
      NETSUM_ASSERT(
          wire::check_is_right(packet.data, f, key, kernels::nh(lanes, f.payload_bytes, key.table())));
    }
    NETSUM_ASSERT(addresses_[f.member] == packet.from);
    netsum_slot& slot = slots_[f.slot];
    const netsum_verdict verdict = netsum_slot_contribute(&slot, &f);
    frame_ = &frames_[(f.slot * size_t{2} + verdict.bank) * kStride];
    uint8_t* sum = frame_ + NETSUM_HEADER_BYTES;
    bool overflow = false;
    if (verdict.action == NETSUM_ACT_STORE) {
      std::memcpy(sum, lanes, f.payload_bytes);
    } else {
      NETSUM_ASSERT(verdict.action == NETSUM_ACT_ADD);
      overflow = kernels::add_lanes32(sum, lanes, f.payload_bytes / 4);
    }
    if (!netsum_slot_added(&slot, verdict.bank, overflow, &kRules)) return false;
    f.type = NETSUM_TYPE_RESULT;
    f.member = NETSUM_MEMBER_ALL;
    if constexpr (kTags) {
      wire::write_header(f, key, kernels::nh(sum, f.payload_bytes, key.table()), frame_);
    } else {
      std::memcpy(frame_, packet.data, NETSUM_HEADER_BYTES);
    }
    return true;
  }
  const uint8_t* result() const { return frame_ + NETSUM_HEADER_BYTES; }

 private:
  static constexpr size_t kStride = (kDatagram + 63) / 64 * 64;
  std::array<Address, kMembers> addresses_{address_of(0), address_of(1), address_of(2), address_of(3)};
  std::vector<netsum_slot> slots_ = std::vector<netsum_slot>(kSlots);
  std::vector<uint8_t> frames_ = std::vector<uint8_t>(kSlots * 2 * kStride);
  uint8_t* frame_ = nullptr;
};

class WholeCore {
 public:
  void begin() {
    NETSUM_ASSERT(core_
                      .install({.epoch = 1,
                                .key = kSecret,
                                .members = kMembers,
                                .data_slots = kSlots,
                                .payload_bytes = kPayload})
                      .ok());
    for (uint16_t member = 0; member < kMembers; ++member) {
      const uint8_t* hello = &packets().hellos[member * size_t{NETSUM_HEADER_BYTES}];
      core_.on_packet(0, {hello, NETSUM_HEADER_BYTES, address_of(member)});
    }
    core_.clear();
  }
  bool take(const InPacket& packet) {
    if (in_burst_ == AggregatorCore::kMaxBurst) {
      core_.clear();
      in_burst_ = 0;
    }
    ++in_burst_;
    const uint64_t before = core_.counters().rounds_completed.get();
    core_.on_packet(0, packet);
    if (in_burst_ == AggregatorCore::kMaxBurst) benchmark::DoNotOptimize(core_.outbox().data());
    return core_.counters().rounds_completed.get() != before;
  }
  const uint8_t* result() { return core_.outbox().back().data + NETSUM_HEADER_BYTES; }

 private:
  static constexpr AggregatorCore::Limits kLimits{.max_jobs = 1, .slots = kSlots, .payload_bytes = kPayload};
  AggregatorCore core_{kLimits};
  int in_burst_ = 0;
};

// The sums of all rounds, in order.
template <class Aggregator>
std::vector<uint8_t> sums() {
  Aggregator aggregator;
  aggregator.begin();
  std::vector<uint8_t> all;
  for (const InPacket& packet : packets().all) {
    if (!aggregator.take(packet)) continue;
    all.insert(all.end(), aggregator.result(), aggregator.result() + kPayload);
  }
  return all;
}

template <class Aggregator>
void run(benchmark::State& state) {
  static const std::vector<uint8_t> expected = sums<Path<false>>();
  NETSUM_ASSERT(expected.size() == size_t{kRounds} * kSlots * kPayload && sums<Aggregator>() == expected);
  Aggregator aggregator;
  size_t next = kPackets;
  for (auto _ : state) {
    if (next == kPackets) {
      aggregator.begin();
      next = 0;
    }
    benchmark::DoNotOptimize(aggregator.take(packets().all[next++]));
  }
}

BENCHMARK(run<Path<false>>)->Name("without_tags");
BENCHMARK(run<Path<true>>)->Name("with_tags");
BENCHMARK(run<WholeCore>)->Name("aggregator_core");

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
