// The control plane of a P4 switch against a P4Runtime server that misbehaves: wrong programs, errors, connections that break,
// and a switch that comes back empty, with jobs on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "aggregator/control/control_service.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "aggregator/p4/driver/frame.h"
#include "aggregator/p4/driver/p4_dataplane.h"
#include "aggregator/p4/driver/p4_program.h"
#include "aggregator/p4/driver/p4runtime_driver.h"
#include "src/base/file_descriptor.h"
#include "src/control/client.h"
#include "src/job/capabilities.h"
#include "tests/conformance/p4_runtime_server.h"
#include "tests/conformance/vector_writer.h"

namespace netsum::conformance::p4_runtime_test {
namespace {

namespace v1 = ::p4::v1;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
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

// Between a control plane and the server at `to`, unix:PATH.
class BlackHole {
 public:
  explicit BlackHole(const std::string& to) : to_(address_of(to)), own_(address_of(to + "-between")) {
    listener_ = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&own_), sizeof own_), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    thread_ = std::thread([this] { run(); });
  }
  ~BlackHole() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return std::string("unix:") + own_.sun_path; }
  // The connections of the moment end at the server, and stand still for the control plane.
  void swallow() { swallow_ = true; }

 private:
  struct Pair {
    FileDescriptor client, server;
  };
  static sockaddr_un address_of(const std::string& address) {
    sockaddr_un out{.sun_family = AF_UNIX, .sun_path = {}};
    const std::string path = address.substr(std::string("unix:").size());
    EXPECT_LT(path.size(), sizeof out.sun_path);
    path.copy(out.sun_path, sizeof out.sun_path - 1);
    return out;
  }
  static bool pass_on(int from, int to) {
    std::array<char, 65536> bytes;
    const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t more =
          ::send(to, &bytes[static_cast<size_t>(sent)], static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (more < 0) return false;
      sent += more;
    }
    return true;
  }
  void accept_one() {
    Pair pair{.client = FileDescriptor(accept(listener_.get(), nullptr, nullptr)),
              .server = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    if (connect(pair.server.get(), reinterpret_cast<const sockaddr*>(&to_), sizeof to_) == 0)
      pairs_.push_back(std::move(pair));
  }
  void run() {
    while (!stop_) {
      std::vector<pollfd> polls{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      for (const Pair& pair : pairs_) {
        polls.push_back({.fd = pair.client.get(), .events = POLLIN, .revents = 0});
        polls.push_back({.fd = pair.server.get(), .events = POLLIN, .revents = 0});
      }
      poll(polls.data(), polls.size(), 10);
      if (swallow_.exchange(false)) {
        for (Pair& pair : pairs_) swallowed_.push_back(std::move(pair.client));
        pairs_.clear();
        continue;
      }
      for (size_t i = pairs_.size(); i-- > 0;) {
        Pair& pair = pairs_[i];
        const bool from_client =
            polls[2 * i + 1].revents == 0 || pass_on(pair.client.get(), pair.server.get());
        const bool from_server =
            polls[2 * i + 2].revents == 0 || pass_on(pair.server.get(), pair.client.get());
        if (!from_client || !from_server) pairs_.erase(pairs_.begin() + static_cast<long>(i));
      }
      if (polls[0].revents != 0) accept_one();
    }
  }

  const sockaddr_un to_, own_;
  FileDescriptor listener_;
  std::vector<Pair> pairs_;
  std::vector<FileDescriptor> swallowed_;
  std::atomic<bool> stop_ = false, swallow_ = false;
  std::thread thread_;
};

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
    const auto append_to = [this](std::vector<Status>* list) {
      return [this, list](const Status& reason) {
        const std::lock_guard lock(mutex_);
        list->push_back(reason);
      };
    };
    (*driver)->set_events(
        {.on_packet = {}, .on_restart = append_to(&restarts_), .on_silence = append_to(&silences_)});
    return std::move(driver).value();
  }
  // With less patience than an aggregator has, but enough for a busy machine.
  p4::P4RuntimeOptions impatient() const {
    p4::P4RuntimeOptions options = this->options();
    options.patience = milliseconds(1000);
    options.silence = milliseconds(2000);
    options.look_every = milliseconds(20);
    return options;
  }
  static bool comes_back(p4::SwitchDriver& driver) {
    return wait_for([&] { return driver.counters().ok(); });
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
  std::vector<Status> silences() {
    const std::lock_guard lock(mutex_);
    return silences_;
  }
  static p4::JobEntry job_entry() { return {.epoch = 3, .members = 2, .slots = 8, .payload_bytes = 256}; }
  static p4::MemberEntry member_entry() { return {.port = 1, .mac = 0x0200000000AA, .ip = 1, .udp_port = 2}; }

  P4RuntimeServer server_;
  std::mutex mutex_;
  std::vector<Status> restarts_, silences_;
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

// A control plane that starts anew may give a job the index and epoch of one whose slots are still in the registers.
TEST_F(P4RuntimeTest, AProgramThatTheSwitchHasIsLoadedAgainIfItGivesItAway) {
  server_.set_program(whole_program(), "program of an earlier control plane");
  ASSERT_NE(connected(without_program()), nullptr);
  EXPECT_EQ(server_.programs_loaded(), 1);
  EXPECT_THAT(server_.entries("own_addresses"), SizeIs(1));
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
  // A frame is refused once the driver knows; a call can fail before.
  ASSERT_TRUE(wait_for([&] { return !driver->send(1, std::vector<uint8_t>(64)).ok(); }));
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

TEST_F(P4RuntimeTest, ASwitchThatComesBackEmptyIsSetUpAgainAlsoIfAnAnswerIsLostMeanwhile) {
  const auto driver = connected(impatient());
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->set_job(1, job_entry()).ok());
  server_.stop_serving();
  server_.forget_all();
  server_.lose_answer_after(0);  // to what enters the aggregator's address
  server_.serve();
  ASSERT_TRUE(comes_back(*driver));
  EXPECT_EQ(server_.programs_loaded(), 3);
  EXPECT_THAT(restarts(), SizeIs(1));
}

TEST_F(P4RuntimeTest, AControlPlaneThatIsReplacedKnows) {
  const auto driver = connected(impatient());
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->set_job(1, job_entry()).ok());
  server_.demote(true);
  ASSERT_TRUE(
      wait_for([&] { return driver->set_member(1, 0, member_entry()).code() == ErrorCode::kAddressInUse; }));
  EXPECT_THAT(driver->counters().status().message(), HasSubstr("another control plane drives the switch at"));
  ASSERT_TRUE(wait_for([&] { return !silences().empty(); }));
  EXPECT_THAT(silences()[0].message(), HasSubstr("another control plane drives"));
  server_.demote(false);
  ASSERT_TRUE(comes_back(*driver));
  EXPECT_TRUE(driver->set_member(1, 0, member_entry()).ok());
}

