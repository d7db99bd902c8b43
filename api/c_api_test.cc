// The C interface after failures, as a program written in C meets them: ranks are processes, and die as such.
#include <netsum/netsum.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "session/job_testing.h"

namespace netsum::c_api_test {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kPatienceMs = 20'000;

// A check in a rank's process, which has no gtest to tell.
#define REQUIRE(condition)                                                                  \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, netsum_last_error()); \
      _exit(1);                                                                             \
    }                                                                                       \
  } while (false)

netsum_comm* connect_to(const std::string& aggregators, int rank, bool failover, bool shared_memory = true) {
  netsum_comm_options options = {};
  options.struct_size = sizeof(options);
  options.rank = rank;
  options.world_size = kRanks;
  options.job = "c";
  options.token = "secret";
  const std::string first = aggregators.substr(0, aggregators.find(','));
  const std::string others = first.size() < aggregators.size() ? aggregators.substr(first.size() + 1) : "";
  options.aggregators = first.c_str();
  options.failover = failover ? 1 : 0;
  options.fallback_aggregators = others.c_str();
  options.timeout_ms = kPatienceMs;
  options.no_shared_memory = shared_memory ? 0 : 1;
  netsum_comm* comm = nullptr;
  REQUIRE(netsum_comm_connect(&options, &comm) == NETSUM_OK);
  return comm;
}

// The sum of each rank's `value`, or the code of the error.
int sum(netsum_comm* comm, int32_t value, int32_t* result) {
  std::vector<int32_t> numbers(3000, value);
  netsum_work* work = nullptr;
  int code = netsum_all_reduce(comm, numbers.data(), numbers.data(), numbers.size(), NETSUM_INT32, NETSUM_SUM,
                               0, &work);
  if (code == NETSUM_OK) code = netsum_work_wait(work, -1);
  netsum_work_free(work);
  *result = numbers.back();
  return code;
}

// A bad call: the output is the input, moved by one element.
int sum_to_next_element(netsum_comm* comm) {
  std::vector<int32_t> numbers(101, 1);
  netsum_work* work = nullptr;
  int code =
      netsum_all_reduce(comm, numbers.data(), numbers.data() + 1, 100, NETSUM_INT32, NETSUM_SUM, 0, &work);
  if (code == NETSUM_OK) code = netsum_work_wait(work, -1);
  netsum_work_free(work);
  return code;
}

// Forks before any thread exists in this process: the aggregators are processes, too.
pid_t fork_to(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(60);  // whatever goes wrong, nobody is left behind
  body();
  _exit(0);
}

// An aggregator in a process of its own.
struct AggregatorProcess {
  AggregatorProcess() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid = fork_to([&] {
      const auto aggregator = start_aggregator_at("127.0.0.1:0");
      const std::string told = aggregator->control_address() + "\n";
      REQUIRE(write(ends[1], told.data(), told.size()) == static_cast<ssize_t>(told.size()));
      close(ends[1]);
      pause();
    });
    close(ends[1]);
    for (char c = 0; read(ends[0], &c, 1) == 1 && c != '\n';) address += c;
    close(ends[0]);
  }
  ~AggregatorProcess() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  pid_t pid = -1;
  std::string address;
};

// Runs `body` as every rank; returns how each ended, as waitpid() tells it.
std::vector<int> run_rank_processes(const std::function<void(int rank)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) children.push_back(fork_to([&] { body(rank); }));
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    statuses.push_back(status);
  }
  return statuses;
}

