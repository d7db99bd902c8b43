// What metering bursts costs in throughput: the sums of a rank that sends to an aggregator by UDP on loopback. Every second sum has
// two further meters at each packet each way: as many as a rank and its aggregator have, all in the rank's thread. Sums take turns in
// one job, so that what else a machine does meets both alike.
//
//   netsum_meter_bench --benchmark_repetitions=9
//
// `more_time`: of a repetition, the quotient of the medians, less one.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "aggregator/user/dataplane.h"
#include "engine/engine.h"
#include "engine/network_core.h"
#include "src/base/assert.h"
#include "src/base/clock.h"
#include "src/net/udp/udp_io.h"
#include "wire/codec.h"

namespace netsum {
namespace {

constexpr uint32_t kPayload = 1440, kDataSlots = 256, kScaleSlots = 16;
constexpr size_t kElements = size_t{1} << 20;
constexpr uint64_t kLinkBytesPerS = 1'250'000'000, kOverhead = 42;

std::atomic<bool> meters_more;

class MeteredIo final : public PacketIo {
 public:
  explicit MeteredIo(std::unique_ptr<PacketIo> io) : io_(std::move(io)) {}

  void send(std::span<const OutPacket> burst) override {
    io_->send(burst);
    if (!meters_more.load(std::memory_order_relaxed)) return;
    for (bursts::Meter& meter : sent_) meter.add_packets(monotonic_us(), burst, kOverhead);
  }
  size_t receive(std::span<InPacket> burst) override {
    const size_t count = io_->receive(burst);
    if (!meters_more.load(std::memory_order_relaxed)) return count;
    for (bursts::Meter& meter : received_) meter.add_packets(monotonic_us(), burst.first(count), kOverhead);
    return count;
  }
  void wait(int64_t timeout_us) override { io_->wait(timeout_us); }
  void wake() override { io_->wake(); }
  Address local_address() const override { return io_->local_address(); }
  const PacketIoCounters& counters() const override { return io_->counters(); }
  uint64_t overflowed() const override { return io_->overflowed(); }
  std::string_view description() const override { return io_->description(); }

 private:
  const std::unique_ptr<PacketIo> io_;
  // Two: of a rank and its aggregator.
  static bursts::Meter meter() { return bursts::Meter(kLinkBytesPerS, bursts::Meter::kLiveBinNs); }
  std::array<bursts::Meter, 2> sent_ = {meter(), meter()}, received_ = {meter(), meter()};
};

std::unique_ptr<Dataplane> start_aggregator(const DataplaneJob& job) {
  UserDataplaneOptions options;
  options.ports = {{.address = Address::parse("127.0.0.1:0").value(), .rate_bps = 8.0 * kLinkBytesPerS}};
  auto dataplane = start_user_dataplane(options);
  NETSUM_ASSERT(dataplane.ok() && dataplane.value()->install(job).ok());
  return std::move(dataplane).value();
}

std::unique_ptr<Engine> open_engine(const DataplaneJob& job, const Address& aggregator) {
  StripeOptions stripe;
  stripe.address = aggregator;
  stripe.job = job.job;
  stripe.epoch = job.epoch;
  stripe.key = wire::stripe_key(job.key, 0);
  stripe.data_slots = kDataSlots;
  stripe.scale_slots = kScaleSlots;
  stripe.payload_bytes = kPayload;
  WorkerOptions worker;
  worker.stripes = {stripe};
  auto udp = open_udp({.bind = Address::parse("127.0.0.1:0").value()});
  NETSUM_ASSERT(udp.ok());
  std::vector<std::unique_ptr<EngineCore>> cores;
  cores.push_back(std::make_unique<NetworkCore>(std::make_unique<MeteredIo>(std::move(udp).value()), worker,
                                                kLinkBytesPerS));
  auto engine = std::make_unique<Engine>(std::move(cores), [](const Status& status) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
  });
  NETSUM_ASSERT(engine->start().ok());
  return engine;
}

double median(std::vector<double> of) {
  std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2), of.end());
  return of[of.size() / 2];
}

void meters(benchmark::State& state) {
  DataplaneJob job;
  job.job = job.epoch = 1;
  job.members = 1;
  job.data_slots = kDataSlots;
  job.scale_slots = kScaleSlots;
  job.payload_bytes = kPayload;
  const std::unique_ptr<Dataplane> aggregator = start_aggregator(job);
  const std::unique_ptr<Engine> engine = open_engine(job, aggregator->endpoints().front());
  NETSUM_ASSERT(engine->wait_connected(std::chrono::steady_clock::now() + std::chrono::seconds(10)).ok());
  std::vector<float> input(kElements), output(kElements);
  for (size_t i = 0; i < kElements; ++i) input[i] = static_cast<float>(i % 64);
  const auto sum_us = [&](bool more) {
    meters_more = more;
    OperationSpec spec;
    spec.tensors = {{input.data(), output.data(), kElements}};
    const int64_t begin_us = monotonic_us();
    spec.deadline_us = begin_us + 60'000'000;
    NETSUM_ASSERT(engine->submit(std::move(spec)).wait().ok());
    return static_cast<double>(monotonic_us() - begin_us);
  };
  for (const bool more : {false, true}) sum_us(more);
  std::array<std::vector<double>, 2> took_us;  // without, with
  bool first = false;
  for (auto _ : state) {
    first = !first;
    for (const bool more : {first, !first}) took_us[more ? 1 : 0].push_back(sum_us(more));
  }
  NETSUM_ASSERT(output == input);
  state.counters["more_time"] = median(took_us[1]) / median(took_us[0]) - 1;
  state.SetBytesProcessed(static_cast<int64_t>(2 * state.iterations() * kElements * sizeof(float)));
}
BENCHMARK(meters)->UseRealTime()->Iterations(100);

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
