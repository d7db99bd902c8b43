#include "src/plugin/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

namespace netsum {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

struct Read {
  Environment environment;
  std::string problem;
};

Read read(const Variables& variables, int local_rank = 0) {
  Read result;
  result.problem = result.environment.read(
      [&](const std::string& name) {
        const auto found = variables.find(name);
        return found != variables.end() ? found->second : std::string();
      },
      local_rank);
  return result;
}

TEST(Environment, WithoutVariablesRanksEmbedShards) {
  const Read found = read({});
  EXPECT_EQ(found.problem, "");
  EXPECT_TRUE(found.environment.needs_root());
  EXPECT_EQ(found.environment.most_ranks(), 64);
  const netsum_comm_options options = found.environment.options();
  EXPECT_EQ(options.struct_size, sizeof(options));
  EXPECT_STREQ(options.aggregators, "");
  EXPECT_EQ(options.mtu, 1500);
  EXPECT_EQ(options.connect_timeout_ms, 30000);
  EXPECT_EQ(options.liveness_timeout_ms, 5000);
  EXPECT_EQ(options.shares, NETSUM_SHARES_AUTO);
  EXPECT_EQ(options.no_spin, 0);
  EXPECT_EQ(options.spin_us, 0);
}

TEST(Environment, SpinIsASwitchOrATime) {
  EXPECT_EQ(read({{"NETSUM_SPIN", "1"}}).environment.options().spin_us, 0);
  EXPECT_EQ(read({{"NETSUM_SPIN", " 10ms"}}).environment.options().spin_us, 10'000);
  EXPECT_EQ(read({{"NETSUM_SPIN", "10ms"}}).environment.options().no_spin, 0);
  for (const char* wrong : {"2", "-1ms", "61s"})
    EXPECT_EQ(
        read({{"NETSUM_SPIN", wrong}}).problem,
        "NETSUM_SPIN=\"" + std::string(wrong) + "\": must be 0, 1, or a time from 1us to 60s, such as 10ms");
}

TEST(Environment, EveryVariableIsRead) {
  const std::string path = testing::TempDir() + "/environment_test.pem";
  std::ofstream(path) << "PEM text";
  const Read found = read({{"NETSUM_AGGREGATOR", " 10.0.0.9:5151, [::1]:5151,"},
                           {"NETSUM_AGGREGATOR_TOKEN", "secret"},
                           {"NETSUM_JOB", "train"},
                           {"NETSUM_MTU", "9000"},
                           {"NETSUM_SLOTS", "64"},
                           {"NETSUM_PACKET_IO", "af_xdp"},
                           {"NETSUM_SPIN", "0"},
                           {"NETSUM_ENGINE_THREADS", "0"},
                           {"NETSUM_SHARED_MEMORY", "0"},
                           {"NETSUM_HOST", "rack-1"},
                           {"NETSUM_LANE_BITS", "32"},
                           {"NETSUM_SHARES", "planned"},
                           {"NETSUM_VERIFY", "both"},
                           {"NETSUM_NUMERICS", "fixed"},
                           {"NETSUM_PREDICT_SCALES", "0"},
                           {"NETSUM_LINK_RATE", "2.5 Gbit"},
                           {"NETSUM_BIND_ADDRESS", "10.0.0.1"},
                           {"NETSUM_TLS_CA", path},
                           {"NETSUM_CONNECT_TIMEOUT", "1.5"},
                           {"NETSUM_LIVENESS_TIMEOUT", "0"},
                           {"NETSUM_ON_FAILURE", "failover"},
                           {"NETSUM_FALLBACK_AGGREGATORS", "10.0.0.8:5151,hosts"},
                           {"NETSUM_FAILOVER_TIMEOUT", "7"},
                           {"NETSUM_WHEN_FULL", "wait"},
                           {"NETSUM_METRICS", "127.0.0.1:9470"},
                           {"NETSUM_TRACE", "/tmp/trace.json"},
                           {"NETSUM_INJECT_LOSS", "1%"},
                           {"NETSUM_INJECT_SEED", "7"}},
                          3);
  std::remove(path.c_str());
  ASSERT_EQ(found.problem, "");
  const netsum_comm_options o = found.environment.options();
  EXPECT_STREQ(o.aggregators, "10.0.0.9:5151,[::1]:5151");
  EXPECT_STREQ(o.aggregator_token, "secret");
  EXPECT_EQ(found.environment.job_prefix(), "train");
  EXPECT_EQ(o.mtu, 9000);
  EXPECT_EQ(o.slots, 64);
  EXPECT_EQ(o.packet_io, NETSUM_IO_AF_XDP);
  EXPECT_EQ(o.no_spin, 1);
  EXPECT_EQ(o.engine_threads, -1) << "automatic";
  EXPECT_EQ(o.no_shared_memory, 1);
  EXPECT_STREQ(o.host, "rack-1");
  EXPECT_EQ(o.lane_bits, 32);
  EXPECT_EQ(o.shares, NETSUM_SHARES_PLANNED);
  EXPECT_EQ(o.verify, NETSUM_VERIFY_BOTH);
  EXPECT_EQ(o.numerics, NETSUM_NUMERICS_FIXED);
  EXPECT_EQ(o.no_predict_scales, 1);
  EXPECT_EQ(o.link_rate_bps, 2.5e9);
  EXPECT_STREQ(o.bind_address, "10.0.0.1");
  EXPECT_STREQ(o.tls_ca_cert, "PEM text");
  EXPECT_EQ(o.connect_timeout_ms, 1500);
  EXPECT_EQ(o.liveness_timeout_ms, -1);
  EXPECT_EQ(o.failover, 1);
  EXPECT_STREQ(o.fallback_aggregators, "10.0.0.8:5151,hosts");
  EXPECT_EQ(o.failover_timeout_ms, 7000);
  EXPECT_EQ(o.when_full, NETSUM_FULL_WAIT);
  EXPECT_STREQ(o.metrics_address, "127.0.0.1:9473");
  EXPECT_STREQ(o.trace_path, "/tmp/trace-{job}-rank{rank}.json");
  EXPECT_DOUBLE_EQ(o.inject_loss, 0.01);
  EXPECT_EQ(o.inject_seed, 7u);
  EXPECT_TRUE(found.environment.needs_root());  // "hosts" is among the fallbacks
}

TEST(Environment, InvalidValuesAreNamed) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"NETSUM_AGGREGATOR", "10.0.0.9"}}, "NETSUM_AGGREGATOR=\"10.0.0.9\": is not \"host:port\""},
      {{{"NETSUM_AGGREGATOR", "::1:5151"}}, "NETSUM_AGGREGATOR"},
      {{{"NETSUM_AGGREGATOR", "a:0"}}, "NETSUM_AGGREGATOR"},
      {{{"NETSUM_MTU", "100"}}, "NETSUM_MTU=\"100\": must be a whole number from 144 to 9000"},
      {{{"NETSUM_MTU", "1500x"}}, "NETSUM_MTU"},
      {{{"NETSUM_SLOTS", "100"}}, "must be a power of two"},
      {{{"NETSUM_LANE_BITS", "12"}}, "must be 8, 16, 32, or 0"},
      {{{"NETSUM_SHARES", "some"}}, "must be auto or planned or off"},
      {{{"NETSUM_LINK_RATE", "fast"}}, "must be a rate"},
      {{{"NETSUM_LINK_RATE", "1gbyte"}}, "must be a rate"},
      {{{"NETSUM_CONNECT_TIMEOUT", "0"}}, "NETSUM_CONNECT_TIMEOUT"},
      {{{"NETSUM_LIVENESS_TIMEOUT", "nan"}}, "NETSUM_LIVENESS_TIMEOUT"},
      {{{"NETSUM_INJECT_LOSS", "101%"}}, "must be a probability"},
      {{{"NETSUM_METRICS", "9470"}}, "NETSUM_METRICS"},
      {{{"NETSUM_METRICS", "127.0.0.1:65535"}}, "NETSUM_METRICS"},
      {{{"NETSUM_TLS_CA", "/no/such/file"}}, "NETSUM_TLS_CA=\"/no/such/file\": cannot read"},
      {{{"NETSUM_HIERARCHY", "1"}}, "NETSUM_HIERARCHY=1"},
      {{{"NETSUM_ON_FAILURE", "failover"}}, "there is no aggregator to lose"},
      {{{"NETSUM_FALLBACK_AGGREGATORS", "hosts"}}, "without NETSUM_ON_FAILURE"},
  };
  for (const auto& [variables, expected] : cases)
    EXPECT_THAT(read(variables, 1).problem, HasSubstr(expected)) << variables.begin()->first;
}

