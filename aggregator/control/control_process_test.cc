// Members and aggregators as processes of their own, which are killed or stopped.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "aggregator/control/connections.h"
#include "aggregator/control/control_service.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "src/base/assert.h"
#include "src/base/clock.h"
#include "src/control/client.h"

extern char** environ;

namespace netsum::control_process_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kPatience{30'000};
constexpr milliseconds kShort{1'000}, kLong{60'000};  // silence that counts as a loss
constexpr unsigned kChildSeconds = 60;                // a child that is forgotten ends itself

JoinParameters parameters(const std::string& address, int rank, int world_size,
                          milliseconds liveness = milliseconds(0)) {
  JoinParameters join;
  join.address = address;
  join.job.set_name("train");
  join.rank = rank;
  join.job.set_world_size(world_size);
  join.timeout = kPatience;
  join.liveness = liveness;
  return join;
}

// This test program again, in one of the roles of child_main(). The destructor kills it and the children that it has
// forked: these hold the output of the test, for whose end ctest waits.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments) {
    int ends[2];
    NETSUM_ASSERT(::pipe2(ends, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<char*> argv;
    std::string self = "/proc/self/exe";
    std::vector<std::string> copies = arguments;
    argv.push_back(self.data());
    for (std::string& copy : copies) argv.push_back(copy.data());
    argv.push_back(nullptr);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // a process group of its own
    NETSUM_ASSERT(::posix_spawn(&pid_, self.c_str(), &actions, &attributes, argv.data(), environ) == 0);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    output_ = ends[0];
  }
  ~Child() {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }

  // The next line that it prints; "" if none comes.
  std::string line() const {
    std::string text;
    const int64_t deadline_us = monotonic_us() + std::chrono::microseconds(kPatience).count();
    while (true) {
      pollfd readable{output_, POLLIN, 0};
      const int64_t left_ms = (deadline_us - monotonic_us()) / 1000;
      char c = 0;
      if (left_ms <= 0 || ::poll(&readable, 1, static_cast<int>(left_ms)) <= 0) return "";
      if (::read(output_, &c, 1) != 1) return "";
      if (c == '\n') return text;
      text += c;
    }
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

class FailureBox {
 public:
  void put(const Status& status) {
    const std::lock_guard lock(mutex_);
    failure_ = status;
    changed_.notify_all();
  }
  bool comes_within(milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return failure_.has_value(); });
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return failure_.has_value(); }))
      return {ErrorCode::kInternal, "no failure came"};
    return *failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Status> failure_;
};

class ProcessTest : public ::testing::Test {
 protected:
  // Rank 0 here, rank 1 as a child, in a job that runs.
  void run_job_with_child(const std::string& role = "member", milliseconds liveness = milliseconds(0)) {
    auto service = ControlService::start({}, &dataplane_);
    ASSERT_TRUE(service.ok()) << service.status().to_string();
    service_ = std::move(service).value();
    child_.emplace(std::vector<std::string>{role, service_->address(), std::to_string(liveness.count())});
    join(service_->address(), 2, liveness);
    ASSERT_EQ(child_->line(), "joined");
  }
  void join(const std::string& address, int world_size, milliseconds liveness = milliseconds(0)) {
    auto client = ControlClient::join(parameters(address, 0, world_size, liveness),
                                      [this](const Status& status) { failure_.put(status); });
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    client_ = std::move(client).value();
  }

  // A rank alone in its job, at an aggregator here below one at `parent`.
  std::unique_ptr<ControlClient> join_below(const std::string& parent, milliseconds liveness,
                                            FailureBox* failure) {
    ControlServiceOptions options;
    options.parent = parent;
    auto rack = ControlService::start(options, &racks_dataplane_);
    EXPECT_TRUE(rack.ok()) << rack.status().to_string();
    if (!rack.ok()) return nullptr;
    rack_ = std::move(rack).value();
    auto client = ControlClient::join(parameters(rack_->address(), 0, 1, liveness),
                                      [failure](const Status& status) { failure->put(status); });
    EXPECT_TRUE(client.ok()) << client.status().to_string();
    return client.ok() ? std::move(client).value() : nullptr;
  }