// Nothing of the server arrives any more, not even the end of the connection, as after a power failure.
TEST_F(P4RuntimeTest, AConnectionThatIsDeadWithoutNoticeIsReplaced) {
  BlackHole between(server_.address());
  p4::P4RuntimeOptions options = impatient();
  options.server = between.address();
  const auto driver = connected(options);
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->set_job(1, job_entry()).ok());
  between.swallow();
  ASSERT_TRUE(wait_for([&] { return driver->set_member(1, 0, member_entry()).ok(); }));
  EXPECT_THAT(server_.entries("members"), SizeIs(1));
  EXPECT_THAT(restarts(), IsEmpty());
}

TEST_F(P4RuntimeTest, ASwitchThatIsSilentIsReportedAndComesBack) {
  const auto driver = connected(impatient());
  ASSERT_NE(driver, nullptr);
  ASSERT_TRUE(driver->set_job(1, job_entry()).ok());
  for (size_t times = 1; times <= 2; ++times) {
    server_.freeze(true);
    ASSERT_TRUE(wait_for([&] { return silences().size() == times; }));
    EXPECT_EQ(silences().back().code(), ErrorCode::kAggregatorLost);
    EXPECT_THAT(silences().back().message(), HasSubstr("the switch at " + server_.address() +
                                                       " has not answered the aggregator for 2000 ms"));
    EXPECT_EQ(driver->set_job(2, job_entry()).code(), ErrorCode::kUnreachable);
    server_.freeze(false);
    ASSERT_TRUE(comes_back(*driver));
  }
  EXPECT_THAT(restarts(), IsEmpty());
  EXPECT_TRUE(driver->remove_job(1).ok());
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

TEST_F(P4RuntimeTest, AMemberWhoseAnswerIsLostCanBeEnteredAgainAndRemoved) {
  const auto driver = connected(impatient());
  ASSERT_NE(driver, nullptr);
  p4::MemberEntry elsewhere = member_entry();
  elsewhere.port = 0;
  for (const int writes : {0, 2}) {  // the address, and the entry that lets packets in
    SCOPED_TRACE(writes);
    ASSERT_TRUE(driver->set_job(1, job_entry()).ok());
    server_.lose_answer_after(writes);
    EXPECT_EQ(driver->set_member(1, 0, member_entry()).code(), ErrorCode::kUnreachable);
    ASSERT_TRUE(comes_back(*driver));
    if (writes == 2) {  // the switch welcomes the member already, so it must know its address
      EXPECT_THAT(server_.entries("members"), SizeIs(1));
      EXPECT_THAT(server_.entries("addresses"), SizeIs(1));
    }
    const Status again = driver->set_member(1, 0, elsewhere);
    EXPECT_TRUE(again.ok()) << again.to_string();
    const auto members = server_.entries("members");
    ASSERT_THAT(members, SizeIs(1));
    EXPECT_EQ(P4RuntimeServer::parameter(members[0], "is_member", "port"), 0u);

    if (writes > 0) {
      server_.lose_answer_after(writes);
      EXPECT_EQ(driver->set_member(1, 1, member_entry()).code(), ErrorCode::kUnreachable);
      ASSERT_TRUE(comes_back(*driver));
    }
    const Status removed = driver->remove_job(1);
    EXPECT_TRUE(removed.ok()) << removed.to_string();
    for (const char* table : {"jobs", "members", "addresses"}) EXPECT_THAT(server_.entries(table), IsEmpty());
    EXPECT_THAT(server_.groups(), ElementsAre(NETSUM_P4_FLOOD_GROUP));
  }
}

TEST_F(P4RuntimeTest, FramesForASwitchThatDoesNotReadThemAreLostAndNobodyWaits) {
  p4::P4RuntimeOptions patient = options();
  patient.patience = kPatience;
  auto driver = connected(patient);
  ASSERT_NE(driver, nullptr);
  server_.freeze(true);
  Status status;
  for (int i = 0; i < 1'000'000 && status.ok(); ++i) status = driver->send(1, std::vector<uint8_t>(1400));
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted) << status.to_string();
  driver.reset();  // ends with a write and a call in progress
}

