// The control plane of a P4 switch against a P4Runtime server that misbehaves: wrong programs, errors, connections that break,
// and a switch that comes back empty, with jobs on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "aggregator/control/control_service.h"
#include "aggregator/p4/driver/p4_dataplane.h"
#include "aggregator/p4/driver/p4_program.h"
#include "aggregator/p4/driver/p4runtime_driver.h"
#include "src/control/client.h"
#include "src/job/capabilities.h"
#include "tests/conformance/p4_runtime_server.h"

namespace netsum::conformance {
namespace {

namespace v1 = ::p4::v1;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr milliseconds kPatience{60'000};

bool wait_for(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

class P4RuntimeTest : public testing::Test {
 protected:
  // With the program of this release, as `netsum aggregator` has it from the files of p4c.
  p4::P4RuntimeOptions options() const {
    return {.server = server_.address(),
            .p4info = whole_program().SerializeAsString(),
            .config = "program",
            .own_ip = 0x0A630101,
            .own_mac = 0x020000000001,
            .ports = {0, 1}};
  }
  // Without: the switch must have it.
  p4::P4RuntimeOptions without_program() const {
    p4::P4RuntimeOptions options = this->options();
    options.p4info.clear();
    options.config.clear();
    return options;
  }
  std::unique_ptr<p4::SwitchDriver> connected(const p4::P4RuntimeOptions& options) {
    auto driver = p4::connect_p4runtime(options);
    EXPECT_TRUE(driver.ok()) << driver.status().to_string();
    if (!driver.ok()) return nullptr;
    (*driver)->set_events({.on_packet = {}, .on_restart = [this](const Status& reason) {
                             const std::lock_guard lock(mutex_);
                             restarts_.push_back(reason);
                           }});
    return std::move(driver).value();
  }
  // By itself, or because there is `another` control plane. The server hears of the end of one in its own time.
  void expect_refused(const p4::P4RuntimeOptions& options, ErrorCode code, const std::string& words,
                      bool another = false) {
    ASSERT_TRUE(wait_for([&] { return server_.has_primary() == another; }));
    const auto driver = p4::connect_p4runtime(options);
    ASSERT_FALSE(driver.ok()) << words;
    EXPECT_EQ(driver.status().code(), code) << driver.status().to_string();
    EXPECT_THAT(driver.status().message(), HasSubstr(words));
  }
  std::vector<Status> restarts() {
    const std::lock_guard lock(mutex_);
    return restarts_;
  }
  static p4::JobEntry job_entry() { return {.epoch = 3, .members = 2, .slots = 8, .payload_bytes = 256}; }
  static p4::MemberEntry member_entry() { return {.port = 1, .mac = 0x0200000000AA, .ip = 1, .udp_port = 2}; }

  P4RuntimeServer server_;
  std::mutex mutex_;
  std::vector<Status> restarts_;
};

// --- Programs ----------------------------------------------------------------------------------------------------------

TEST_F(P4RuntimeTest, AProgramOfAnotherNameOrVersionIsRefused) {
  v1::P4Info info = whole_program();
  const auto refused = [&](const std::string& words) {
    server_.set_program(info);
    expect_refused(without_program(), ErrorCode::kVersionMismatch,
                   "the switch at " + server_.address() + " " + words);
    p4::P4RuntimeOptions with = options();
    with.p4info = info.SerializeAsString();
    expect_refused(with, ErrorCode::kVersionMismatch, "the file given for P4Info " + words);
  };
  info.mutable_pkg_info()->set_version("0.9");
  refused("runs version '0.9' of the program");
  info.mutable_pkg_info()->set_name("router");
  refused("runs 'router'");
  info.mutable_pkg_info()->clear_name();
  refused("runs a program without a name");
  EXPECT_EQ(server_.programs_loaded(), 0);
}

TEST_F(P4RuntimeTest, WhatIsNoP4InfoIsRefused) {
  p4::P4RuntimeOptions with = options();
  with.p4info = "{}";
  expect_refused(with, ErrorCode::kInvalidArgument, "no P4Info in binary form");
  with.p4info.clear();
  expect_refused(with, ErrorCode::kInvalidArgument, "belong together");
}

// Removes the element of that alias or name.
template <typename List>
void remove_preamble(List* list, const std::string& alias) {
  for (int i = 0; i < list->size(); ++i)
    if (list->Get(i).preamble().alias() == alias) return list->DeleteSubrange(i, 1);
  FAIL() << alias;
}
template <typename List>
void remove_field(List* list, const std::string& name) {
  for (int i = 0; i < list->size(); ++i)
    if (list->Get(i).name() == name) return list->DeleteSubrange(i, 1);
  FAIL() << name;
}

TEST_F(P4RuntimeTest, EachMissingPartOfTheProgramIsNamed) {
  const auto refused = [&](const std::string& words, const std::function<void(v1::P4Info*)>& remove) {
    v1::P4Info info = whole_program();
    remove(&info);
    server_.set_program(info);
    expect_refused(without_program(), ErrorCode::kVersionMismatch, words);
  };
  const v1::P4Info whole = whole_program();
  for (int i = 0; i < whole.tables_size(); ++i) {
    const std::string table = whole.tables(i).preamble().alias();
    refused("has no table '" + table + "'",
            [&](v1::P4Info* info) { remove_preamble(info->mutable_tables(), table); });
    for (const v1::NamedField& key : whole.tables(i).match_fields())
      refused("has no key " + key.name() + " in table '" + table + "'", [&](v1::P4Info* info) {
        remove_field(info->mutable_tables(i)->mutable_match_fields(), key.name());
      });
    const std::string action = whole.actions(i).preamble().alias();
    refused("has no action '" + action + "'",
            [&](v1::P4Info* info) { remove_preamble(info->mutable_actions(), action); });
    for (const v1::NamedField& parameter : whole.actions(i).params())
      refused("has no parameter " + parameter.name() + " of action '" + action + "'", [&](v1::P4Info* info) {
        remove_field(info->mutable_actions(i)->mutable_params(), parameter.name());
      });
  }
  for (const char* counter : {"events", "rounds"})
    refused("has no counter '" + std::string(counter) + "'",
            [&](v1::P4Info* info) { remove_preamble(info->mutable_counters(), counter); });
  for (int i = 0; i < whole.controller_packet_metadata_size(); ++i) {
    const std::string words =
        "has no header '" + whole.controller_packet_metadata(i).preamble().alias() + "' with a port";
    refused(words,
            [&](v1::P4Info* info) { info->mutable_controller_packet_metadata()->DeleteSubrange(i, 1); });
    refused(words, [&](v1::P4Info* info) {
      remove_field(info->mutable_controller_packet_metadata(i)->mutable_metadata(), "port");
    });
  }
  refused("has no register 'over'",
          [&](v1::P4Info* info) { remove_preamble(info->mutable_registers(), "over"); });
}

TEST_F(P4RuntimeTest, ASwitchWithoutAProgramIsToldWhereItComesFrom) {
  expect_refused(without_program(), ErrorCode::kVersionMismatch, "has no program: give the files of p4c");
}

TEST_F(P4RuntimeTest, AProgramThatTheSwitchHasIsKeptAndItsTablesAreEmptied) {
  server_.set_program(whole_program());
  server_.add_entry("jobs", {});
  server_.add_entry("own_addresses", {});
  server_.add_group(7);
  const auto driver = connected(without_program());
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(server_.programs_loaded(), 0);
  EXPECT_THAT(server_.entries("jobs"), IsEmpty());
  ASSERT_THAT(server_.entries("own_addresses"), SizeIs(1));
  EXPECT_THAT(server_.entries("own_addresses")[0].match(), SizeIs(2));
  EXPECT_THAT(server_.groups(), ElementsAre(NETSUM_P4_FLOOD_GROUP));
  EXPECT_TRUE(driver->set_job(1, job_entry()).ok());
}

TEST_F(P4RuntimeTest, LimitsAreThoseThatTheProgramSays) {
  v1::P4Info info = whole_program();
  info.mutable_tables(0)->set_size(5);
  info.mutable_tables(1)->set_size(12);
  server_.set_program(info);
  const auto driver = connected(without_program());
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(driver->limits().jobs, 5);
  EXPECT_EQ(driver->limits().members, 12u);
  EXPECT_EQ(driver->limits().slots, static_cast<uint32_t>(NETSUM_P4_SLOTS));
  EXPECT_EQ(driver->limits().payload_bytes, 1024u);
}

// --- Connections -------------------------------------------------------------------------------------------------------

TEST_F(P4RuntimeTest, ASecondControlPlaneIsRefused) {
  server_.set_program(whole_program());
  const auto first = connected(options());
  ASSERT_NE(first, nullptr);
  expect_refused(options(), ErrorCode::kAddressInUse, "another control plane drives the switch at", true);
  server_.keep_backups();
  expect_refused(options(), ErrorCode::kAddressInUse, "another control plane drives the switch at", true);
  EXPECT_TRUE(first->set_job(1, job_entry()).ok());
}

TEST_F(P4RuntimeTest, AControlConnectionThatDropsComesBackAndNothingIsLost) {
  const auto driver = connected(options());
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->set_job(1, job_entry()).ok());
  ASSERT_TRUE(driver->set_member(1, 0, member_entry()).ok());
  server_.stop_serving();
  ASSERT_TRUE(wait_for([&] { return !driver->counters().ok(); }));
  for (const Status& status :
       {driver->set_job(2, job_entry()), driver->set_member(1, 1, member_entry()), driver->remove_job(1),
        driver->send(1, std::vector<uint8_t>(64)), driver->counters().status()}) {
    EXPECT_EQ(status.code(), ErrorCode::kUnreachable) << status.to_string();
  }
  EXPECT_THAT(server_.entries("jobs"), SizeIs(1));
  server_.serve();
  ASSERT_TRUE(wait_for([&] { return driver->counters().ok(); }));
  EXPECT_EQ(server_.programs_loaded(), 1);
  EXPECT_THAT(restarts(), IsEmpty());
  EXPECT_THAT(server_.entries("members"), SizeIs(1));
  EXPECT_TRUE(driver->set_member(1, 1, member_entry()).ok());
  EXPECT_THAT(server_.entries("members"), SizeIs(2));
  EXPECT_TRUE(driver->remove_job(1).ok());
  EXPECT_THAT(server_.entries("members"), IsEmpty());
  EXPECT_THAT(server_.entries("addresses"), IsEmpty());
  EXPECT_THAT(server_.groups(), ElementsAre(NETSUM_P4_FLOOD_GROUP));
}

TEST_F(P4RuntimeTest, ASwitchThatComesBackEmptyIsSetUpAgain) {
  const auto driver = connected(options());
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->set_job(1, job_entry()).ok());
  server_.stop_serving();
  server_.forget_all();
  server_.serve();
  ASSERT_TRUE(wait_for([&] { return restarts().size() == 1; }));
  EXPECT_EQ(restarts()[0].code(), ErrorCode::kAggregatorLost);
  EXPECT_THAT(restarts()[0].message(), HasSubstr("has restarted and lost the sums"));
  ASSERT_TRUE(wait_for([&] { return driver->counters().ok(); }));
  EXPECT_EQ(server_.programs_loaded(), 2);
  EXPECT_THAT(server_.entries("jobs"), IsEmpty());
  EXPECT_THAT(server_.entries("own_addresses"), SizeIs(1));
  // The job is no longer known, so its member is refused.
  EXPECT_EQ(driver->set_member(1, 0, member_entry()).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(driver->set_job(1, job_entry()).ok());
  EXPECT_EQ(restarts().size(), 1u);
}

// --- Errors of calls ---------------------------------------------------------------------------------------------------

TEST_F(P4RuntimeTest, AFullTableAndARefusalAreToldApart) {
  const auto driver = connected(options());
  ASSERT_NE(driver, nullptr);
  server_.refuse_writes(P4RuntimeServer::Refusal{8, "table is full"});  // RESOURCE_EXHAUSTED
  Status status = driver->set_job(1, job_entry());
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("table is full"));
  server_.refuse_writes(P4RuntimeServer::Refusal{3, "bad port"});  // INVALID_ARGUMENT
  status = driver->set_job(1, job_entry());
  EXPECT_EQ(status.code(), ErrorCode::kAggregatorLost) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("bad port"));
  server_.refuse_writes({});
  EXPECT_TRUE(driver->set_job(1, job_entry()).ok());
}

TEST_F(P4RuntimeTest, ASwitchThatDoesNotAnswerEndsACall) {
  const auto driver = connected(options());
  ASSERT_NE(driver, nullptr);
  server_.hold_writes(true);
  const Status status = driver->set_job(1, job_entry());
  EXPECT_EQ(status.code(), ErrorCode::kUnreachable) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("has not answered in time"));
  server_.hold_writes(false);
}

