// What a packet costs in the XDP program: BPF_PROG_TEST_RUN of single contributions, each of its own content,
// by what becomes of them. Needs the right to load BPF programs. Prints nanoseconds: median, and the middle
// half.
#include <linux/bpf.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "tests/conformance/xdp_run.h"
#include "tools/measure/machine.h"

namespace netsum::conformance {
namespace {

constexpr uint16_t kMembers = 64;
constexpr uint32_t kRounds = 200;
constexpr uint32_t kAveraged = 8;

Bytes packet(const VectorJob& job, uint8_t type, uint8_t format, uint16_t member, uint32_t round,
             uint32_t bytes, Rng& rng) {
  netsum_fields f{};
  f.type = type;
  f.format = format;
  f.job = job.job;
  f.epoch = job.epoch;
  f.member = member;
  f.round = round;
  f.payload_bytes = bytes;
  Bytes datagram(NETSUM_HEADER_BYTES + bytes);
  // Small numbers: no lane overflows.
  for (uint32_t i = 0; i < bytes; i += 4) {
    netsum_store32(&datagram[NETSUM_HEADER_BYTES + i], static_cast<uint32_t>(rng.below(1 << 20)));
  }
  wire::write_header(f, wire::stripe_key(job.key, 0), datagram.data());
  return datagram;
}

void print(const std::string& what, uint32_t bytes, std::vector<uint32_t> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("%-34s %5u B  %5u ns  (%u to %u)\n", what.c_str(), bytes, at(0.5), at(0.25), at(0.75));
}

// Of each round, what a packet would cost on average if the job had kAveraged members.
std::vector<uint32_t> averages(const std::vector<uint32_t>& first, const std::vector<uint32_t>& added,
                               const std::vector<uint32_t>& last) {
  std::vector<uint32_t> all;
  for (size_t round = 0; round < first.size(); ++round) {
    uint32_t sum = first[round] + last[round];
    for (size_t i = 0; i < kAveraged - 2; ++i) sum += added[round * (kMembers - 2) + i];
    all.push_back(sum / kAveraged);
  }
  return all;
}

int run() {
  std::string why;
  XdpProgram* program = XdpRun::program(&why);
  if (program == nullptr) {
    std::fprintf(stderr, "xdp_bench: %s\n", why.c_str());
    return 1;
  }
  const tool::Machine machine = tool::this_machine();
  std::printf("%s; %d cores; %s\n", machine.cpu_model.c_str(), machine.cores, machine.kernel.c_str());
  Rng rng(1);
  {  // What the measurement itself costs, and all other traffic pays.
    std::vector<uint32_t> passed;
    Bytes other = frame_around(Bytes(1024), 0);
    other[14 + 9] = 6;  // TCP
    for (int i = 0; i < 20000; ++i) passed.push_back(XdpRun::run(program, other).duration_ns);
    print("other traffic, passed", 1024, passed);
  }
  for (const auto& [name, format] : std::map<std::string, uint8_t>{{"I16", NETSUM_FORMAT_SUM_I16},
                                                                   {"I32", NETSUM_FORMAT_SUM_I32},
                                                                   {"I64", NETSUM_FORMAT_SUM_I64},
                                                                   {"maxima", NETSUM_FORMAT_MAX_U8}}) {
    for (const uint32_t bytes : {32u, 1024u, 1440u}) {
      XdpRun dataplane(program);
      const VectorJob job{.job = 1,
                          .epoch = 1,
                          .key = {98, 99},
                          .members = kMembers,
                          .data_slots = 1,
                          .scale_slots = 0,
                          .payload_bytes = 1440};
      dataplane.install(job);
      for (uint16_t m = 0; m < kMembers; ++m) {
        dataplane.feed(m, packet(job, NETSUM_TYPE_HELLO, NETSUM_FORMAT_NONE, m, 0, 32, rng));
      }
      std::vector<uint32_t> first, added, last;
      for (uint32_t round = 1; round <= kRounds; ++round) {
        for (uint16_t m = 0; m < kMembers; ++m) {
          const XdpRun::Output output = XdpRun::run(
              program, frame_around(packet(job, NETSUM_TYPE_CONTRIBUTION, format, m, round, bytes, rng), m));
          if (output.verdict != (m + 1 == kMembers ? XDP_REDIRECT : XDP_DROP)) {
            std::fprintf(stderr, "xdp_bench: round %u, member %u: verdict %u\n", round, m, output.verdict);
            return 1;
          }
          (m == 0 ? first : m + 1 == kMembers ? last : added).push_back(output.duration_ns);
        }
      }
      print(name + ", first of a round (stored)", bytes, first);
      print(name + ", added", bytes, added);
      print(name + ", last of a round (result made)", bytes, last);
      print(name + ", average in a round of 8", bytes, averages(first, added, last));
    }
  }
  return 0;
}

}  // namespace
}  // namespace netsum::conformance

int main() {
  return netsum::conformance::run();
}
