// A job that sums, and others that flood its aggregator: for the test of what they may take from it, and for
// the measurement of what they do.
#ifndef NETSUM_TESTS_ATTACK_FLOOD_H_
#define NETSUM_TESTS_ATTACK_FLOOD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/status.h"
#include "src/control/client.h"

namespace netsum::attack {

// Ranks that sum until they are ended, and check every sum.
class QuietJob {
 public:
  static constexpr int kRanks = 2;
  static constexpr size_t kElements = 50'000;

  // Waits until every rank has got a sum.
  explicit QuietJob(const std::string& aggregator);
  // Ends the job. The first error, or which sum was wrong.
  Status end();
  // Sums that rank 0 has got.
  uint64_t sums() const { return sums_; }

 private:
  Status sum(int rank);

  const std::string aggregator_;
  std::atomic<bool> stop_{false};
  std::atomic<int> under_way_{0};
  std::atomic<uint64_t> sums_{0};
  Status results_[kRanks];
  std::vector<std::thread> ranks_;
};

// Sends packets at a given rate, or (0) as fast as one thread can.
class Flood {
 public:
  // Of a tenant, with a job of its own: full packets, each of which is answered with a full packet.
  // `aggregator` is its control address.
  static Result<std::unique_ptr<Flood>> of_tenant(const std::string& aggregator, uint64_t packets_per_s);
  // Full packets that name a job, and are refused for their check alone.
  static Result<std::unique_ptr<Flood>> of_forgeries(const std::string& aggregator, uint64_t packets_per_s);
  // The same to a UDP endpoint where nobody reads: what the flood itself costs the machine.
  static Result<std::unique_ptr<Flood>> of_nothing(const std::string& endpoint, uint64_t packets_per_s);
  ~Flood();  // stops

  void stop();
  uint64_t sent() const { return sent_; }

 private:
  explicit Flood(uint64_t packets_per_s) : packets_per_s_(packets_per_s) {}
  static Result<std::unique_ptr<Flood>> of_member(const std::string& aggregator, uint64_t packets_per_s,
                                                  bool knows_the_key);
  Status open(const std::string& endpoint);
  Status say_hello(const std::vector<uint8_t>& hello);
  Status begin(const std::vector<uint8_t>& packet);
  void loop();

  std::unique_ptr<ControlClient> member_;
  const uint64_t packets_per_s_;
  std::vector<uint8_t> run_;  // of packets, one after another
  int fd_ = -1;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> sent_{0};
  std::thread thread_;
};

// The counter of that name; 0 if there is none.
uint64_t counter(const Aggregator& aggregator, const std::string& name);

}  // namespace netsum::attack

#endif  // NETSUM_TESTS_ATTACK_FLOOD_H_
