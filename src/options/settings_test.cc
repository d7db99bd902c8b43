#include "netsum/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

namespace netsum::settings_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<Settings> read(const Variables& variables, int local_rank = 0) {
  return Settings::read(
      [&](const std::string& name) {
        const auto found = variables.find(name);
        return found != variables.end() ? found->second : std::string();
      },
      local_rank);
}

std::string problem(const Variables& variables, int local_rank = 0) {
  const auto settings = read(variables, local_rank);
  if (settings.ok()) return "";
  EXPECT_EQ(settings.status().code(), ErrorCode::kInvalidArgument);
  return settings.status().message();
}

TEST(Settings, WithoutVariablesTheOptionsAreTheDefaults) {
  const auto settings = read({});
  ASSERT_TRUE(settings.ok());
  EXPECT_TRUE(settings->needs_root()) << "ranks embed shards";
  EXPECT_EQ(settings->most_ranks(), 64);
  EXPECT_EQ(settings->job_prefix(), "");
  const CommunicatorOptions& options = settings->options();
  const CommunicatorOptions usual;
  EXPECT_EQ(options.mtu, usual.mtu);
  EXPECT_EQ(options.slots, usual.slots);
  EXPECT_EQ(options.spin, usual.spin);
  EXPECT_EQ(options.connect_timeout, usual.connect_timeout);
  EXPECT_EQ(options.liveness_timeout, usual.liveness_timeout);
  EXPECT_EQ(options.shares, usual.shares);
  EXPECT_TRUE(options.shared_memory && options.predict_scales && options.aggregators.empty());
}

TEST(Settings, EveryVariableIsRead) {
  const std::string path = testing::TempDir() + "/settings_test.pem";
  std::ofstream(path) << "PEM text";
  const Variables variables = {{"NETSUM_AGGREGATOR", " 10.0.0.9:5151, [::1]:5151,"},
                               {"NETSUM_HIERARCHY", "0"},
                               {"NETSUM_AGGREGATOR_TOKEN", "secret"},
                               {"NETSUM_JOB", "train"},
                               {"NETSUM_MTU", "9000"},
                               {"NETSUM_SLOTS", "64"},
                               {"NETSUM_PACKET_IO", "af_xdp"},
                               {"NETSUM_SPIN", "10ms"},
                               {"NETSUM_ENGINE_THREADS", "0"},
                               {"NETSUM_SHARED_MEMORY", "0"},
                               {"NETSUM_HOST", "rack-1"},
                               {"NETSUM_LANE_BITS", "32"},
                               {"NETSUM_SHARES", "planned"},
                               {"NETSUM_VERIFY", "both"},
                               {"NETSUM_NUMERICS", "fixed"},
                               {"NETSUM_PREDICT_SCALES", "0"},
                               {"NETSUM_LINK_RATE", "2.5 Gbit"},
                               {"NETSUM_PACE", "500Mbit"},
                               {"NETSUM_PHASE", "0.1s, 40ms"},
                               {"NETSUM_BIND_ADDRESS", "10.0.0.1"},
                               {"NETSUM_TLS_CA", path},
                               {"NETSUM_TLS_CERT", path},
                               {"NETSUM_TLS_KEY", path},
                               {"NETSUM_CONNECT_TIMEOUT", "1.5"},
                               {"NETSUM_LIVENESS_TIMEOUT", "0"},
                               {"NETSUM_ON_FAILURE", "failover"},
                               {"NETSUM_FALLBACK_AGGREGATORS", "10.0.0.8:5151, hosts"},
                               {"NETSUM_FAILOVER_TIMEOUT", "7"},
                               {"NETSUM_WHEN_FULL", "wait"},
                               {"NETSUM_METRICS", "127.0.0.1:9470"},
                               {"NETSUM_TRACE", "/tmp/trace.json"},
                               {"NETSUM_INJECT_LOSS", "1%"},
                               {"NETSUM_INJECT_SEED", "7"}};
  for (const SettingInfo& info : setting_table())
    EXPECT_EQ(variables.count(info.variable), 1u) << info.variable;
  const auto settings = read(variables, 3);
  std::remove(path.c_str());
  ASSERT_TRUE(settings.ok()) << settings.status().to_string();
  EXPECT_EQ(settings->job_prefix(), "train");
  EXPECT_FALSE(settings->hierarchy());
  EXPECT_TRUE(settings->needs_root()) << "\"hosts\" is among the fallbacks";
  const CommunicatorOptions& o = settings->options();
  EXPECT_THAT(o.aggregators, ElementsAre("10.0.0.9:5151", "[::1]:5151"));
  EXPECT_EQ(o.aggregator_token, "secret");
  EXPECT_EQ(o.mtu, 9000);
  EXPECT_EQ(o.slots, 64);
  EXPECT_EQ(o.packet_io, PacketIoKind::kAfXdp);
  EXPECT_EQ(o.spin, milliseconds(10));
  EXPECT_EQ(o.engine_threads, 0);
  EXPECT_FALSE(o.shared_memory);
  EXPECT_EQ(o.host, "rack-1");
  EXPECT_EQ(o.lane_bits, 32);
  EXPECT_EQ(o.shares, Shares::kPlanned);
  EXPECT_EQ(o.verify, Verify::kBoth);
  EXPECT_EQ(o.numerics, Numerics::kFixed);
  EXPECT_FALSE(o.predict_scales);
  EXPECT_EQ(o.link_rate_bps, 2.5e9);
  EXPECT_EQ(o.pace_bps, 5e8);
  EXPECT_EQ(o.phase_period, milliseconds(100));
  EXPECT_EQ(o.phase_offset, milliseconds(40));
  EXPECT_EQ(o.bind_address, "10.0.0.1");
  EXPECT_EQ(o.tls.ca_cert, "PEM text");
  EXPECT_EQ(o.tls.private_key, "PEM text");
  EXPECT_EQ(o.connect_timeout, milliseconds(1500));
  EXPECT_EQ(o.liveness_timeout, milliseconds(0));
  EXPECT_EQ(o.on_failure, FailurePolicy::kFailover);
  EXPECT_THAT(o.fallback_aggregators, ElementsAre("10.0.0.8:5151", "hosts"));
  EXPECT_EQ(o.failover_timeout, milliseconds(7000));
  EXPECT_EQ(o.when_full, WhenFull::kWait);
  EXPECT_EQ(o.metrics_address, "127.0.0.1:9473");
  EXPECT_EQ(o.trace_path, "/tmp/trace-{job}-rank{rank}.json");
  EXPECT_DOUBLE_EQ(o.inject.loss, 0.01);
  EXPECT_EQ(o.inject.seed, 7u);
}

