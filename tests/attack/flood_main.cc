// One flood from this host, for bench/netsum_bench/labs/jobs.py:
//
//   flood forged|tenant|nobody ADDRESS PACKETS_PER_S SECONDS
//
// ADDRESS: of an aggregator's control service, or, for nobody, a UDP endpoint; PACKETS_PER_S 0: as one thread
// can. Says "flooding" once it does, and in the end how many packets it has sent.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/attack/flood.h"

namespace netsum::attack {
namespace {

Result<std::unique_ptr<Flood>> begin(const std::string& kind, const std::string& address, uint64_t rate) {
  if (kind == "forged") return Flood::of_forgeries(address, rate);
  if (kind == "tenant") return Flood::of_tenant(address, rate);
  if (kind == "nobody") return Flood::of_nothing(address, rate);
  return Status(ErrorCode::kInvalidArgument, "no kind of flood: " + kind);
}

int run(const std::string& kind, const std::string& address, uint64_t rate, double seconds) {
  auto flood = begin(kind, address, rate);
  if (!flood.ok()) {
    std::fprintf(stderr, "flood: %s\n", flood.status().to_string().c_str());
    return 1;
  }
  std::printf("flooding\n");
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  flood.value()->stop();
  std::printf("%llu\n", static_cast<unsigned long long>(flood.value()->sent()));
  return 0;
}

}  // namespace
}  // namespace netsum::attack

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: flood forged|tenant|nobody ADDRESS PACKETS_PER_S SECONDS\n");
    return 2;
  }
  return netsum::attack::run(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10), std::atof(argv[4]));
}
