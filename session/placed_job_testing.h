// Jobs of four ranks for the tests that every place of summing passes; ranks are threads of the test.
#ifndef NETSUM_SESSION_PLACED_JOB_TESTING_H_
#define NETSUM_SESSION_PLACED_JOB_TESTING_H_

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "session/job_testing.h"

namespace netsum {

enum class Place {
  kShards,       // embedded in the ranks
  kLossyShards,  // each rank loses 2 % of what it receives
  kAggregator,
  kAggregators,  // two, which have a part of the chunks each
  kHierarchy,    // two racks of two ranks
  kOneHost,      // shared memory
  kTwoHosts,     // shared memory, and an aggregator
  kFailover,     // an aggregator, with another one to go on at
};

inline std::string place_name(const testing::TestParamInfo<Place>& place) {
  static constexpr std::array kNames = {"Shards",    "LossyShards", "Aggregator", "Aggregators",
                                        "Hierarchy", "OneHost",     "TwoHosts",   "Failover"};
  return kNames.at(static_cast<size_t>(place.param));
}

// A job at a place, and the aggregators that it uses. run() may be called several times.
class PlacedJob {
 public:
  static constexpr int kRanks = 4;

  explicit PlacedJob(Place place) : place_(place) {
    const size_t aggregators[] = {0, 0, 1, 2, 3, 0, 1, 2};
    for (size_t i = 0; i < aggregators[static_cast<size_t>(place)]; ++i) add();
  }

  // Of every rank, before it connects.
  void edit(std::function<void(CommunicatorOptions&)> how) { edit_ = std::move(how); }
  // Calls `body` on every rank, in a thread of its own.
  void run(const std::function<void(Communicator&)>& body, int lane_bits = 0) {
    CommunicatorOptions options;
    options.lane_bits = lane_bits;
    options.job = "placed";
    // On a busy machine.
    options.timeout = options.connect_timeout = options.liveness_timeout = std::chrono::seconds(60);
    options.shared_memory = place_ == Place::kOneHost || place_ == Place::kTwoHosts;
    if (place_ == Place::kLossyShards) options.inject = {.loss = 0.02, .seed = 3};
    if (addresses_.empty()) options.root = "127.0.0.1:0";
    if (place_ == Place::kFailover) {
      options.on_failure = FailurePolicy::kFailover;
      options.fallback_aggregators = {addresses_.at(1)};
    }
    run_ranks(
        kRanks, options, [&](int, std::unique_ptr<Communicator>& communicator) { body(*communicator); },
        [&](CommunicatorOptions& mine) {
          if (place_ == Place::kTwoHosts) mine.host = mine.rank % 2 == 0 ? "even" : "odd";
          mine.aggregators = aggregators_of(mine.rank);
          if (edit_) edit_(mine);
        });
  }

  // Of Place::kFailover: ends the aggregator that the ranks began at.
  void end_aggregator() { aggregators_.at(0).reset(); }

 private:
  void add() {
    AggregatorOptions options;
    options.listen = "127.0.0.1:0";
    options.cores = 2;
    options.in_switch = true;
    if (place_ == Place::kHierarchy) {
      options.cores = 1;
      if (!addresses_.empty()) options.parent = addresses_.front();
    }
    auto aggregator = Aggregator::start(options);
    ASSERT_TRUE(aggregator.ok()) << aggregator.status().to_string();
    addresses_.push_back((*aggregator)->control_address());
    aggregators_.push_back(std::move(aggregator).value());
  }

  std::vector<std::string> aggregators_of(int rank) const {
    if (addresses_.empty() || place_ == Place::kAggregators) return addresses_;
    return {addresses_.at(place_ == Place::kHierarchy ? static_cast<size_t>(1 + rank % 2) : 0)};
  }

  const Place place_;
  std::function<void(CommunicatorOptions&)> edit_;
  std::vector<std::unique_ptr<Aggregator>> aggregators_;
  std::vector<std::string> addresses_;  // of all, also those that have ended
};

}  // namespace netsum

#endif  // NETSUM_SESSION_PLACED_JOB_TESTING_H_