TEST(Settings, InvalidValuesAreNamed) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"NETSUM_AGGREGATOR", "10.0.0.9"}}, "NETSUM_AGGREGATOR=\"10.0.0.9\": must be \"host:port"},
      {{{"NETSUM_AGGREGATOR", "::1:5151"}}, "NETSUM_AGGREGATOR"},
      {{{"NETSUM_AGGREGATOR", "a:0"}}, "NETSUM_AGGREGATOR"},
      {{{"NETSUM_AGGREGATOR", "host:65536"}}, "NETSUM_AGGREGATOR"},
      {{{"NETSUM_AGGREGATOR", "host:1,:2"}}, "NETSUM_AGGREGATOR"},
      {{{"NETSUM_AGGREGATOR", "host:1,hosts"}}, "NETSUM_AGGREGATOR"},
      {{{"NETSUM_MTU", "100"}}, "NETSUM_MTU=\"100\": must be a whole number from 144 to 9000"},
      {{{"NETSUM_MTU", "9001"}}, "NETSUM_MTU"},
      {{{"NETSUM_MTU", "1500x"}}, "NETSUM_MTU"},
      {{{"NETSUM_MTU", "99999999999999999999"}}, "NETSUM_MTU"},
      {{{"NETSUM_SLOTS", "100"}}, "must be a power of two from 1 to 1024"},
      {{{"NETSUM_SLOTS", "2048"}}, "NETSUM_SLOTS"},
      {{{"NETSUM_SHARED_MEMORY", "yes"}}, "NETSUM_SHARED_MEMORY=\"yes\": must be 1 or 0"},
      {{{"NETSUM_PACKET_IO", "tcp"}}, "must be udp or af_xdp"},
      {{{"NETSUM_ENGINE_THREADS", "65"}}, "NETSUM_ENGINE_THREADS"},
      {{{"NETSUM_LANE_BITS", "12"}}, "must be 8, 16, 32, or 0"},
      {{{"NETSUM_SHARES", "some"}}, "must be auto or planned or off"},
      {{{"NETSUM_VERIFY", "sums"}}, "NETSUM_VERIFY"},
      {{{"NETSUM_LINK_RATE", "fast"}}, "must be a rate"},
      {{{"NETSUM_PHASE", "100ms"}}, "NETSUM_PHASE=\"100ms\": must be a period from 1ms to 60s and a shorter"},
      {{{"NETSUM_PHASE", "100,40"}}, "NETSUM_PHASE"},
      {{{"NETSUM_PHASE", "100ms,100ms"}}, "NETSUM_PHASE"},
      {{{"NETSUM_PHASE", "100ms,-1ms"}}, "NETSUM_PHASE"},
      {{{"NETSUM_PHASE", "999us,0"}}, "NETSUM_PHASE"},
      {{{"NETSUM_PHASE", "61s,0"}}, "NETSUM_PHASE"},
      {{{"NETSUM_PHASE", "100ms,nanms"}}, "NETSUM_PHASE"},
      {{{"NETSUM_PHASE", "100ms,1ms,1ms"}}, "NETSUM_PHASE"},
      {{{"NETSUM_LINK_RATE", "100"}}, "must be a rate"},
      {{{"NETSUM_LINK_RATE", "0mbit"}}, "must be a rate"},
      {{{"NETSUM_LINK_RATE", "1.2.3mbit"}}, "must be a rate"},
      {{{"NETSUM_LINK_RATE", "1000tbit"}}, "must be a rate"},
      {{{"NETSUM_LINK_RATE", "1gbyte"}}, "must be a rate"},
      {{{"NETSUM_CONNECT_TIMEOUT", "0"}}, "NETSUM_CONNECT_TIMEOUT"},
      {{{"NETSUM_LIVENESS_TIMEOUT", "nan"}}, "NETSUM_LIVENESS_TIMEOUT"},
      {{{"NETSUM_LIVENESS_TIMEOUT", "-1"}}, "NETSUM_LIVENESS_TIMEOUT"},
      {{{"NETSUM_FAILOVER_TIMEOUT", "1e99"}}, "NETSUM_FAILOVER_TIMEOUT"},
      {{{"NETSUM_INJECT_LOSS", "101%"}}, "must be a probability"},
      {{{"NETSUM_INJECT_LOSS", "%"}}, "must be a probability"},
      {{{"NETSUM_METRICS", "9470"}}, "NETSUM_METRICS"},
      {{{"NETSUM_METRICS", ":9470"}}, "NETSUM_METRICS"},
      {{{"NETSUM_METRICS", "127.0.0.1:65535"}}, "NETSUM_METRICS"},
      {{{"NETSUM_TLS_CA", "/no/such/file"}},
       "NETSUM_TLS_CA=\"/no/such/file\": must be a file that can be read"},
      {{{"NETSUM_TLS_CA", "/"}}, "NETSUM_TLS_CA"},
      {{{"NETSUM_HIERARCHY", "1"}}, "NETSUM_HIERARCHY=1: set NETSUM_AGGREGATOR"},
      {{{"NETSUM_ON_FAILURE", "shrink"}}, "must be fail or failover"},
      {{{"NETSUM_ON_FAILURE", "failover"}}, "there is no aggregator to lose"},
      {{{"NETSUM_FALLBACK_AGGREGATORS", "hosts"}}, "without NETSUM_ON_FAILURE"},
      {{{"NETSUM_WHEN_FULL", "never"}}, "NETSUM_WHEN_FULL"},
      {{{"NETSUM_SPIN", "2"}}, "must be 0, 1, or a time from 1us to 60s, such as 10ms"},
      {{{"NETSUM_SPIN", "-1ms"}}, "NETSUM_SPIN"},
      {{{"NETSUM_SPIN", "1.2.3ms"}}, "NETSUM_SPIN"},
      {{{"NETSUM_SPIN", "61s"}}, "NETSUM_SPIN"},
  };
  for (const auto& [variables, expected] : cases)
    EXPECT_THAT(problem(variables, 1), HasSubstr(expected)) << variables.begin()->first;
  const std::string path = testing::TempDir() + "/settings_test.cert";
  std::ofstream(path) << "PEM text";
  EXPECT_THAT(problem({{"NETSUM_TLS_CERT", path}}), HasSubstr("NETSUM_TLS_KEY"));
  std::remove(path.c_str());
}

