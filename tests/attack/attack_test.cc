// An attacker on the path against a running job: it reads all packets and sends any, from any address, but
// has no key. Nothing of it may be summed, the results stay right, every packet is accounted for, the job
// ends well.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/communicator.h"
#include "src/base/rng.h"
#include "src/base/soak.h"
#include "tests/attack/forgery.h"
#include "tests/attack/wire_tap.h"
#include "wire/codec.h"

namespace netsum::attack::attack_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{300};
constexpr int kRanks = 2;
constexpr size_t kElements = 50'000;
const uint64_t kForgeries = soak() ? 1'000'000 : 30'000;

class Attack : public testing::Test {
 protected:
  void SetUp() override {
    int error = 0;
    if (!tap_.open(&error)) {
      ASSERT_TRUE(error == EPERM || error == EACCES) << std::strerror(error);
      GTEST_SKIP() << "raw sockets need CAP_NET_RAW";
    }
    AggregatorOptions options;
    options.listen = "127.0.0.1:0";
    options.max_jobs = 1;      // so that the second job gets the first one's index, in the next epoch
    options.in_switch = true;  // sums all
    auto started = Aggregator::start(options);
    ASSERT_TRUE(started.ok()) << started.status().to_string();
    aggregator_ = std::move(started).value();
    const std::string data = aggregator_->status().data_addresses.at(0);
    port_ = static_cast<uint16_t>(std::stoul(data.substr(data.rfind(':') + 1)));
  }

  // Two ranks sum until `stop`, and then once more; every sum is checked. `meanwhile` runs when each has had
  // its first result.
  void run_job(const std::function<void()>& meanwhile) {
    std::atomic<bool> stop{false};
    std::atomic<int> under_way{0};
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        sum_until(stop, rank, [&] { ++under_way; });
        ++under_way;  // also where it failed: nobody waits for it
      });
    }
    while (under_way < kRanks) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    meanwhile();
    stop = true;
    for (std::thread& rank : ranks) rank.join();
  }

  void sum_until(const std::atomic<bool>& stop, int rank, const std::function<void()>& started) {
    CommunicatorOptions options;
    options.rank = rank;
    options.world_size = kRanks;
    options.job = "attacked";
    options.aggregators = {aggregator_->control_address()};
    options.shared_memory = false;
    options.connect_timeout = options.timeout = kPatience;
    auto communicator = Communicator::connect(options);
    ASSERT_TRUE(communicator.ok()) << communicator.status().to_string();
    std::vector<int32_t> tensor(kElements);
    // The ranks agree on the end as they agree on everything: the last element says who has been told to
    // stop.
    for (bool last = false; !last;) {
      for (size_t i = 0; i < kElements; ++i) tensor[i] = static_cast<int32_t>(i) * (rank + 1);
      tensor.back() = stop ? 1 : 0;
      AllReduceOptions reduce;
      reduce.type = DataType::kInt32;
      const Work work =
          communicator.value()->all_reduce(TensorView{tensor.data(), tensor.data(), kElements}, reduce);
      const Status status = work.wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (size_t i = 0; i + 1 < kElements; ++i) ASSERT_EQ(tensor[i], static_cast<int32_t>(i) * 3) << i;
      last = tensor.back() == kRanks;
      started();
    }
    for (const auto& drop : communicator.value()->stats().drops)
      worker_drops_[rank][drop.reason] = drop.packets;
  }

  std::map<std::string, uint64_t> counters() const {
    std::map<std::string, uint64_t> all;
    for (const AggregatorCounter& counter : aggregator_->status().counters) all[counter.name] = counter.value;
    return all;
  }

  // Full contributions, and results, that have crossed the wire.
  void listen(std::vector<Datagram>* contributions, std::vector<Datagram>* results) {
    for (const Datagram& datagram : tap_.take(port_, kDatagram, 100'000)) {
      netsum_fields f;
      const auto size = static_cast<uint32_t>(datagram.bytes.size());
      if (size != kDatagram || netsum_parse(datagram.bytes.data(), size, &f) != NETSUM_DROP_NONE) continue;
      if (f.type == NETSUM_TYPE_CONTRIBUTION) contributions->push_back(datagram);
      if (f.type == NETSUM_TYPE_RESULT) results->push_back(datagram);
    }
  }

  // Sends `count` packets, and not far ahead of what the aggregator refuses: a flood would only show that
  // sockets have limits. What is answered instead of refused, or lost, is not waited for for long.
  void send_all(uint64_t count, const std::function<Datagram()>& next) {
    constexpr uint64_t kAhead = 1024;
    uint64_t outstanding = 0, seen = refused();
    for (uint64_t sent = 0; sent < count; ++sent) {
      const Datagram datagram = next();
      ASSERT_TRUE(tap_.send(datagram.from_port, datagram.to_port, datagram.bytes));
      if (++outstanding < kAhead) continue;
      const auto give_up = Clock::now() + std::chrono::milliseconds(50);
      uint64_t now = refused();
      for (; now < seen + kAhead / 2 && Clock::now() < give_up; now = refused()) std::this_thread::yield();
      outstanding -= std::min(outstanding, now < seen + kAhead / 2 ? kAhead : now - seen);
      seen = now;
    }
  }
  uint64_t refused() const {
    uint64_t sum = 0;
    for (const auto& [name, value] : counters()) sum += is_refusal(name) ? value : 0;
    return sum;
  }
  // Of packets that the aggregator has seen.
  static bool is_refusal(const std::string& name) {
    return name.starts_with("drop_") && name != "drop_queue_full";
  }

  static constexpr size_t kDatagram = NETSUM_HEADER_BYTES + 1440;
  WireTap tap_;
  std::unique_ptr<Aggregator> aggregator_;
  uint16_t port_ = 0;
  std::map<std::string, uint64_t> worker_drops_[kRanks];
};

