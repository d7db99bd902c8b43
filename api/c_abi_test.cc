// What keeps the C ABI stable: structs of older and newer versions of the header, and the symbols of the library.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <netsum/netsum.h>
#include <netsum/settings.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "api/c_api_c11_testing.h"

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSymbolList = "api/exported_symbols.txt";

TEST(CAbiTest, AProgramInC11UsesEveryFunction) {
  const char* const problem = netsum_c11_program();
  EXPECT_EQ(problem, nullptr) << problem;
}

// The struct as a program has it whose header is older (or newer) by some bytes; what follows is not the program's.
class Options {
 public:
  explicit Options(size_t size) : bytes_(sizeof(netsum_comm_options) + 4096, 0xEE) {
    std::memset(bytes_.data(), 0, size);
    (*this)->struct_size = size;
    (*this)->world_size = 1;
    (*this)->root = "127.0.0.1:0";
  }
  netsum_comm_options* operator->() { return reinterpret_cast<netsum_comm_options*>(bytes_.data()); }
  unsigned char& byte(size_t i) { return bytes_[i]; }
  int connect() {
    netsum_comm* comm = nullptr;
    const int code = netsum_comm_connect(operator->(), &comm);
    netsum_comm_close(comm);
    return code;
  }

 private:
  std::vector<unsigned char> bytes_;
};

constexpr size_t kFirstVersion = 144;

TEST(CAbiTest, AProgramOfTheFirstVersionStillConnects) {
  EXPECT_EQ(Options(kFirstVersion).connect(), NETSUM_OK) << netsum_last_error();
}

TEST(CAbiTest, AProgramOfALaterVersionConnectsIfItUsesNothingNew) {
  const size_t later = sizeof(netsum_comm_options) + 24;
  EXPECT_EQ(Options(later).connect(), NETSUM_OK) << netsum_last_error();
  Options with_new_option(later);
  with_new_option.byte(later - 3) = 1;
  EXPECT_EQ(with_new_option.connect(), NETSUM_INVALID_ARGUMENT);
  EXPECT_THAT(netsum_last_error(), HasSubstr("struct_size is " + std::to_string(later) + ", and byte " +
                                             std::to_string(later - 3) + " is not zero"));
  EXPECT_THAT(netsum_last_error(), HasSubstr(std::to_string(sizeof(netsum_comm_options)) + " bytes"));
}

TEST(CAbiTest, SizesThatNoVersionHasAreRefused) {
  for (const size_t size : {size_t{0}, size_t{8}, kFirstVersion - 3, size_t{1} << 20, SIZE_MAX}) {
    Options options(kFirstVersion);
    options->struct_size = size;
    EXPECT_EQ(options.connect(), NETSUM_INVALID_ARGUMENT);
    EXPECT_THAT(netsum_last_error(), HasSubstr("struct_size is " + std::to_string(size) + ": set it to"));
  }
}

TEST(CAbiTest, EngineThreadsAreOneUnlessAskedFor) {
  const auto description_with = [](int threads) {
    Options options(sizeof(netsum_comm_options));
    options->engine_threads = threads;
    netsum_comm* comm = nullptr;
    if (netsum_comm_connect(options.operator->(), &comm) != NETSUM_OK)
      return std::string(netsum_last_error());
    const std::string text = netsum_comm_describe(comm);
    netsum_comm_close(comm);
    return text;
  };
  EXPECT_THAT(description_with(0), Not(HasSubstr("engine thread")));
  EXPECT_THAT(description_with(-1), HasSubstr("1 engine thread (automatically)"));
  EXPECT_THAT(description_with(2), HasSubstr("WARNING: 2 were asked for, and 1 stripe can be divided"));
  EXPECT_THAT(description_with(-2), HasSubstr("engine_threads is -2"));
  EXPECT_THAT(description_with(65), HasSubstr("engine_threads is 65"));
}