// --- The dataplane -----------------------------------------------------------------------------------------------------

std::unique_ptr<Dataplane> dataplane_of(const p4::P4RuntimeOptions& options) {
  auto driver = p4::connect_p4runtime(options);
  EXPECT_TRUE(driver.ok()) << driver.status().to_string();
  if (!driver.ok()) return nullptr;
  return p4::make_p4_dataplane({.address = *Address::parse("10.99.1.1:0"), .mac = 0x020000000001},
                               std::move(driver).value());
}

TEST_F(P4RuntimeTest, LooksDoNotWaitForTheSwitch) {
  p4::P4RuntimeOptions patient = options();
  patient.patience = kPatience;
  const auto dataplane = dataplane_of(patient);
  ASSERT_NE(dataplane, nullptr);
  VectorJob job = usual_job();
  job.tag = NETSUM_TAG_COOKIE;
  ASSERT_TRUE(dataplane->install(dataplane_job(job, [](Peer) { return Address(); })).ok());
  server_.freeze(true);
  VectorJob next = job;
  ++next.job;
  std::atomic<bool> installed = false;
  std::thread waits([&] {
    EXPECT_TRUE(dataplane->install(dataplane_job(next, [](Peer) { return Address(); })).ok());
    installed = true;
  });
  // One of the driver itself, which reads counters, and one of this job.
  EXPECT_TRUE(wait_for([&] { return server_.calls_waiting() >= 2; }));
  EXPECT_FALSE(dataplane->counters().empty());
  EXPECT_EQ(dataplane->progress(job.job, job.epoch).rounds, 0u);
  EXPECT_LT(dataplane->free_slots(), static_cast<uint32_t>(NETSUM_P4_SLOTS));
  EXPECT_FALSE(installed);
  server_.freeze(false);
  waits.join();
}

