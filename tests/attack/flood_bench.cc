// What a flood takes from a job on the same aggregator: sums per second of two ranks on this machine, alone
// and beside floods by turns, in one aggregator with one core. Needs a machine with processors to spare: the
// flood itself takes one, which the line "to nobody" shows.
//
//   build/release/tests/attack/flood_bench [--rounds N] [--seconds S] [--flood PACKETS_PER_S] [--quota
//   PACKETS_PER_S]
//
// Prints the median over the rounds, and the quietest and the loudest one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/attack/flood.h"
#include "tools/netsum/machine.h"

namespace netsum::attack {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  int rounds = 5;
  double seconds = 2;
  uint64_t flood = 0;       // packets per second; 0: as many as one thread can send
  int64_t quota = 250'000;  // more than the job needs
};

struct Measured {
  double sums_per_s = 0;
  double flood_per_s = 0;  // packets sent by the flood
  double taken_per_s = 0;  // packets that the aggregator has read in all
};

enum class Kind { kNone, kToNobody, kForged, kTenant };

Result<std::unique_ptr<Flood>> begin(Kind kind, uint64_t rate, const Aggregator& aggregator,
                                     const std::string& nobody) {
  switch (kind) {
    case Kind::kToNobody:
      return Flood::of_nothing(nobody, rate);
    case Kind::kForged:
      return Flood::of_forgeries(aggregator.control_address(), rate);
    case Kind::kTenant:
      return Flood::of_tenant(aggregator.control_address(), rate);
    case Kind::kNone:
      break;
  }
  return std::unique_ptr<Flood>();
}

Result<Measured> measure(Kind kind, uint64_t rate, int64_t quota, double seconds) {
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  options.job_packets_per_second = quota;
  auto aggregator = Aggregator::start(options);
  if (!aggregator.ok()) return aggregator.status();
  // Another aggregator's data port: it refuses the flood at the first byte.
  auto nobody = Aggregator::start(options);
  if (!nobody.ok()) return nobody.status();
  QuietJob job(aggregator.value()->control_address());
  auto flood = begin(kind, rate, *aggregator.value(), nobody.value()->status().data_addresses.at(0));
  if (!flood.ok()) return flood.status();
  const auto sent = [&] { return flood.value() ? flood.value()->sent() : 0; };
  const auto began = Clock::now();
  const uint64_t sums = job.sums(), flooded = sent();
  const uint64_t taken = counter(*aggregator.value(), "packets_received");
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const std::chrono::duration<double> lasted = Clock::now() - began;
  Measured measured{
      static_cast<double>(job.sums() - sums) / lasted.count(),
      static_cast<double>(sent() - flooded) / lasted.count(),
      static_cast<double>(counter(*aggregator.value(), "packets_received") - taken) / lasted.count()};
  if (flood.value()) flood.value()->stop();
  const Status ended = job.end();  // every sum was right
  if (!ended.ok()) return ended;
  return measured;
}

int run(const Settings& settings) {
  const tool::Machine machine = tool::this_machine();
  std::printf("%s; %d cores; %s\n", machine.cpu_model.c_str(), machine.cores, machine.kernel.c_str());
  struct Arm {
    const char* name;
    Kind kind;
    int64_t quota;
    std::vector<Measured> runs;
  };
  std::vector<Arm> arms{{"no flood", Kind::kNone, 0, {}},
                        {"flood to nobody", Kind::kToNobody, 0, {}},
                        {"forged packets", Kind::kForged, 0, {}},
                        {"a tenant, no quota", Kind::kTenant, 0, {}},
                        {"a tenant, quota", Kind::kTenant, settings.quota, {}}};
  for (int round = 0; round < settings.rounds; ++round) {
    for (Arm& arm : arms) {
      const Result<Measured> measured = measure(arm.kind, settings.flood, arm.quota, settings.seconds);
      if (!measured.ok()) {
        std::fprintf(stderr, "flood_bench: %s: %s\n", arm.name, measured.status().to_string().c_str());
        return 1;
      }
      arm.runs.push_back(*measured);
    }
  }
  std::printf("%-20s %24s %16s %16s\n", "", "sums/s (least to most)", "flood packets/s", "read packets/s");
  for (Arm& arm : arms) {
    std::sort(arm.runs.begin(), arm.runs.end(),
              [](const Measured& a, const Measured& b) { return a.sums_per_s < b.sums_per_s; });
    const Measured& median = arm.runs[arm.runs.size() / 2];
    std::printf("%-20s %8.0f (%5.0f to %5.0f) %16.0f %16.0f\n", arm.name, median.sums_per_s,
                arm.runs.front().sums_per_s, arm.runs.back().sums_per_s, median.flood_per_s,
                median.taken_per_s);
  }
  return 0;
}

}  // namespace
}  // namespace netsum::attack

int main(int argc, char** argv) {
  netsum::attack::Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--rounds") settings.rounds = std::atoi(argv[i + 1]);
    if (flag == "--seconds") settings.seconds = std::atof(argv[i + 1]);
    if (flag == "--flood") settings.flood = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--quota") settings.quota = std::atoll(argv[i + 1]);
  }
  return netsum::attack::run(settings);
}
