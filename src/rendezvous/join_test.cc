#include "src/rendezvous/join.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "src/rendezvous/addresses.h"

namespace netsum::join_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Variables = std::map<std::string, std::string>;

// Threads of this process that meet in memory.
class Room {
 public:
  explicit Room(int size) : size_(size), barrier_(size), data_(static_cast<size_t>(size)) {}

  class Place final : public Rendezvous {
   public:
    Place(Room& room, int rank) : room_(room), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return room_.size_; }
    bool broadcast(void* data, size_t bytes) override {
      room_.barrier_.arrive_and_wait();
      if (rank_ == 0) room_.data_[0].assign(static_cast<char*>(data), static_cast<char*>(data) + bytes);
      room_.barrier_.arrive_and_wait();
      std::memcpy(data, room_.data_[0].data(), bytes);
      return true;
    }
    bool gather(const void* mine, void* all, size_t bytes) override {
      const auto* const begin = static_cast<const char*>(mine);
      room_.barrier_.arrive_and_wait();
      room_.data_[static_cast<size_t>(rank_)].assign(begin, begin + bytes);
      room_.barrier_.arrive_and_wait();
      for (size_t r = 0; r < room_.data_.size(); ++r)
        std::memcpy(static_cast<char*>(all) + r * bytes, room_.data_[r].data(), bytes);
      return true;
    }

   private:
    Room& room_;
    const int rank_;
  };

 private:
  const int size_;
  std::barrier<> barrier_;
  std::vector<std::vector<char>> data_;
};

struct Seen {
  std::string text;
  bool joined = false;
  float sum = 0;
};

// Every rank joins with its variables and, if it can, sums its number.
std::vector<Seen> join_all(const std::vector<Variables>& variables, const JoinOptions& common = {}) {
  const int size = static_cast<int>(variables.size());
  Room room(size);
  std::vector<Seen> seen(variables.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Room::Place place(room, rank);
      JoinOptions options = common;
      options.default_prefix = "test";
      options.lookup = [&own = variables[static_cast<size_t>(rank)]](const std::string& name) {
        const auto found = own.find(name);
        return found != own.end() ? found->second : std::string();
      };
      const Joined joined = join(place, options);
      Seen& mine = seen[static_cast<size_t>(rank)];
      mine.text = joined.text;
      mine.joined = joined.comm != nullptr;
      if (joined.comm == nullptr) return;
      const float number = static_cast<float>(rank + 1);
      netsum_work* work = nullptr;
      EXPECT_EQ(netsum_all_reduce(joined.comm, &number, &mine.sum, 1, NETSUM_FLOAT32, NETSUM_SUM, 0, &work),
                0);
      EXPECT_EQ(netsum_work_wait(work, -1), NETSUM_OK) << netsum_last_error();
      netsum_work_free(work);
      netsum_barrier(joined.comm, 0);
      netsum_comm_close(joined.comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

TEST(Join, RanksMeetAndSum) {
  const auto seen = join_all({{}, {}, {}});
  for (const Seen& each : seen) {
    ASSERT_TRUE(each.joined) << each.text;
    EXPECT_EQ(each.sum, 6.0F);
    EXPECT_EQ(each.text, seen[0].text);
    EXPECT_FALSE(each.text.empty());
  }
}

TEST(Join, ADifferenceIsToldToAllRanks) {
  const auto seen = join_all({{}, {{"NETSUM_MTU", "9000"}}, {}});
  for (const Seen& each : seen) {
    EXPECT_FALSE(each.joined);
    EXPECT_THAT(each.text, AllOf(HasSubstr("rank 1: NETSUM_MTU is \"9000\" here but \"1500\" on rank 0")));
  }
  JoinOptions options;
  options.plugin_settings = "LEAST_BYTES=1\n";
  EXPECT_TRUE(join_all({{}, {}}, options)[0].joined);
}

TEST(Join, AnInvalidSettingIsToldToAllRanks) {
  for (const Seen& each : join_all({{}, {{"NETSUM_MTU", "1"}}})) {
    EXPECT_FALSE(each.joined);
    EXPECT_THAT(each.text, HasSubstr("rank 1: NETSUM_MTU=\"1\": must be a whole number from 144 to 9000"));
  }
}

// What is not needed to sum is no reason to refuse a job. The port of the metrics is that of another process: the next one is taken.
TEST(Join, MetricsAndTracesThatCannotBeHadAreWarnedOf) {
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  std::mutex mutex;
  std::vector<std::string> warnings;
  JoinOptions options;
  options.on_warning = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    warnings.push_back(text);
  };
  const Variables in_use = {{"NETSUM_METRICS", "127.0.0.1:" + std::to_string(ntohs(address.sin_port))}};
  for (const Seen& each : join_all({in_use, in_use}, options)) EXPECT_TRUE(each.joined) << each.text;
  EXPECT_THAT(warnings, IsEmpty());
  const Variables bad = {{"NETSUM_METRICS", "192.0.2.1:9470"},
                         {"NETSUM_TRACE", "/no/such/folder/trace.json"}};
  for (const Seen& each : join_all({bad, {}}, options)) EXPECT_TRUE(each.joined) << each.text;
  EXPECT_THAT(warnings,
              UnorderedElementsAre(AllOf(StartsWith("NETSUM_METRICS: "), HasSubstr("192.0.2.1:9470")),
                                   AllOf(StartsWith("NETSUM_TRACE: "), HasSubstr("/no/such/folder"))));
  close(taken);
}

TEST(Join, AnAggregatorThatDoesNotAnswerIsToldToAllRanks) {
  const Variables variables = {{"NETSUM_AGGREGATOR", "127.0.0.1:1"}, {"NETSUM_CONNECT_TIMEOUT", "1"}};
  const auto seen = join_all({variables, variables});
  for (const Seen& each : seen) {
    EXPECT_FALSE(each.joined);
    EXPECT_THAT(each.text, HasSubstr("127.0.0.1:1"));
    EXPECT_EQ(each.text, seen[0].text);
  }
}

TEST(Join, RankZeroThatCannotListenIsToldToAllRanks) {
  const Variables here = {{"NETSUM_CONNECT_TIMEOUT", "2"}};
  Variables elsewhere = here;
  elsewhere["NETSUM_BIND_ADDRESS"] = "192.0.2.1";  // of no machine
  for (const Seen& each : join_all({elsewhere, here})) {
    EXPECT_FALSE(each.joined);
    EXPECT_THAT(each.text, HasSubstr("rank 0: "));
    EXPECT_THAT(each.text, HasSubstr("192.0.2.1"));
  }
}

TEST(Join, TooManyRanksAreRefused) {
  const auto seen = join_all(std::vector<Variables>(65));
  EXPECT_FALSE(seen[64].joined);
  EXPECT_THAT(seen[64].text, HasSubstr("at most 64 ranks"));
}

TEST(Addresses, TheFormOfAnAddress) {
  EXPECT_EQ(with_port("10.0.0.1", 80), "10.0.0.1:80");
  EXPECT_EQ(with_port("fd00::1", 80), "[fd00::1]:80");
  EXPECT_EQ(with_port("[fd00::1]", 0), "[fd00::1]:0");
  EXPECT_EQ(address_towards("127.0.0.1"), "");
  EXPECT_EQ(address_towards("no address"), "");
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_GT(host_identity().size(), 36u);  // a boot id and a namespace
}

}  // namespace
}  // namespace netsum::join_test