// From the same address, or another.
Datagram forged_datagram(Rng* rng, const Datagram& model) {
  Datagram forged{.from_port = model.from_port, .to_port = model.to_port, .bytes = forgery(rng, model.bytes)};
  if (rng->chance(0.1)) forged.from_port = static_cast<uint16_t>(1024 + rng->below(60'000));
  return forged;
}

TEST_F(Attack, NothingIsAcceptedWithoutTheKey) {
  std::vector<Datagram> old_contributions, old_results;
  run_job([&] { listen(&old_contributions, &old_results); });
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_GT(old_contributions.size(), 20u);
  std::map<std::string, uint64_t> before = counters();

  Rng rng(1);
  uint64_t forged_for_workers = 0;
  run_job([&] {
    std::vector<Datagram> contributions, results;
    listen(&contributions, &results);
    // What was left of the former job is not this one's.
    const auto is_old = [&](const Datagram& datagram) {
      return std::memcmp(&datagram.bytes[6], &old_contributions[0].bytes[6], sizeof(netsum_be16)) == 0;
    };
    std::erase_if(contributions, is_old);
    std::erase_if(results, is_old);
    ASSERT_GT(contributions.size(), 20u);
    ASSERT_GT(results.size(), 20u);
    const auto any_of = [&](const std::vector<Datagram>& all) { return all[rng.below(all.size())]; };
    const auto deadline = Clock::now() + kPatience;
    for (const uint64_t start = refused(); refused() < start + kForgeries;) {
      send_all(10'000, [&] { return forged_datagram(&rng, any_of(contributions)); });
      ASSERT_LT(Clock::now(), deadline);
    }
    // Replays, from the members' own addresses: of the former epoch, and of this one's rounds of long ago.
    send_all(10'000, [&] { return any_of(old_contributions); });
    send_all(10'000, [&] { return any_of(contributions); });
    for (; forged_for_workers < 20'000; ++forged_for_workers) {
      const Datagram forged = forged_datagram(&rng, any_of(results));
      tap_.send(port_, forged.to_port, forged.bytes);
      if (forged_for_workers % 16 == 0) std::this_thread::yield();
    }
  });
  std::map<std::string, uint64_t> after = counters();
  std::map<std::string, uint64_t> gone_up;
  uint64_t dropped = 0;
  for (const auto& [name, value] : after) {
    gone_up[name] = value - before[name];
    if (!is_refusal(name)) continue;
    dropped += gone_up[name];
    RecordProperty(name, std::to_string(gone_up[name]));
  }
  // Each round took in one contribution of each member, and not one more.
  EXPECT_EQ(gone_up["contributions"], kRanks * gone_up["rounds_completed"]);
  // Every packet was taken in, answered, or refused by name.
  EXPECT_EQ(gone_up["packets_received"], gone_up["contributions"] + gone_up["results_repeated"] +
                                             gone_up["statuses"] + gone_up["hellos"] + dropped);
  EXPECT_EQ(gone_up["mismatches"], 0u);
  for (const char* reason :
       {"too_short", "bad_magic", "bad_length", "bad_check", "stale_epoch", "stale_round"}) {
    EXPECT_GT(gone_up[std::string("drop_") + reason], 1000u) << reason;
  }
  EXPECT_GE(dropped, kForgeries);
  for (const auto& drops : worker_drops_) {
    const auto bad = drops.find("bad_check");
    EXPECT_TRUE(bad != drops.end() && bad->second > 100);
  }
}

}  // namespace
}  // namespace netsum::attack::attack_test
