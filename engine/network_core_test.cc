// A core driven with a virtual clock, as an emulated rank drives it: no thread, no socket, no waiting.
#include "engine/network_core.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace netsum::network_core_test {
namespace {

using ::testing::HasSubstr;

// Counts what is sent; nothing ever arrives.
class SilentIo : public PacketIo {
 public:
  explicit SilentIo(std::vector<uint32_t>* sent) : sent_(sent) {}
  void send(std::span<const OutPacket> burst) override {
    for (const OutPacket& packet : burst) sent_->push_back(packet.size);
  }
  size_t receive(std::span<InPacket>) override { return 0; }
  void wait(int64_t) override { ADD_FAILURE() << "a virtual clock does not sleep"; }
  void wake() override {}
  Address local_address() const override { return Address::parse("127.0.0.1:1").value(); }
  const PacketIoCounters& counters() const override { return counters_; }
  uint64_t overflowed() const override { return 0; }
  std::string_view description() const override { return "silent"; }

 private:
  std::vector<uint32_t>* const sent_;
  PacketIoCounters counters_;
};

WorkerOptions of_two_ranks() {
  WorkerOptions options;
  options.world_size = 2;
  options.stripes.resize(1);
  options.stripes[0].address = Address::parse("127.0.0.1:5152").value();
  return options;
}

TEST(NetworkCoreTest, AVirtualClockDrivesACoreToItsDeadline) {
  std::vector<uint32_t> sent;
  NetworkCore network(std::make_unique<SilentIo>(&sent), of_two_ranks());
  EngineCore& core = network;

  constexpr int64_t kDeadlineUs = 5'000'000;
  std::vector<float> data(100);
  std::vector<EngineCore::Completion> completions;
  int64_t now_us = 0;
  OperationSpec spec;
  spec.tensors = {{data.data(), data.data(), data.size()}};
  spec.deadline_us = kDeadlineUs;
  core.submit(7, std::move(spec));
  for (int turns = 0; completions.empty() && turns < 100'000; ++turns) {
    core.poll();
    EXPECT_FALSE(core.advance(now_us));
    if (now_us >= core.next_tick_us()) core.on_tick(now_us);
    const bool something_was_sent = core.send(now_us);
    core.take_completions(&completions);
    if (!something_was_sent) now_us = std::max(now_us, std::min(core.next_tick_us(), kDeadlineUs));
  }
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].id, 7u);
  EXPECT_EQ(completions[0].status.code(), ErrorCode::kTimeout);
  EXPECT_THAT(completions[0].status.message(), HasSubstr("127.0.0.1:5152 does not answer UDP packets"));
  EXPECT_EQ(now_us, kDeadlineUs);
  EXPECT_GT(sent.size(), 3u) << "greetings, again and again";
  EXPECT_FALSE(core.connected());
}

// One packet that nobody wants comes with every second receive().
class OneByOneIo final : public SilentIo {
 public:
  using SilentIo::SilentIo;
  size_t receive(std::span<InPacket> burst) override {
    if ((++receives_ % 2) == 0) return 0;
    burst[0] = {.data = &byte_, .size = 1, .from = local_address()};
    return 1;
  }

 private:
  uint8_t byte_ = 0;
  int receives_ = 0;
};

TEST(NetworkCoreTest, WherePacketsComeOneByOneItWaitsForTheNext) {
  std::vector<uint32_t> sent;
  NetworkCore core(std::make_unique<OneByOneIo>(&sent), of_two_ranks());
  int looks = 0, packets = 0;
  for (int64_t now_us = 0; now_us < 800; ++now_us) {
    core.poll();
    if (!core.advance(now_us)) continue;
    ++packets;
    if (core.expects_more()) {
      ++looks;
    } else {
      core.poll();  // as after a wait
    }
  }
  EXPECT_GE(looks, packets / 8);
  EXPECT_LE(looks, packets / 8 + 20);
}

}  // namespace
}  // namespace netsum::network_core_test