TEST(CApiTest, SurvivorsOfAKilledRankAreToldAndGoOn) {
  const AggregatorProcess aggregator;
  const std::vector<int> ended = run_rank_processes([&](int rank) {
    netsum_comm* comm = connect_to(aggregator.address, rank, false);
    int32_t result = 0;
    REQUIRE(sum(comm, rank, &result) == NETSUM_OK && result == 0 + 1 + 2);
    REQUIRE(netsum_comm_status(comm) == NETSUM_OK);
    REQUIRE(sum_to_next_element(comm) == NETSUM_INVALID_ARGUMENT);
    REQUIRE(std::string(netsum_last_error()).find("overlaps") != std::string::npos);
    REQUIRE(sum(comm, rank, &result) == NETSUM_OK && result == 0 + 1 + 2);
    if (rank == 1) kill(getpid(), SIGKILL);

    int code = NETSUM_OK;
    while (code == NETSUM_OK) code = sum(comm, rank, &result);
    REQUIRE(code == NETSUM_PEER_LOST && netsum_last_error_rank() == 1);
    REQUIRE(netsum_comm_status(comm) == NETSUM_PEER_LOST);

    netsum_regroup_options how = {};
    how.struct_size = sizeof(how);
    how.gather_ms = 500;
    int former_ranks[kRanks] = {-1, -1, -1};
    REQUIRE(netsum_comm_regroup(comm, &how, former_ranks) == NETSUM_OK);
    REQUIRE(former_ranks[0] == 0 && former_ranks[1] == 2);
    REQUIRE(netsum_comm_world_size(comm) == 2 && netsum_comm_rank(comm) == (rank == 0 ? 0 : 1));
    REQUIRE(sum(comm, rank, &result) == NETSUM_OK && result == 0 + 2);
    REQUIRE(netsum_barrier(comm, kPatienceMs) == NETSUM_OK);
    netsum_comm_close(comm);
  });
  EXPECT_TRUE(WIFSIGNALED(ended[1]) && WTERMSIG(ended[1]) == SIGKILL);
  EXPECT_EQ(ended[0], 0);
  EXPECT_EQ(ended[2], 0);
}

TEST(CApiTest, AKilledAggregatorIsNotNoticedWithFailover) {
  const AggregatorProcess first, second;
  const std::vector<int> ended = run_rank_processes([&](int rank) {
    netsum_comm* comm = connect_to(first.address + "," + second.address, rank, true);
    for (int step = 0; step < 50; ++step) {
      if (step == 20 && rank == 0) kill(first.pid, SIGKILL);
      int32_t result = 0;
      REQUIRE(sum(comm, step + rank, &result) == NETSUM_OK && result == 3 * step + 3);
    }
    netsum_comm_close(comm);
  });
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ended[static_cast<size_t>(rank)], 0) << "rank " << rank;
}

// Rank 1 leaves while the others have not begun the operation.
void expect_sums_though_rank_1(bool exits, bool shared_memory, bool failover) {
  const AggregatorProcess aggregator;
  int leaves[2];
  ASSERT_EQ(pipe(leaves), 0);
  const std::vector<int> ended = run_rank_processes([&](int rank) {
    netsum_comm* comm = connect_to(aggregator.address, rank, failover, shared_memory);
    auto& numbers = *new std::vector<int32_t>(3000, rank);  // exit() leaves it
    netsum_work* work = nullptr;
    const auto begin = [&] {
      REQUIRE(netsum_all_reduce(comm, numbers.data(), numbers.data(), numbers.size(), NETSUM_INT32,
                                NETSUM_SUM, 0, &work) == NETSUM_OK);
    };
    if (rank == 1) {
      begin();
      REQUIRE(write(leaves[1], "--", 2) == 2);
      if (exits) exit(0);
    } else {
      char byte;
      REQUIRE(read(leaves[0], &byte, 1) == 1);
      // So that the test fails if rank 1 does not wait; it passes with any time below a second.
      usleep(100'000);
      begin();
      REQUIRE(netsum_work_wait(work, -1) == NETSUM_OK && numbers.back() == 0 + 1 + 2);
    }
    netsum_comm_close(comm);
    REQUIRE(netsum_work_wait(work, 0) == NETSUM_OK && numbers.front() == 0 + 1 + 2);
  });
  for (const int end : leaves) close(end);
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ended[static_cast<size_t>(rank)], 0) << "rank " << rank;
}

TEST(CApiTest, ARankThatExitsDoesItsPartOfWhatIsInFlight) {
  expect_sums_though_rank_1(true, false, false);
  expect_sums_though_rank_1(true, true, false);
  expect_sums_though_rank_1(true, false, true);
}

TEST(CApiTest, ARankThatClosesDoesItsPartOfWhatIsInFlight) {
  expect_sums_though_rank_1(false, false, false);
  expect_sums_though_rank_1(false, true, false);
  expect_sums_though_rank_1(false, false, true);
}

TEST(CApiTest, OptionsWithoutTheirSizeAreRefused) {
  netsum_comm_options options = {};
  netsum_comm* comm = nullptr;
  EXPECT_EQ(netsum_comm_connect(&options, &comm), NETSUM_INVALID_ARGUMENT);
  EXPECT_NE(std::string(netsum_last_error()).find("struct_size"), std::string::npos) << netsum_last_error();
  EXPECT_EQ(comm, nullptr);
}

}  // namespace
}  // namespace netsum::c_api_test