TEST(Settings, PollingIsASwitchOrATime) {
  const auto spin = [](const std::string& text) {
    return read({{"NETSUM_SPIN", text}}).value().options().spin;
  };
  EXPECT_EQ(spin(""), microseconds(50));
  EXPECT_EQ(spin("1"), microseconds(50));
  EXPECT_EQ(spin("true"), microseconds(50));
  EXPECT_EQ(spin("0"), microseconds(0));
  EXPECT_EQ(spin("false"), microseconds(0));
  EXPECT_EQ(spin("0ms"), microseconds(0));
  EXPECT_EQ(spin("500us"), microseconds(500));
  EXPECT_EQ(spin(" 1.5s"), milliseconds(1500));
  EXPECT_EQ(spin("60s"), milliseconds(60'000));
  for (const char* text : {"2", "10", "-1", "-10ms", "0.5us", "61s", "1e9s", "nan", "nans", "ms", "10 ms",
                           "10msx", "1m", "fast"})
    EXPECT_THAT(problem({{"NETSUM_SPIN", text}}), HasSubstr("such as 10ms")) << text;
}

TEST(Settings, TimesAreSecondsOrHaveAUnit) {
  const auto time = [](const std::string& text) {
    return read({{"NETSUM_CONNECT_TIMEOUT", text}}).value().options().connect_timeout;
  };
  EXPECT_EQ(time("1.5"), milliseconds(1500));
  EXPECT_EQ(time("1.5s"), milliseconds(1500));
  EXPECT_EQ(time("200ms"), milliseconds(200));
  EXPECT_EQ(time("2m"), milliseconds(120'000));
  for (const char* text : {"0", "0ms", "-1s", "86401", "25h", "nan", "s", "1 s", "1us", "soon"})
    EXPECT_THAT(problem({{"NETSUM_CONNECT_TIMEOUT", text}}), HasSubstr("such as 30 (seconds)")) << text;
}

TEST(Settings, AValueIsSetByTheNameOfItsRow) {
  SettingValues values;
  EXPECT_TRUE(set_value("liveness_timeout", "0ms", &values).ok());
  EXPECT_EQ(values.options.liveness_timeout, milliseconds(0));
  EXPECT_TRUE(set_value("shares", " planned ", &values).ok());
  EXPECT_EQ(values.options.shares, Shares::kPlanned);
  EXPECT_TRUE(set_value("predict_scales", "false", &values).ok());
  EXPECT_FALSE(values.options.predict_scales);
  const Status refused = set_value("mtu", "90", &values);
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "'90' is not a whole number from 144 to 9000");
  values.options.aggregators = {"10.0.0.1:5151"};
  EXPECT_TRUE(set_value("aggregators", "", &values).ok()) << "none";
  EXPECT_TRUE(values.options.aggregators.empty());
  for (const char* other :
       {"mtu", "spin", "connect_timeout", "link_rate_bps", "inject.loss", "tls.ca_cert", "shares"})
    EXPECT_FALSE(set_value(other, "", &values).ok()) << other;
  EXPECT_THAT(set_value("mut", "1500", &values).message(), HasSubstr("no option 'mut'"));
}

TEST(Settings, AValueIsCheckedByTheNameOfItsRow) {
  CommunicatorOptions options;
  for (const SettingInfo& row : setting_table())
    if (!row.usual.empty() && row.name != "hierarchy")
      EXPECT_TRUE(check_value(row.name, options).ok()) << row.name;
  options.slots = 48;
  EXPECT_EQ(check_value("slots", options).message(),
            "slots is 48; it must be a power of two from 1 to 1024, such as 256");
  options.spin = microseconds(-1);
  EXPECT_EQ(check_value("spin", options).code(), ErrorCode::kInvalidArgument);
}

TEST(Settings, RatesAreThoseOfTheCommand) {
  const auto rate = [](const std::string& text) {
    return read({{"NETSUM_LINK_RATE", text}}).value().options().link_rate_bps;
  };
  EXPECT_EQ(rate(""), 0);
  EXPECT_EQ(rate("100mbit"), 1e8);
  EXPECT_EQ(rate("25G"), 25e9);
  EXPECT_EQ(rate("100 Mbit/s"), 1e8);
  EXPECT_EQ(rate("1tbps"), 1e12);
}

TEST(Settings, EachProcessOfAHostHasItsOwnMetrics) {
  const auto metrics = [](const std::string& text, int local_rank) {
    return read({{"NETSUM_METRICS", text}}, local_rank).value().options().metrics_address;
  };
  EXPECT_EQ(metrics("[::1]:9470", 3), "[::1]:9473");
  EXPECT_EQ(metrics("127.0.0.1:0", 3), "127.0.0.1:0");
}

TEST(Settings, EachGroupOfARankHasItsOwnTrace) {
  const auto trace = [](const std::string& text) {
    return read({{"NETSUM_TRACE", text}}).value().options().trace_path;
  };
  EXPECT_EQ(trace("/tmp/{rank}.json"), "/tmp/{rank}-{job}-rank{rank}.json");
  EXPECT_EQ(trace("/tmp/{job}.{rank}"), "/tmp/{job}.{rank}");
  EXPECT_EQ(trace("/tmp.d/trace"), "/tmp.d/trace-{job}-rank{rank}");
}

TEST(Settings, DifferencesBetweenRanksAreNamed) {
  const std::string first = read({{"NETSUM_MTU", "9000"}}).value().shared();
  EXPECT_EQ(Settings::difference(first, first, "here"), "");
  const std::string mine = read({}).value().shared();
  EXPECT_EQ(Settings::difference(mine, first, "on rank 3"),
            "NETSUM_MTU is \"1500\" on rank 3 but \"9000\" on rank 0; set it to the same on every rank");
  EXPECT_THAT(Settings::difference(mine, first + "NETSUM_NEW=1\n", "here"), HasSubstr("NETSUM_MTU"));
  EXPECT_THAT(Settings::difference(mine, mine + "NETSUM_NEW=1\n", "here"), HasSubstr("different versions"));
  EXPECT_EQ(read({{"NETSUM_SPIN", "0"}}).value().shared(), mine) << "may differ between ranks";
  EXPECT_THAT(mine, HasSubstr("NETSUM_WHEN_FULL=fail\n"));
}

TEST(Settings, InAHierarchyRanksMayNameDifferentAggregators) {
  const auto rack = [](const std::string& addresses) {
    return read({{"NETSUM_HIERARCHY", "1"}, {"NETSUM_AGGREGATOR", addresses}}).value();
  };
  EXPECT_EQ(rack("10.0.0.1:5151").shared(), rack("10.0.1.1:5151").shared());
  EXPECT_NE(rack("10.0.0.1:5151").shared(), rack("10.0.1.1:5151,10.0.1.2:5151").shared());
  EXPECT_NE(rack("10.0.0.1:5151").shared(), read({{"NETSUM_AGGREGATOR", "10.0.0.1:5151"}}).value().shared());
  EXPECT_EQ(rack("10.0.0.1:5151").most_ranks(), 512);
}

TEST(Settings, WhatIsWrittenCanBeReadAgain) {
  for (const SettingInfo& info : setting_table()) {
    if (info.usual.empty()) continue;
    EXPECT_EQ(problem({{info.variable, info.usual}}), "") << info.variable;
  }
}

std::string page() {
  std::string text = R"(# Options

The options of a communicator, from the environment: the PyTorch backend, the component of Open MPI and the plug-in of NCCL read
these variables when a group or communicator is created, and the command takes most of them as flags. In C++ they are fields of
`CommunicatorOptions` ([options.h](../include/netsum/options.h)), whose comments have the details. `Settings::read()`
([settings.h](../include/netsum/settings.h)) reads them for other programs. Those marked * must be equal on all ranks; a difference is an
error that names the variable and both values. The table in `src/options/settings.cc` is the source of this page.

| variable | meaning | allowed | default |
|---|---|---|---|
)";
  for (const SettingInfo& info : setting_table()) {
    text += "| `" + info.variable + "`" + (info.same_on_all_ranks ? " *" : "") + " | " + info.help + " | " +
            info.values + " | " + (info.usual.empty() ? "none" : "`" + info.usual + "`") + " |\n";
  }
  return text;
}

TEST(Settings, WhatMembersCompareHasTheValuesOfTheOptions) {
  CommunicatorOptions options;
  options.predict_scales = false;
  EXPECT_THAT(joined_options(options), Contains(std::pair<std::string, std::string>("predict_scales", "0")));
}

// NETSUM_WRITE_OPTIONS_PAGE=1 writes it.
TEST(Settings, ThePageIsMadeOfTheTable) {
  if (std::getenv("NETSUM_WRITE_OPTIONS_PAGE") != nullptr) std::ofstream("docs/options.md") << page();
  std::ifstream file("docs/options.md");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), page())
      << "NETSUM_WRITE_OPTIONS_PAGE=1 build/release/src/options/options_tests writes docs/options.md";
}

}  // namespace
}  // namespace netsum::settings_test