// The first answer to an ARP request is not the parent's: the parent gets HELLOs all the same, and its WELCOME decides.
TEST_F(P4RuntimeTest, AWrongArpReplyDoesNotKeepAJobFromItsParent) {
  const auto dataplane = dataplane_of(options());
  ASSERT_NE(dataplane, nullptr);
  VectorJob job = usual_job();
  job.tag = NETSUM_TAG_COOKIE;
  job.parent = VectorParent{.peer = 1, .job = 9, .epoch = 11, .key = {5, 6}, .member = 1};
  const Address parent = *Address::parse("10.99.1.9:5152");
  ASSERT_TRUE(dataplane->install(dataplane_job(job, [&](Peer) { return parent; })).ok());
  constexpr uint32_t kParentIp = 0x0A630109;
  const auto claim = [&](uint16_t port, uint64_t mac) {
    server_.send({port, p4::build_arp({.is_reply = true,
                                       .to_mac = 0x020000000001,
                                       .sender_mac = mac,
                                       .target_mac = 0x020000000001,
                                       .sender_ip = kParentIp,
                                       .target_ip = 0x0A630101})});
  };
  claim(0, 0xBAD);
  claim(1, 0x600D);
  server_.send({0, p4::build_frame({.to_mac = 0x020000000001,
                                    .from_mac = 0xAA,
                                    .from_ip = 0x0A630102,
                                    .to_ip = 0x0A630101,
                                    .from_port = 7000,
                                    .to_port = NETSUM_P4_DATA_PORT,
                                    .datagram = VectorWriter("", "", {job}).hello(0, 1)})});
  const auto asked = [&](uint16_t port, uint64_t mac) {
    for (const P4RuntimeServer::Frame& frame : server_.frames()) {
      const std::optional<p4::UdpFrame> udp = p4::parse_frame(frame.bytes);
      if (frame.port == port && udp && udp->to_mac == mac && udp->to_ip == kParentIp) return true;
    }
    return false;
  };
  EXPECT_TRUE(wait_for([&] { return asked(1, 0x600D); }));
  EXPECT_TRUE(asked(0, 0xBAD));
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

void join(const std::string& address, std::vector<Rank>* ranks, milliseconds liveness = milliseconds(0),
          uint32_t mtu = 1100) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks->size(); ++i) {
    threads.emplace_back([&, i] {
      Rank& rank = (*ranks)[i];
      JoinParameters how;
      how.address = address;
      how.job.set_name("train");
      how.job.set_world_size(static_cast<uint32_t>(ranks->size()));
      how.job.set_mtu(mtu);
      how.job.set_verify(static_cast<uint32_t>(Verify::kSum));
      need_cookies(how.job.mutable_needs());
      how.rank = static_cast<int>(i);
      how.liveness = liveness;
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

TEST_F(P4RuntimeTest, AnMtuBeyondTheSwitchIsRefusedWithTheLargestOne) {
  const auto dataplane = dataplane_of(options());
  ASSERT_NE(dataplane, nullptr);
  auto service = ControlService::start({}, dataplane.get());
  ASSERT_TRUE(service.ok()) << service.status().to_string();
  std::vector<Rank> ranks(1);
  join((*service)->address(), &ranks, {}, 1500);
  EXPECT_THAT(ranks[0].joined.message(),
              HasSubstr("at most 1024: ask for an mtu of at most 1135, as the switch"));
  EXPECT_THAT(ranks[0].joined.message(), Not(HasSubstr("start the aggregator")));
}

// A running job on a switch that is stopped, or dead. Heartbeats go on, so what ends the job is the switch, and it is named.
TEST_F(P4RuntimeTest, AJobOnASilentSwitchFailsWithItsNameAndTheNextOneRuns) {
  for (const bool dead : {false, true}) {
    SCOPED_TRACE(dead ? "dead" : "stopped");
    ASSERT_TRUE(wait_for([&] { return !server_.has_primary(); }));
    const auto dataplane = dataplane_of(impatient());
    ASSERT_NE(dataplane, nullptr);
    auto service = ControlService::start({}, dataplane.get());
    ASSERT_TRUE(service.ok()) << service.status().to_string();
    std::vector<Rank> first(2);
    join((*service)->address(), &first, milliseconds(1600));
    for (const Rank& rank : first) ASSERT_TRUE(rank.joined.ok()) << rank.joined.to_string();
    if (dead) {
      server_.stop_serving();
    } else {
      server_.freeze(true);
    }
    for (Rank& rank : first) {
      ASSERT_TRUE(wait_for([&] {
        (void)(*service)->status();  // as `netsum aggregator` does
        return rank.failed() > 0;
      }));
      EXPECT_EQ(rank.failures[0].code(), ErrorCode::kAggregatorLost) << rank.failures[0].to_string();
      EXPECT_THAT(rank.failures[0].message(), HasSubstr("the switch at " + server_.address()));
      rank.client.reset();
    }
    if (dead) {
      server_.serve();
    } else {
      server_.freeze(false);
    }
    std::vector<Rank> second(2);
    ASSERT_TRUE(wait_for([&] {
      join((*service)->address(), &second);
      return second[0].joined.ok() && second[1].joined.ok();
    })) << second[0].joined.to_string();
    EXPECT_THAT(server_.entries("jobs"), SizeIs(1)) << "the first one is removed";
    for (Rank& rank : second) rank.client.reset();
    ASSERT_TRUE(wait_for([&] { return server_.entries("jobs").empty(); }));
  }
}

// The same below a parent, whose job fails.
TEST_F(P4RuntimeTest, AJobOnASilentSwitchBelowAParentFailsWithItsName) {
  DataplaneLimits limits{1, 8, 1024, standard_capabilities(1440)};
  limits.capabilities.add_tags(NETSUM_TAG_COOKIE);
  FakeDataplane above(limits);
  auto parent = ControlService::start({}, &above);
  ASSERT_TRUE(parent.ok()) << parent.status().to_string();
  const auto dataplane = dataplane_of(impatient());
  ASSERT_NE(dataplane, nullptr);
  auto service = ControlService::start({.parent = (*parent)->address()}, dataplane.get());
  ASSERT_TRUE(service.ok()) << service.status().to_string();
  std::vector<Rank> ranks(2);
  join((*service)->address(), &ranks);
  for (const Rank& rank : ranks) ASSERT_TRUE(rank.joined.ok()) << rank.joined.to_string();
  server_.freeze(true);
  for (Rank& rank : ranks) {
    ASSERT_TRUE(wait_for([&] { return rank.failed() > 0; }));
    EXPECT_EQ(rank.failures[0].code(), ErrorCode::kAggregatorLost) << rank.failures[0].to_string();
    EXPECT_THAT(rank.failures[0].message(), HasSubstr("the switch at " + server_.address()));
    rank.client.reset();
  }
}

}  // namespace
}  // namespace netsum::conformance::p4_runtime_test