TEST(Environment, DifferencesBetweenRanksAreNamed) {
  const std::string first = to_text(read({{"NETSUM_MTU", "9000"}}).environment.shared());
  EXPECT_EQ(first_difference(first, first), "");
  const std::string mine = to_text(read({}).environment.shared());
  EXPECT_EQ(first_difference(mine, first),
            "NETSUM_MTU is \"1500\" here but \"9000\" on rank 0; set it to the same on every rank");
  EXPECT_THAT(first_difference(mine, first + "NETSUM_NEW=1\n"), HasSubstr("NETSUM_MTU"));
  EXPECT_THAT(first_difference(mine, mine + "NETSUM_NEW=1\n"), HasSubstr("different versions"));
  // In a hierarchy, the ranks of each rack have an aggregator of their own.
  const Variables rack_a = {{"NETSUM_HIERARCHY", "1"}, {"NETSUM_AGGREGATOR", "10.0.0.1:5151"}};
  const Variables rack_b = {{"NETSUM_HIERARCHY", "1"}, {"NETSUM_AGGREGATOR", "10.0.1.1:5151"}};
  EXPECT_EQ(read(rack_a).environment.shared(), read(rack_b).environment.shared());
  EXPECT_EQ(read(rack_a).environment.most_ranks(), 512);
}

}  // namespace
}  // namespace netsum