TEST(CAbiTest, SpinIsSwitchedOffOrGivenATime) {
  const auto answer_to = [](int no_spin, int64_t spin_us) {
    Options options(sizeof(netsum_comm_options));
    options->no_spin = no_spin;
    options->spin_us = spin_us;
    netsum_comm* comm = nullptr;
    if (netsum_comm_connect(options.operator->(), &comm) != NETSUM_OK)
      return std::string(netsum_last_error());
    netsum_comm_close(comm);
    return std::string("connected");
  };
  EXPECT_EQ(answer_to(1, 0), "connected");
  EXPECT_EQ(answer_to(0, 10'000), "connected");
  EXPECT_THAT(answer_to(0, -1), HasSubstr("spin is -1us"));
  EXPECT_THAT(answer_to(0, 60'000'001), HasSubstr("spin is 60000001us"));
  EXPECT_THAT(answer_to(1, 10'000), HasSubstr("no_spin is set, and spin_us is 10000"));
}

TEST(CAbiTest, ValuesThatNoEnumHasAreRefused) {
  Options options(sizeof(netsum_comm_options));
  options->packet_io = static_cast<netsum_packet_io>(2);
  EXPECT_EQ(options.connect(), NETSUM_INVALID_ARGUMENT);
  EXPECT_THAT(netsum_last_error(), HasSubstr("packet_io"));
}

TEST(CAbiTest, StatisticsFillWhatTheCallerHas) {
  Options options(sizeof(netsum_comm_options));
  netsum_comm* comm = nullptr;
  ASSERT_EQ(netsum_comm_connect(options.operator->(), &comm), NETSUM_OK) << netsum_last_error();
  struct Larger {
    netsum_stats stats;
    uint64_t unknown;
    uint64_t not_theirs;
  } larger;
  std::memset(&larger, 0xEE, sizeof larger);
  larger.stats.struct_size = offsetof(Larger, not_theirs);
  EXPECT_EQ(netsum_comm_stats(comm, &larger.stats), NETSUM_OK) << netsum_last_error();
  EXPECT_EQ(larger.stats.struct_size, offsetof(Larger, not_theirs));
  EXPECT_EQ(larger.stats.operations_failed, 0u);
  EXPECT_EQ(larger.unknown, 0u);
  EXPECT_EQ(larger.not_theirs, 0xEEEEEEEEEEEEEEEEu);
  std::memset(&larger, 0xEE, sizeof larger);
  larger.stats.struct_size = offsetof(netsum_stats, operations);  // an older one, with two fields
  EXPECT_EQ(netsum_comm_stats(comm, &larger.stats), NETSUM_OK) << netsum_last_error();
  EXPECT_EQ(larger.stats.operations_submitted, 0u);
  EXPECT_EQ(larger.stats.operations, 0xEEEEEEEEEEEEEEEEu);
  larger.stats.struct_size = 0;
  EXPECT_EQ(netsum_comm_stats(comm, &larger.stats), NETSUM_INVALID_ARGUMENT);
  netsum_comm_close(comm);
}

std::set<std::string> lines_of(std::istream& text) {
  std::set<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (!line.empty() && line[0] != '#') lines.insert(line);
  }
  return lines;
}

// A new function: add it to exported_symbols.txt (and to exports.map, if it is C++). One that goes missing breaks
// programs.
TEST(CAbiTest, TheLibraryExportsWhatTheListSays) {
  Dl_info library;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&netsum_comm_close), &library), 0);
  const std::string command = std::string("nm -D --defined-only ") + library.dli_fname + " | cut -d' ' -f3";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof buffer, pipe.get())) > 0;) output.append(buffer, n);
  std::istringstream symbols(output);
  std::ifstream list(kSymbolList);
  ASSERT_TRUE(list.is_open()) << kSymbolList;
  EXPECT_EQ(lines_of(symbols), lines_of(list));
}

// What the environment says reaches the C ABI as its options.
TEST(CAbiTest, SettingsAreWrittenAsOptions) {
  const std::map<std::string, std::string> variables = {
      {"NETSUM_AGGREGATOR", "10.0.0.9:5151, [::1]:5151"},
      {"NETSUM_AGGREGATOR_TOKEN", "secret"},
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
      {"NETSUM_LINK_RATE", "2.5gbit"},
      {"NETSUM_PACE", "400mbit"},
      {"NETSUM_BIND_ADDRESS", "10.0.0.1"},
      {"NETSUM_CONNECT_TIMEOUT", "1.5"},
      {"NETSUM_LIVENESS_TIMEOUT", "0"},
      {"NETSUM_ON_FAILURE", "failover"},
      {"NETSUM_FALLBACK_AGGREGATORS", "10.0.0.8:5151,hosts"},
      {"NETSUM_FAILOVER_TIMEOUT", "7"},
      {"NETSUM_WHEN_FULL", "wait"},
      {"NETSUM_METRICS", "127.0.0.1:9470"},
      {"NETSUM_TRACE", "/tmp/{job}{rank}"},
      {"NETSUM_INJECT_LOSS", "1%"},
      {"NETSUM_INJECT_SEED", "7"}};
  const auto settings = netsum::Settings::read([&](const std::string& name) {
    const auto found = variables.find(name);
    return found != variables.end() ? found->second : std::string();
  });
  ASSERT_TRUE(settings.ok()) << settings.status().to_string();
  netsum_comm_options o = {};
  settings->write(&o);
  EXPECT_STREQ(o.aggregators, "10.0.0.9:5151,[::1]:5151");
  EXPECT_STREQ(o.aggregator_token, "secret");
  EXPECT_EQ(o.mtu, 9000);
  EXPECT_EQ(o.slots, 64);
  EXPECT_EQ(o.packet_io, NETSUM_IO_AF_XDP);
  EXPECT_EQ(o.no_spin, 1);
  EXPECT_EQ(o.spin_us, 0);
  EXPECT_EQ(o.engine_threads, -1) << "automatic";
  EXPECT_EQ(o.no_shared_memory, 1);
  EXPECT_STREQ(o.host, "rack-1");
  EXPECT_EQ(o.lane_bits, 32);
  EXPECT_EQ(o.shares, NETSUM_SHARES_PLANNED);
  EXPECT_EQ(o.verify, NETSUM_VERIFY_BOTH);
  EXPECT_EQ(o.no_predict_scales, 1);
  EXPECT_EQ(o.numerics, NETSUM_NUMERICS_FIXED);
  EXPECT_EQ(o.link_rate_bps, 2.5e9);
  EXPECT_EQ(o.pace_bps, 4e8);
  EXPECT_STREQ(o.bind_address, "10.0.0.1");
  EXPECT_EQ(o.connect_timeout_ms, 1500);
  EXPECT_EQ(o.liveness_timeout_ms, -1) << "never";
  EXPECT_EQ(o.failover, 1);
  EXPECT_STREQ(o.fallback_aggregators, "10.0.0.8:5151,hosts");
  EXPECT_EQ(o.failover_timeout_ms, 7000);
  EXPECT_EQ(o.when_full, NETSUM_FULL_WAIT);
  EXPECT_STREQ(o.metrics_address, "127.0.0.1:9470");
  EXPECT_STREQ(o.trace_path, "/tmp/{job}{rank}");
  EXPECT_DOUBLE_EQ(o.inject_loss, 0.01);
  EXPECT_EQ(o.inject_seed, 7u);
}

}  // namespace