// --- Jobs --------------------------------------------------------------------------------------------------------------

struct Rank {
  std::mutex mutex;
  std::vector<Status> failures;
  Status joined;
  std::unique_ptr<ControlClient> client;  // destroyed first

  size_t failed() {
    const std::lock_guard lock(mutex);
    return failures.size();
  }
};

void join(const std::string& address, std::vector<Rank>* ranks) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks->size(); ++i) {
    threads.emplace_back([&, i] {
      Rank& rank = (*ranks)[i];
      JoinParameters how;
      how.address = address;
      how.job.set_name("train");
      how.job.set_world_size(static_cast<uint32_t>(ranks->size()));
      how.job.set_mtu(1100);
      how.job.set_verify(static_cast<uint32_t>(Verify::kSum));
      need_cookies(how.job.mutable_needs());
      how.rank = static_cast<int>(i);
      how.timeout = kPatience;
      auto client = ControlClient::join(how, [&rank](const Status& status) {
        const std::lock_guard lock(rank.mutex);
        rank.failures.push_back(status);
      });
      rank.joined = client.status();
      if (client.ok()) rank.client = std::move(client).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(P4RuntimeTest, JobsOnASwitchThatComesBackEmptyFailAndTheNextOneRuns) {
  auto driver = p4::connect_p4runtime(options());
  ASSERT_TRUE(driver.ok()) << driver.status().to_string();
  const auto dataplane =
      p4::make_p4_dataplane({.address = *Address::parse("10.99.1.1:0")}, std::move(driver).value());
  auto service = ControlService::start({}, dataplane.get());
  ASSERT_TRUE(service.ok()) << service.status().to_string();
  const auto epoch_of = [](const P4RuntimeServer::Entry& job) {
    return P4RuntimeServer::parameter(job, "is_job", "job_epoch");
  };

  std::vector<Rank> first(2);
  join((*service)->address(), &first);
  for (const Rank& rank : first) ASSERT_TRUE(rank.joined.ok()) << rank.joined.to_string();
  const auto before = server_.entries("jobs");
  ASSERT_THAT(before, SizeIs(1));
  server_.stop_serving();
  server_.forget_all();
  server_.serve();
  for (Rank& rank : first) {
    ASSERT_TRUE(wait_for([&] { return rank.failed() > 0; }));
    EXPECT_EQ(rank.failures[0].code(), ErrorCode::kAggregatorLost) << rank.failures[0].to_string();
    EXPECT_THAT(rank.failures[0].message(), HasSubstr("has restarted"));
    rank.client.reset();
    EXPECT_EQ(rank.failed(), 1u);
  }

  std::vector<Rank> second(2);
  // Until the driver says so itself, jobs cannot begin.
  ASSERT_TRUE(wait_for([&] {
    join((*service)->address(), &second);
    return second[0].joined.ok() && second[1].joined.ok();
  })) << second[0].joined.to_string();
  const auto after = server_.entries("jobs");
  ASSERT_THAT(after, SizeIs(1));
  EXPECT_NE(epoch_of(after[0]), epoch_of(before[0]));
  for (Rank& rank : second) rank.client.reset();
  ASSERT_TRUE(wait_for([&] { return server_.entries("jobs").empty(); }));
  for (Rank& rank : second) EXPECT_EQ(rank.failed(), 0u);
}

}  // namespace
}  // namespace netsum::conformance
