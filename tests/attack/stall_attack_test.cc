// A job sums while everything that it does not need stalls: the dataplane's answers to the control plane, plans and the log.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "aggregator/control/control_service.h"
#include "aggregator/dataplane/stalling_dataplane.h"
#include "aggregator/user/dataplane.h"
#include "src/control/client.h"
#include "tests/attack/flood.h"

namespace netsum::attack::stall_attack_test {
namespace {

using std::chrono::seconds;

constexpr seconds kPatience{60};

TEST(StallAttack, AJobSumsWhileAllElseStalls) {
  UserDataplaneOptions data;
  data.ports = {{*Address::parse("127.0.0.1:0")}};
  data.max_jobs = 8;
  auto sums = start_user_dataplane(data);
  ASSERT_TRUE(sums.ok()) << sums.status().to_string();
  StallingDataplane dataplane(sums->get());
  Gate log;
  ControlServiceOptions options;
  options.max_jobs = 8;
  options.on_event = [&](const AggregatorEvent&) { log.pass(); };
  auto service = ControlService::start(options, &dataplane);
  ASSERT_TRUE(service.ok()) << service.status().to_string();
  const std::string address = (*service)->address();
  QuietJob job(address);

  JoinParameters how;
  how.address = address;
  how.job.set_name("other");
  how.job.set_slots(64);
  how.timeout = kPatience;
  auto first = ControlClient::join(how, [](const Status&) {});
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  for (Gate* gate : {&dataplane.removals, &dataplane.looks, &log}) gate->close();
  std::vector<std::thread> others;
  first->reset();  // its removal does not end, so what is behind it does not begin
  how.job.set_name("another");
  others.emplace_back([how] { static_cast<void>(ControlClient::join(how, [](const Status&) {})); });
  others.emplace_back([address] { (void)query_status(address, "", {}, kPatience); });
  EXPECT_TRUE(dataplane.removals.has_stopped_somebody());
  EXPECT_TRUE(dataplane.looks.has_stopped_somebody());
  EXPECT_TRUE(log.has_stopped_somebody());
  const uint64_t before = job.sums();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (job.sums() < before + 50 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_GE(job.sums(), before + 50);
  for (Gate* gate : {&dataplane.removals, &dataplane.looks, &log}) gate->open();
  for (std::thread& other : others) other.join();
  const Status ended = job.end();
  EXPECT_TRUE(ended.ok()) << ended.to_string();
}

}  // namespace
}  // namespace netsum::attack::stall_attack_test
