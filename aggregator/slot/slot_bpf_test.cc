// Loads the slot machine through the kernel's BPF verifier and runs it on packets (BPF_PROG_TEST_RUN).
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/slot/slot.h"
#include "wire/codec.h"

namespace netsum {
namespace {

constexpr uint64_t kKey = 0x1122334455667788;
constexpr uint16_t kMembers = 3;
constexpr size_t kUnderlay = 14 + 20 + 8;  // what the program skips

// As in slot_bpf_check.bpf.c.
struct SlotValue {
  netsum_slot slot;
  uint8_t lanes[2][NETSUM_MAX_PAYLOAD];
};

std::string why_not_permitted() {
  const int map = bpf_map_create(BPF_MAP_TYPE_ARRAY, "netsum_probe", 4, 8, 1, nullptr);
  if (map < 0) return std::string("bpf(BPF_MAP_CREATE): ") + std::strerror(errno);
  close(map);
  return "";
}

class SlotBpf : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_permitted(); !why.empty()) GTEST_SKIP() << why;
    object_.reset(bpf_object__open_file(NETSUM_BPF_OBJECT, nullptr));
    ASSERT_NE(object_, nullptr) << NETSUM_BPF_OBJECT << " is made by the test slot_bpf_compile";
    bpf_program* program = bpf_object__find_program_by_name(object_.get(), "netsum_check_program");
    ASSERT_NE(program, nullptr);
    std::vector<char> log(1 << 20);
    bpf_program__set_log_buf(program, log.data(), log.size());
    bpf_program__set_log_level(program, 4);  // statistics, and the reason if it is refused
    ASSERT_EQ(bpf_object__load(object_.get()), 0) << "the verifier refused it: " << log.data();
    RecordProperty("verifier", log.data());
    program_ = bpf_program__fd(program);
    const netsum_job_rules rules{
        .key = kKey, .epoch = 1, .members = kMembers, .slots = 4, .payload_bytes = 1440};
    const uint32_t zero = 0;
    ASSERT_EQ(bpf_map_update_elem(map("jobs"), &zero, &rules, BPF_ANY), 0);
  }

  int map(const char* name) { return bpf_object__find_map_fd_by_name(object_.get(), name); }

  // Returns the program's verdict (XDP_*).
  uint32_t feed(uint16_t member, uint32_t round, uint8_t format, const std::vector<uint8_t>& payload,
                bool damaged = false) {
    netsum_fields f{};
    f.type = NETSUM_TYPE_CONTRIBUTION;
    f.format = format;
    f.epoch = 1;
    f.slot = 2;
    f.member = member;
    f.round = round;
    f.payload_bytes = static_cast<uint32_t>(payload.size());
    std::vector<uint8_t> frame(kUnderlay + NETSUM_HEADER_BYTES + payload.size());
    std::memcpy(&frame[kUnderlay + NETSUM_HEADER_BYTES], payload.data(), payload.size());
    wire::write_header(f, kKey, &frame[kUnderlay]);
    if (damaged) frame.back() ^= 1;
    LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = frame.data(),
                .data_size_in = static_cast<uint32_t>(frame.size()), .repeat = 1);
    EXPECT_EQ(bpf_prog_test_run_opts(program_, &opts), 0) << std::strerror(errno);
    return opts.retval;
  }

  std::unique_ptr<SlotValue> slot() {
    auto value = std::make_unique<SlotValue>();
    const uint32_t index = 2;
    EXPECT_EQ(bpf_map_lookup_elem(map("slots"), &index, value.get()), 0);
    return value;
  }

  uint64_t drops(uint32_t reason) {
    std::vector<uint64_t> per_cpu(static_cast<size_t>(libbpf_num_possible_cpus()));
    EXPECT_EQ(bpf_map_lookup_elem(map("drops"), &reason, per_cpu.data()), 0);
    uint64_t sum = 0;
    for (uint64_t count : per_cpu) sum += count;
    return sum;
  }

  struct Close {
    void operator()(bpf_object* object) const { bpf_object__close(object); }
  };
  std::unique_ptr<bpf_object, Close> object_;
  int program_ = -1;
};

std::vector<uint8_t> lanes32(size_t lanes, uint32_t factor) {
  std::vector<uint8_t> payload(lanes * 4);
  for (size_t i = 0; i < lanes; ++i) {
    netsum_store32(&payload[4 * i], static_cast<uint32_t>(i) * factor - 1000);
  }
  return payload;
}

TEST_F(SlotBpf, TheVerifierTakesItAndItSums) {
  EXPECT_EQ(feed(0, 1, NETSUM_FORMAT_SUM_I32, lanes32(360, 3)), uint32_t{XDP_DROP});
  EXPECT_EQ(feed(1, 1, NETSUM_FORMAT_SUM_I32, lanes32(360, 5)), uint32_t{XDP_DROP});
  EXPECT_EQ(feed(1, 1, NETSUM_FORMAT_SUM_I32, lanes32(360, 5)), uint32_t{XDP_DROP});  // a copy
  EXPECT_EQ(feed(2, 1, NETSUM_FORMAT_SUM_I32, lanes32(360, 7), true), uint32_t{XDP_DROP});
  EXPECT_EQ(slot()->slot.rounds[1].state, NETSUM_ROUND_OPEN);
  EXPECT_EQ(feed(2, 1, NETSUM_FORMAT_SUM_I32, lanes32(360, 7)), uint32_t{XDP_PASS});  // complete
  const auto value = slot();
  EXPECT_EQ(value->slot.rounds[1].state, NETSUM_ROUND_COMPLETE);
  EXPECT_EQ(value->slot.rounds[1].overflow, 0);
  for (uint32_t i = 0; i < 360; ++i) {
    ASSERT_EQ(netsum_load32(&value->lanes[1][4 * i]), i * 15 - 3000) << i;
  }
  EXPECT_EQ(drops(NETSUM_DROP_DUPLICATE), 1u);
  EXPECT_EQ(drops(NETSUM_DROP_BAD_CHECK), 1u);
}

TEST_F(SlotBpf, EveryFormat) {
  const struct {
    uint8_t format, lane_bytes;
    uint64_t a, b, c, expected;
    uint8_t overflow;
  } cases[] = {
      {NETSUM_FORMAT_SUM_I32, 4, 0x7FFFFFFF, 1, 0, 0x80000000, 1},
      {NETSUM_FORMAT_SUM_I64, 8, 0xFFFFFFFF, 1, 5, 0x100000005, 0},
      {NETSUM_FORMAT_MAX_U8, 1, 0x7F, 0x80, 0x01, 0x80, 0},
  };
  uint32_t round = 0;
  for (const auto& c : cases) {
    ++round;
    uint16_t member = 0;
    for (uint64_t lane : {c.a, c.b, c.c}) {
      std::vector<uint8_t> payload(16);
      for (size_t i = 0; i < 16; i += c.lane_bytes) std::memcpy(&payload[i], &lane, c.lane_bytes);
      feed(member++, round, c.format, payload);
    }
    const auto value = slot();
    ASSERT_EQ(value->slot.rounds[round & 1].state, NETSUM_ROUND_COMPLETE);
    EXPECT_EQ(value->slot.rounds[round & 1].overflow, c.overflow);
    for (size_t i = 0; i < 16; i += c.lane_bytes) {
      uint64_t lane = 0;
      std::memcpy(&lane, &value->lanes[round & 1][i], c.lane_bytes);
      EXPECT_EQ(lane, c.expected) << "format " << int{c.format};
    }
  }
}

}  // namespace
}  // namespace netsum