  FakeDataplane dataplane_, racks_dataplane_;
  std::unique_ptr<ControlService> service_, rack_;
  FailureBox failure_;
  std::optional<Child> child_;
  std::unique_ptr<ControlClient> client_;
};

TEST_F(ProcessTest, AMemberThatIsKilledIsNamedToTheOthers) {
  run_job_with_child();
  child_->send(SIGKILL);
  const Status failure = failure_.wait();
  EXPECT_EQ(failure.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(failure.rank(), 1);
  EXPECT_EQ(failure.message(),
            "rank 1 (127.0.0.1) disconnected without leaving: its process died or hangs, or its host is "
            "unreachable");
  for (int i = 0; i < 60'000 && dataplane_.removed().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(dataplane_.removed().size(), 1u);

  // The next run may use the name at once, although this member has not left yet.
  const auto again = ControlClient::join(parameters(service_->address(), 0, 1), [](const Status&) {});
  EXPECT_TRUE(again.ok()) << again.status().to_string();
}

TEST_F(ProcessTest, AMemberThatIsKilledWhileJoiningIsNamedToTheOthers) {
  auto service = ControlService::start({}, &dataplane_);
  ASSERT_TRUE(service.ok()) << service.status().to_string();
  service_ = std::move(service).value();
  Child child({"member", service_->address(), "0"});
  const int64_t deadline_us = monotonic_us() + std::chrono::microseconds(kPatience).count();
  while (service_->status().jobs.empty() && monotonic_us() < deadline_us)
    std::this_thread::sleep_for(milliseconds(5));
  ASSERT_EQ(service_->status().jobs.size(), 1u);
  std::thread killing([&] { child.send(SIGKILL); });
  // Whoever comes first: told of the death while waiting, joined in time and told then, or alone in a new
  // job.
  JoinParameters how = parameters(service_->address(), 0, 2);
  how.timeout = milliseconds(1000);
  const auto client = ControlClient::join(how, [this](const Status& status) { failure_.put(status); });
  killing.join();
  const Status status = client.ok() ? failure_.wait() : client.status();
  EXPECT_THAT(status.code(), ::testing::AnyOf(ErrorCode::kPeerLost, ErrorCode::kTimeout))
      << status.to_string();
  EXPECT_EQ(status.rank(), 1);
}

TEST_F(ProcessTest, AnAggregatorThatIsKilledIsNamed) {
  child_.emplace(std::vector<std::string>{"aggregator"});
  const std::string address = child_->line();
  join(address, 1);
  ASSERT_NE(client_, nullptr);
  child_->send(SIGKILL);
  const Status failure = failure_.wait();
  EXPECT_EQ(failure.code(), ErrorCode::kAggregatorLost);
  EXPECT_THAT(failure.message(), HasSubstr("lost the aggregator at " + address));
}

// A data loader's workers are forked from their rank and outlive it for a while. They must hold none of its
// connections: otherwise only keep-alive and liveness timeouts would tell of its death.
TEST_F(ProcessTest, AMemberThatIsKilledIsNamedAlthoughItsChildrenLiveOn) {
  run_job_with_child("member-with-child");
  EXPECT_EQ(child_->line(), "the child holds 0 sockets");
  child_->send(SIGKILL);
  const Status failure = failure_.wait();
  EXPECT_EQ(failure.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(failure.rank(), 1);
}

TEST_F(ProcessTest, AnAggregatorThatIsKilledIsNamedAlthoughItsChildrenLiveOn) {
  child_.emplace(std::vector<std::string>{"aggregator-with-child"});
  const std::string address = child_->line();
  join(address, 1);
  ASSERT_NE(client_, nullptr);
  child_->send(SIGUSR1);  // it forks: the member's connection is there
  EXPECT_EQ(child_->line(), "the child holds 0 sockets");
  child_->send(SIGKILL);
  const Status failure = failure_.wait();
  EXPECT_EQ(failure.code(), ErrorCode::kAggregatorLost);
  // The port becomes free, as soon as the process is gone: what takes the aggregator's place can listen there.
  ControlServiceOptions options;
  options.listen = address;
  auto service = ControlService::start(options, &dataplane_);
  const int64_t deadline_us = monotonic_us() + std::chrono::microseconds(kPatience).count();
  while (!service.ok() && monotonic_us() < deadline_us) {
    std::this_thread::sleep_for(milliseconds(20));
    service = ControlService::start(options, &dataplane_);
  }
  EXPECT_TRUE(service.ok()) << service.status().to_string();
}

// A stopped process keeps its connections but answers nothing.
TEST_F(ProcessTest, AMemberThatFallsSilentIsFoundOut) {
  run_job_with_child("member", kShort);
  child_->send(SIGSTOP);
  const Status failure = failure_.wait();
  EXPECT_EQ(failure.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(failure.rank(), 1);
}

TEST_F(ProcessTest, AnAggregatorThatFallsSilentIsFoundOut) {
  child_.emplace(std::vector<std::string>{"aggregator"});
  join(child_->line(), 1, kShort);
  ASSERT_NE(client_, nullptr);
  child_->send(SIGSTOP);
  const Status failure = failure_.wait();
  EXPECT_EQ(failure.code(), ErrorCode::kAggregatorLost);
}

// Longer than idle connections need an answer: only the liveness timeout counts.
TEST_F(ProcessTest, WhoIsStoppedForLessThanItsLivenessTimeoutIsNoLoss) {
  run_job_with_child("member", kLong);
  Child aggregator({"aggregator"});
  FailureBox other;
  JoinParameters how = parameters(aggregator.line(), 0, 1, kLong);
  const auto client = ControlClient::join(how, [&](const Status& status) { other.put(status); });
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  Child parent({"aggregator"});
  FailureBox below;
  const auto rank = join_below(parent.line(), kLong, &below);
  ASSERT_NE(rank, nullptr);
  aggregator.send(SIGSTOP);
  parent.send(SIGSTOP);
  child_->send(SIGSTOP);
  const milliseconds stopped = Connections::kSilence * 4 / 3;
  EXPECT_FALSE(failure_.comes_within(stopped));
  child_->send(SIGCONT);
  aggregator.send(SIGCONT);
  parent.send(SIGCONT);
  EXPECT_FALSE(failure_.comes_within(stopped / 4));
  EXPECT_FALSE(other.comes_within(milliseconds(0)));
  EXPECT_FALSE(below.comes_within(milliseconds(0)));
}

// The aggregator below still answers the rank.
TEST_F(ProcessTest, AParentThatFallsSilentIsFoundOutByTheLivenessTimeout) {
  child_.emplace(std::vector<std::string>{"aggregator"});
  const auto rank = join_below(child_->line(), kShort, &failure_);
  ASSERT_NE(rank, nullptr);
  child_->send(SIGSTOP);
  const Status failure = failure_.wait();
  EXPECT_EQ(failure.code(), ErrorCode::kAggregatorLost);
  EXPECT_THAT(failure.message(), HasSubstr(", the parent of this one, has not answered for 1 s"));
}

// Its calls do not get through, but results do: then only their end tells that it is gone.
TEST_F(ProcessTest, AnAggregatorThatSendsResultsIsAlive) {
  child_.emplace(std::vector<std::string>{"aggregator"});
  JoinParameters how = parameters(child_->line(), 0, 1);
  how.liveness = milliseconds(200);
  std::atomic<bool> flows{true};
  std::atomic<uint64_t> results{0}, looks{0};
  std::atomic<int> lost{0};
  const auto client = ControlClient::join(how, [&](const Status& status) {
    ++lost;
    failure_.put(status);
  });
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  (*client)->set_witness([&] {
    ++looks;
    return flows ? ++results : results.load();
  });
  child_->send(SIGSTOP);
  const uint64_t before = looks;
  const int64_t deadline_us = monotonic_us() + std::chrono::microseconds(kPatience).count();
  while (looks < before + 8 && lost == 0 && monotonic_us() < deadline_us)
    std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(lost, 0);
  flows = false;
  const Status failure = failure_.wait();
  EXPECT_EQ(failure.code(), ErrorCode::kAggregatorLost);
  EXPECT_THAT(failure.message(), HasSubstr("has not answered"));
  (*client)->set_witness(nullptr);
}

TEST_F(ProcessTest, LeavingASilentAggregatorDoesNotHang) {
  child_.emplace(std::vector<std::string>{"aggregator"});
  join(child_->line(), 1);
  ASSERT_NE(client_, nullptr);
  child_->send(SIGSTOP);
  client_->report_failure({ErrorCode::kAborted, "stop"});
  client_.reset();  // the test's own time limit is what a hang would meet
  SUCCEED();
}

TEST_F(ProcessTest, LeavingAnAggregatorThatStallsIsNoLoss) {
  child_.emplace(std::vector<std::string>{"aggregator"});
  const std::string address = child_->line();
  std::promise<std::string> told;  // "left", or why the job has failed
  std::atomic<bool> first{true};
  JoinParameters how = parameters(address, 0, 2);
  how.on_left = [&](int) {
    if (first.exchange(false)) told.set_value("left");
  };
  Result<std::unique_ptr<ControlClient>> stays{Status(ErrorCode::kInternal, "not joined")};
  std::thread joining([&] {
    stays = ControlClient::join(how, [&](const Status& status) {
      if (first.exchange(false)) told.set_value(status.to_string());
    });
  });
  auto leaves = ControlClient::join(parameters(address, 1, 2), [](const Status&) {});
  joining.join();
  ASSERT_TRUE(stays.ok()) << stays.status().to_string();
  ASSERT_TRUE(leaves.ok()) << leaves.status().to_string();
  child_->send(SIGSTOP);
  std::thread leaving([&] { leaves.value().reset(); });
  std::this_thread::sleep_for(milliseconds(1500));
  child_->send(SIGCONT);
  leaving.join();
  std::future<std::string> news = told.get_future();
  ASSERT_EQ(news.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(news.get(), "left");
}

// TCP sockets of this process that are connected, or listen.
int tcp_sockets() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int domain = 0;
    socklen_t size = sizeof domain;
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain != AF_UNIX) ++count;
  }
  return count;
}

// A child that lives on after its parent, and says what it holds.
void fork_child() {
  if (::fork() != 0) return;
  ::alarm(kChildSeconds);
  std::printf("the child holds %d sockets\n", tcp_sockets());
  std::fflush(stdout);
  ::pause();
  ::_exit(0);
}

int child_main(int argc, char** argv) {
  ::alarm(kChildSeconds);
  const std::string role = argv[1];
  FakeDataplane dataplane;
  if (role == "aggregator" || role == "aggregator-with-child") {
    sigset_t fork_now;
    sigemptyset(&fork_now);
    sigaddset(&fork_now, SIGUSR1);
    ::pthread_sigmask(SIG_BLOCK, &fork_now, nullptr);  // in all threads of the service, too
    const auto service = ControlService::start({}, &dataplane);
    if (!service.ok()) return EXIT_FAILURE;
    std::printf("%s\n", service.value()->address().c_str());
    std::fflush(stdout);
    int signal = 0;
    if (role != "aggregator" && ::sigwait(&fork_now, &signal) == 0) fork_child();
    ::pause();
  } else if (role.starts_with("member") && argc == 4) {
    const milliseconds liveness(std::stoi(argv[3]));
    const auto client = ControlClient::join(parameters(argv[2], 1, 2, liveness), [](const Status&) {});
    if (!client.ok()) return EXIT_FAILURE;
    std::printf("joined\n");
    std::fflush(stdout);
    if (role != "member") fork_child();
    ::pause();
  }
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace netsum::control_process_test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) return netsum::control_process_test::child_main(argc, argv);
  return RUN_ALL_TESTS();
}
