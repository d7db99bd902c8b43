// What the threads of an engine carry, without a network: each has packet I/O that hands its packets to aggregator cores in
// memory, whose job has one member, and gets their answers back. So a thread does all of a worker's work on each packet, and
// the sum of one contribution, but no system call.
//
//   netsum_engine_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=20
//
// Two threads on two idle cores should come near to twice the speed of one: they share nothing. With `meters` every packet is metered
// once more each way than in a communicator: the difference is what the meters of bursts cost, in parts of a worker without
// system calls.
#include <benchmark/benchmark.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "aggregator/user/core.h"
#include "engine/engine.h"
#include "engine/network_core.h"
#include "src/base/assert.h"
#include "src/base/clock.h"
#include "src/worker/core_group.h"
#include "wire/codec.h"

namespace netsum {
namespace {

constexpr size_t kStripes = 4;
constexpr uint32_t kPayload = 1440, kDataSlots = 256, kScaleSlots = 16;
constexpr size_t kElements = size_t{2} << 20;
constexpr uint64_t kLinkBytesPerS = 1'250'000'000, kOverhead = 42;

Address stripe_address(size_t stripe) {
  return Address::parse("10.0.0.1:" + std::to_string(1000 + stripe)).value();
}

DataplaneJob job() {
  DataplaneJob job;
  job.job = 1;
  job.epoch = 1;
  job.members = 1;
  job.data_slots = kDataSlots;
  job.scale_slots = kScaleSlots;
  job.payload_bytes = kPayload;
  return job;
}

// A sink that answers from memory. Aggregator cores for the stripes of one thread.
class SinkIo final : public PacketIo {
 public:
  SinkIo(const CoreGroup& group, size_t core, bool meters) : meters_(meters) {
    for (size_t stripe = 0; stripe < kStripes; ++stripe) {
      if (group.core_of(stripe) != core) continue;
      auto sink = std::make_unique<AggregatorCore>(AggregatorCore::Limits{
          .max_jobs = 4, .slots = kDataSlots + kScaleSlots, .payload_bytes = kPayload});
      NETSUM_ASSERT(sink->install(job(), stripe).ok());
      sinks_.emplace(stripe_address(stripe).port, std::move(sink));
    }
  }

  void send(std::span<const OutPacket> burst) override {
    const int64_t now_us = monotonic_us();
    if (meters_) sent_.add_packets(now_us, burst, kOverhead);
    for (const OutPacket& packet : burst) {
      AggregatorCore& sink = *sinks_.at(packet.to.port);
      sink.on_packet(now_us, {packet.data, packet.size, local_address()});
      for (const OutPacket& answer : sink.outbox())
        answers_.push_back({packet.to, std::vector<uint8_t>(answer.data, answer.data + answer.size)});
      sink.clear();
    }
  }
  size_t receive(std::span<InPacket> burst) override {
    taken_.clear();
    while (taken_.size() < burst.size() && !answers_.empty()) {
      taken_.push_back(std::move(answers_.front()));
      answers_.pop_front();
      const Answer& answer = taken_.back();
      burst[taken_.size() - 1] = {answer.bytes.data(), static_cast<uint32_t>(answer.bytes.size()),
                                  answer.from};
    }
    if (meters_) received_.add_packets(monotonic_us(), burst.first(taken_.size()), kOverhead);
    return taken_.size();
  }
  void wait(int64_t timeout_us) override {
    if (!answers_.empty()) return;
    std::unique_lock lock(mutex_);
    const auto limit = std::chrono::microseconds(timeout_us < 0 ? 1'000'000 : timeout_us);
    changed_.wait_for(lock, limit, [this] { return std::exchange(woken_, false); });
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }
  Address local_address() const override { return Address::parse("10.0.0.2:1").value(); }
  const PacketIoCounters& counters() const override { return counters_; }
  uint64_t overflowed() const override { return 0; }
  std::string_view description() const override { return "sink"; }

 private:
  struct Answer {
    Address from;
    std::vector<uint8_t> bytes;
  };
  const bool meters_;
  bursts::Meter sent_{kLinkBytesPerS, bursts::Meter::kLiveBinNs};
  bursts::Meter received_{kLinkBytesPerS, bursts::Meter::kLiveBinNs};
  std::map<uint16_t, std::unique_ptr<AggregatorCore>> sinks_;  // by port
  std::deque<Answer> answers_;
  std::vector<Answer> taken_;
  PacketIoCounters counters_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

std::unique_ptr<Engine> open_engine(size_t threads, bool meters) {
  WorkerOptions worker;
  for (size_t i = 0; i < kStripes; ++i) {
    StripeOptions stripe;
    stripe.address = stripe_address(i);
    stripe.job = job().job;
    stripe.epoch = job().epoch;
    stripe.key = wire::stripe_key(job().key, i);
    stripe.data_slots = kDataSlots;
    stripe.scale_slots = kScaleSlots;
    stripe.payload_bytes = kPayload;
    worker.stripes.push_back(stripe);
  }
  const std::vector<uint32_t> weights(kStripes, 1);
  worker.group = std::make_shared<CoreGroup>(divide_stripes(weights, threads));
  std::vector<std::unique_ptr<EngineCore>> cores;
  for (worker.core = 0; worker.core < threads; ++worker.core)
    cores.push_back(std::make_unique<NetworkCore>(
        std::make_unique<SinkIo>(*worker.group, worker.core, meters), worker, kLinkBytesPerS));
  auto engine = std::make_unique<Engine>(std::move(cores), [](const Status& status) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
  });
  NETSUM_ASSERT(engine->start().ok());
  return engine;
}

void run(benchmark::State& state, size_t threads, bool meters) {
  const std::unique_ptr<Engine> engine = open_engine(threads, meters);
  NETSUM_ASSERT(engine->wait_connected(std::chrono::steady_clock::now() + std::chrono::seconds(10)).ok());
  std::vector<float> input(kElements), output(kElements);
  for (size_t i = 0; i < kElements; ++i) input[i] = static_cast<float>(i % 64);
  for (auto _ : state) {
    OperationSpec spec;
    spec.tensors = {{input.data(), output.data(), kElements}};
    spec.deadline_us = monotonic_us() + 60'000'000;
    NETSUM_ASSERT(engine->submit(std::move(spec)).wait().ok());
  }
  NETSUM_ASSERT(output == input);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kElements * sizeof(float)));
}

void threads(benchmark::State& state) {
  run(state, static_cast<size_t>(state.range(0)), false);
}
BENCHMARK(threads)->Arg(1)->Arg(2)->UseRealTime();

void meters(benchmark::State& state) {
  run(state, 1, true);
}
BENCHMARK(meters)->UseRealTime();

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
