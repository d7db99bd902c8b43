// Jobs for tests: ranks are threads of the test, which meet over loopback.
#ifndef NETSUM_SESSION_JOB_TESTING_H_
#define NETSUM_SESSION_JOB_TESTING_H_

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/communicator.h"

namespace netsum {

// Sums all that its jobs send, unless it is a spare host: on one machine, no link counts.
inline std::unique_ptr<Aggregator> start_aggregator_at(const std::string& address, int mtu = 1500,
                                                       bool in_switch = true) {
  AggregatorOptions options;
  options.listen = address;
  options.mtu = mtu;
  options.in_switch = in_switch;
  auto aggregator = Aggregator::start(options);
  EXPECT_TRUE(aggregator.ok()) << aggregator.status().to_string();
  return aggregator.ok() ? std::move(aggregator).value() : nullptr;
}

// Runs `body` on every rank, connected with the options that `edit` makes of the common ones, when all have connected:
// what a fast rank does, its leaving for example, would otherwise be an error of a slow one's connect(). The body may close
// its communicator.
inline void run_ranks(int world_size, const CommunicatorOptions& common,
                      const std::function<void(int rank, std::unique_ptr<Communicator>& communicator)>& body,
                      const std::function<void(CommunicatorOptions& options)>& edit = nullptr) {
  std::promise<std::string> root_promise;
  const std::shared_future<std::string> root = root_promise.get_future().share();
  std::barrier connected(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = common;
      options.rank = rank;
      options.world_size = world_size;
      if (!common.root.empty() && rank == 0)
        options.on_root_bound = [&](const std::string& address) { root_promise.set_value(address); };
      if (!common.root.empty() && rank != 0) options.root = root.get();
      if (edit) edit(options);
      auto communicator = Communicator::connect(options);
      connected.arrive_and_wait();
      ASSERT_TRUE(communicator.ok()) << "rank " << rank << ": " << communicator.status().to_string();
      std::unique_ptr<Communicator> mine = std::move(communicator).value();
      body(rank, mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Sums `count` numbers that differ between ranks and places, and checks all of them. On every rank.
inline void sum_and_check(Communicator& communicator, size_t count) {
  std::vector<int32_t> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = communicator.rank() * 7 + static_cast<int32_t>(i);
  const Status status = communicator
                            .all_reduce(TensorView{data.data(), data.data(), data.size()},
                                        {.type = DataType::kInt32, .timeout = std::chrono::seconds(60)})
                            .wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
  const int world = communicator.world_size();
  for (size_t i = 0; i < count; ++i)
    ASSERT_EQ(data[i], 7 * world * (world - 1) / 2 + world * static_cast<int32_t>(i)) << i;
}

}  // namespace netsum

#endif  // NETSUM_SESSION_JOB_TESTING_H_
