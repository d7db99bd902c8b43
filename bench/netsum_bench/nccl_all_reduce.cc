// One rank of an all-reduce through the CollNet table of the plug-in of NCCL: nccl_all_reduce BOARD GATE RANK RANKS BYTES
// ITERATIONS WARMUP. The tensor is cut into chunks as NCCL's proxy thread does it for CollNetChain with NCCL_BUFFSIZE's default
// and the plug-in's tuner, up to eight of them in flight. All ranks start an iteration together by the gate; each checks its
// part of every result, and prints what start_gate.py, combine(), takes as JSON.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nccl/harness.h"
#include "tools/measure/start_gate.h"

namespace netsum::nccl {
namespace {

constexpr size_t kChunkBytes = (size_t{4} << 20) / 8;  // an eighth of the buffer
constexpr size_t kMostInFlight = 8;                    // NCCL_STEPS
constexpr int64_t kNapNs = 20'000;
constexpr int64_t kGateTimeoutNs = int64_t{120} * 1'000'000'000;

// Small whole numbers, so that the sum is exact; other numbers in each iteration.
float input(size_t i, int rank, int iteration) {
  return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 13 + static_cast<size_t>(iteration)) % 1000);
}

// NCCL's proxy threads poll without a pause. Here all ranks share this machine's cores, and need them for their sums.
void wait_for(const CollNetApi& api, void* request) {
  int done = 0;
  while (true) {
    require(api.test(request, &done, nullptr) == kSuccess, "a chunk ends");
    if (done != 0) return;
    start_gate_sleep_until(start_gate_now_ns() + kNapNs);
  }
}

void all_reduce(const CollNetApi& api, void* comm, std::vector<float>& in, std::vector<float>& out) {
  constexpr size_t kChunk = kChunkBytes / sizeof(float);
  std::deque<void*> in_flight;
  for (size_t begin = 0; begin < in.size() || !in_flight.empty();) {
    if (begin < in.size() && in_flight.size() < kMostInFlight) {
      const size_t count = std::min(kChunk, in.size() - begin);
      void* request = nullptr;
      require(api.all_reduce(comm, &in[begin], &out[begin], count, kFloat32, kSum, &request) == kSuccess,
              "all_reduce");
      if (request != nullptr) {
        in_flight.push_back(request);
        begin += count;
        continue;
      }
    }
    wait_for(api, in_flight.front());
    in_flight.pop_front();
  }
}

// Each rank checks a part; the checksums, of everything, are compared.
int64_t wrong_sums(const std::vector<float>& out, int rank, int ranks, int iteration) {
  const auto first = [&](int r) { return out.size() * static_cast<size_t>(r) / static_cast<size_t>(ranks); };
  int64_t wrong = 0;
  for (size_t i = first(rank); i < first(rank + 1); ++i) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += input(i, r, iteration);
    wrong += out[i] != sum ? 1 : 0;
  }
  return wrong;
}

int64_t checksum(const std::vector<float>& values) {
  uint64_t hash = values.size();
  for (const float value : values) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x9E3779B97F4A7C15u;
  return static_cast<int64_t>(hash >> 1);
}

struct Settings {
  const char* board;
  const char* gate;
  int rank, ranks;
  size_t bytes;
  int iterations, warmup;
};

nlohmann::json measure(const Settings& settings) {
  const CollNetApi api = load_coll_net(kVersions.back());
  void* const comm = join_collective(api, Board::open(settings.board), settings.rank, settings.ranks);
  StartGate gate = {};
  require(start_gate_open(&gate, settings.gate, settings.rank, settings.ranks) == 0, "the gate");
  std::vector<float> in(settings.bytes / sizeof(float)), out(in.size());
  const bool counts_busy = settings.bytes >= kStartGateBusyBytes;
  int64_t wrong = 0;
  nlohmann::json sums = nlohmann::json::array(), stamps = nlohmann::json::array();
  for (int n = 0; n < settings.warmup + settings.iterations; ++n) {
    for (size_t i = 0; i < in.size(); ++i) in[i] = input(i, settings.rank, n);
    std::fill(out.begin(), out.end(), -1.0F);
    const int64_t busy_before = counts_busy ? machine_busy_ticks() : 0;
    require(start_gate_wait(&gate, 2 * n + 1, kGateTimeoutNs) == 0, "all ranks come to an iteration");
    const int64_t start = start_gate_now_ns();
    all_reduce(api, comm, in, out);
    const int64_t end = start_gate_now_ns();
    const int64_t busy_after = counts_busy ? machine_busy_ticks() : 0;
    // Ranks that check would delay those that still sum.
    require(start_gate_wait(&gate, 2 * n + 2, kGateTimeoutNs) == 0, "all ranks end an iteration");
    wrong += wrong_sums(out, settings.rank, settings.ranks, n);
    if (n < settings.warmup) continue;
    sums.push_back(checksum(out));
    stamps.push_back({start, end, busy_before, busy_after});
  }
  require(api.close(comm) == kSuccess, "close");
  return {{"wrong", wrong}, {"sums", sums}, {"stamps", stamps}, {"log", log_text()}};
}

}  // namespace
}  // namespace netsum::nccl

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "usage: nccl_all_reduce BOARD GATE RANK RANKS BYTES ITERATIONS WARMUP\n");
    return 2;
  }
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  std::cout << netsum::nccl::measure({argv[1], argv[2], number(3), number(4),
                                      std::strtoull(argv[5], nullptr, 10), number(6), number(7)})
            << "\n";
  return 0;
}
