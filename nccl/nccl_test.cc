// The plug-in, driven as NCCL drives it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "nccl/abi.h"
#include "nccl/device.h"
#include "nccl/harness.h"
#include "nccl/tcp.h"

namespace netsum::nccl::nccl_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- Point to point -----------------------------------------------------------------------------------------

// Rank 0 listens and receives, rank 1 sends. Returns this rank's comm.
void* join_pair(const NetApi& net, Board& board, int rank, int which = 0) {
  void* comm = nullptr;
  require(net.init() == kSuccess, "init");
  if (rank == 0) {
    void* listener = nullptr;
    require(net.listen(board.handles[which][0], &listener) == kSuccess, "listen");
    board.meet(2 * which, 2);
    while (comm == nullptr) require(net.accept(listener, &comm) == kSuccess, "accept");
    require(net.close_listen(listener) == kSuccess, "close_listen");
  } else {
    board.meet(2 * which, 2);
    while (comm == nullptr) require(net.connect(board.handles[which][0], &comm) == kSuccess, "connect");
  }
  board.meet(2 * which + 1, 2);
  return comm;
}

char pattern(size_t message, size_t i) {
  return static_cast<char>(message * 31 + i * 7 + (i >> 11));
}

// Messages of many sizes, as many outstanding as are allowed, from unaligned memory; receives are larger than messages.
void exchange(const NetApi& net, void* comm, bool sends) {
  const std::vector<size_t> sizes = {0,      1,      7,       64,      4096,   65535,         65536, 65537,
                                     131072, 131073, 1000003, 1 << 20, 300000, (5 << 20) + 3, 0,     12};
  constexpr size_t kMessages = 40;
  struct Outstanding {
    void* request;
    std::vector<char> memory;
    size_t message;
  };
  std::deque<Outstanding> outstanding;
  size_t started = 0, most = 0;
  for (size_t ended = 0; ended < kMessages;) {
    while (started < kMessages) {
      const size_t bytes = sizes[started % sizes.size()];
      Outstanding one = {nullptr, std::vector<char>(bytes + 200), started};
      if (sends) {
        for (size_t i = 0; i < bytes; ++i) one.memory[i + 3] = pattern(started, i);
      }
      const Result result = sends
                                ? net.send(comm, one.memory.data() + 3, bytes, &one.request)
                                : net.receive(comm, one.memory.data() + 3, bytes + started % 2, &one.request);
      require(result == kSuccess, "a message is started");
      if (one.request == nullptr) break;
      outstanding.push_back(std::move(one));
      most = std::max(most, outstanding.size());
      ++started;
    }
    Outstanding& first = outstanding.front();
    int bytes = -1;
    require(finish(net.test, first.request, &bytes) == kSuccess, "a message ends");
    require(static_cast<size_t>(bytes) == sizes[first.message % sizes.size()], "its size");
    if (!sends) {
      size_t wrong = 0;
      for (size_t i = 0; i < static_cast<size_t>(bytes); ++i)
        wrong += first.memory[i + 3] != pattern(first.message, i) ? 1 : 0;
      require(wrong == 0, "its content");
    }
    outstanding.pop_front();
    ++ended;
  }
  require(most == kMostRequests, "as many requests are outstanding as NCCL allows");
}

class NcclVersions : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Versions, NcclVersions, testing::ValuesIn(kVersions),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

TEST_P(NcclVersions, MessagesArriveInOrder) {
  EXPECT_THAT(run_ranks(2,
                        [](Board& board, int rank) {
                          const NetApi net = load_net(GetParam());
                          // Two connections at once, in opposite directions.
                          void* const first = join_pair(net, board, rank);
                          void* const second = join_pair(net, board, 1 - rank, 1);
                          exchange(net, first, rank == 1);
                          exchange(net, second, rank == 0);
                          (rank == 1 ? net.close_send : net.close_receive)(first);
                          (rank == 0 ? net.close_send : net.close_receive)(second);
                        }),
              Each(0));
}

TEST(Nccl, APeerThatDiesOrClosesIsAnError) {
  for (const bool dies : {true, false}) {
    const auto ends = run_ranks(2, [dies](Board& board, int rank) {
      const NetApi net = load_net(12);
      void* const comm = join_pair(net, board, rank);
      std::vector<char> memory(64 << 20);
      void* request = nullptr;
      if (rank == 1) {
        require(net.send(comm, memory.data(), memory.size(), &request) == kSuccess, "send");
        int done = 0;
        net.test(request, &done, nullptr);
        require(done == 0, "only a part of the message is on its way");
        board.meet(10, 2);
        if (dies) raise(SIGKILL);
        net.close_send(comm);  // with a message in flight
        return;
      }
      board.meet(10, 2);
      require(net.receive(comm, memory.data(), memory.size(), &request) == kSuccess, "receive");
      require(finish(net.test, request, nullptr) == kRemoteError, "the receiver is told");
      require(log_text().find("a peer has closed its connection, or is lost") != std::string::npos,
              "the log");
      net.close_receive(comm);
    });
    EXPECT_THAT(ends, ElementsAre(0, dies ? -SIGKILL : 0));
  }
}

TEST(Nccl, AMessageThatIsLargerThanItsReceiveIsAnError) {
  EXPECT_THAT(run_ranks(2,
                        [](Board& board, int rank) {
                          const NetApi net = load_net(12);
                          void* const comm = join_pair(net, board, rank);
                          std::vector<char> memory(200);
                          void* request = nullptr;
                          if (rank == 1) {
                            net.send(comm, memory.data(), 200, &request);
                            require(finish(net.test, request, nullptr) == kSuccess, "the sender");
                            board.meet(10, 2);
                            return;
                          }
                          net.receive(comm, memory.data(), 100, &request);
                          require(finish(net.test, request, nullptr) == kRemoteError, "the receiver");
                          require(log_text().find("200 bytes to a receive of 100") != std::string::npos,
                                  "the log");
                          board.meet(10, 2);
                        }),
              Each(0));
}

TEST(Nccl, StrayConnectionsAndOtherVersionsAreRefused) {
  const auto ends = run_ranks(1, [](Board&, int) {
    const NetApi net = load_net(12);
    net.init();
    Handle handle = {};
    void* listener = nullptr;
    require(net.listen(&handle, &listener) == kSuccess, "listen");
    Socket stray = start_connect(handle.address);
    std::array<char, sizeof(Hello)> other = {};
    const char* data = other.data();
    size_t left = other.size();
    while (send_some(stray.fd(), &data, &left) == Io::kAgain) sched_yield();
    void* comm = nullptr;
    while (log_text().find("refused a connection that is not of this job") == std::string::npos)
      require(net.accept(listener, &comm) == kSuccess && comm == nullptr, "accept");
    handle.magic += 1;
    require(net.connect(&handle, &comm) == kInvalidArgument, "connect");
    require(log_text().find("install the same on every host") != std::string::npos, "the log");
    net.close_listen(listener);
  });
  EXPECT_THAT(ends, Each(0));
}

// --- Collectives --------------------------------------------------------------------------------------------

// All-reduces of numbers of type T, many of them outstanding, in place and not, from unaligned memory.
template <typename T>
void sum(const CollNetApi& api, void* comm, int rank, int ranks, int type) {
  const std::vector<size_t> counts = {0, 1, 7, 360, 361, 4096, 65536, 100003, 12};
  struct Outstanding {
    void* request = nullptr;
    std::vector<T> in, out;
    size_t count = 0;
  };
  std::deque<Outstanding> outstanding;
  for (size_t round = 0; round < 4; ++round) {
    for (const size_t count : counts) {
      Outstanding& one = outstanding.emplace_back();
      one.count = count;
      one.in.resize(count + 1);
      one.out.resize(count + 1);
      for (size_t i = 0; i < count; ++i)
        one.in[i + 1] = static_cast<T>(i % 50 + static_cast<size_t>(rank) + round);
      T* const in = one.in.data() + 1;
      T* const out = one.out.data() + 1;
      const bool in_place = round % 2 == 1;
      require(
          api.all_reduce(comm, in, in_place ? in : out, count, type, nccl::kSum, &one.request) == kSuccess,
          "all_reduce");
      require(one.request != nullptr, "it is started");
      if (in_place) one.out.swap(one.in);  // the memory stays where it is
    }
  }
  for (size_t n = 0; n < outstanding.size(); ++n) {
    Outstanding& one = outstanding[n];
    int bytes = -1;
    require(finish(api.test, one.request, &bytes) == kSuccess, "a sum ends");
    require(static_cast<size_t>(bytes) == one.count * sizeof(T), "its size");
    const size_t round = n / counts.size();
    size_t wrong = 0;
    for (size_t i = 0; i < one.count; ++i) {
      const size_t expected =
          (i % 50 + round) * static_cast<size_t>(ranks) + static_cast<size_t>(ranks * (ranks - 1) / 2);
      wrong += one.out[i + 1] != static_cast<T>(expected) ? 1 : 0;
    }
    require(wrong == 0, "its result");
  }
}

TEST_P(NcclVersions, SumsInTheNetwork) {
  constexpr int kRanks = 3;
  EXPECT_THAT(run_ranks(kRanks,
                        [](Board& board, int rank) {
                          setenv("NETSUM_SHARED_MEMORY", "0", 1);  // as between hosts
                          const CollNetApi api = load_coll_net(GetParam());
                          void* const first = join_collective(api, board, rank, kRanks);
                          void* const second = join_collective(api, board, rank, kRanks, 1);
                          sum<float>(api, first, rank, kRanks, kFloat32);
                          sum<int32_t>(api, second, rank, kRanks, kInt32);
                          sum<int64_t>(api, first, rank, kRanks, kInt64);
                          require(api.close(first) == kSuccess && api.close(second) == kSuccess, "close");
                          require(log_text().find("CollNet of 3 ranks: ") != std::string::npos, "the log");
                        }),
              Each(0));
}

TEST(Nccl, SumsOfHalfPrecision) {
  EXPECT_THAT(
      run_ranks(2,
                [](Board& board, int rank) {
                  const CollNetApi api = load_coll_net(12);
                  void* const comm = join_collective(api, board, rank, 2);
                  // 1.0 and 3.0 in bfloat16 and float16.
                  for (const auto& [type, one, three, four] :
                       {std::tuple{kBfloat16, 0x3f80, 0x4040, 0x4080}, {kFloat16, 0x3c00, 0x4200, 0x4400}}) {
                    std::vector<uint16_t> in(1000, static_cast<uint16_t>(rank == 0 ? one : three)), out(1000);
                    void* request = nullptr;
                    api.all_reduce(comm, in.data(), out.data(), in.size(), type, nccl::kSum, &request);
                    require(finish(api.test, request, nullptr) == kSuccess, "a sum ends");
                    require(out == std::vector<uint16_t>(1000, static_cast<uint16_t>(four)), "its result");
                  }
                  api.close(comm);
                }),
      Each(0));
}

// NCCL does not tell a process its number on the host: two of them have the same port for metrics.
TEST(Nccl, TwoProcessesOfAHostServeMetrics) {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  ASSERT_EQ(bind(probe, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(getsockname(probe, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  close(probe);
  const std::string metrics = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_THAT(run_ranks(2,
                        [&](Board& board, int rank) {
                          setenv("NETSUM_METRICS", metrics.c_str(), 1);
                          const CollNetApi api = load_coll_net(12);
                          void* const comm = join_collective(api, board, rank, 2);
                          sum<int32_t>(api, comm, rank, 2, kInt32);
                          api.close(comm);
                          require(log_text().find("serves none") == std::string::npos, "the log");
                        }),
              Each(0));
}

// The buffer of all ranks in windows, as NCCL's proxy cuts it: they begin and end within ranks' parts.
constexpr size_t kPerRank = 1000, kStep = 768;  // elements

uint64_t element(int rank, size_t i) {
  return static_cast<uint64_t>(rank) * 1'000'003 + i * 7;
}

void gather_in_windows(const CollNetApi& api, void* comm, int rank, int ranks) {
  const size_t whole = kPerRank * static_cast<size_t>(ranks), first = kPerRank * static_cast<size_t>(rank);
  std::vector<uint64_t> mine(kPerRank), all(whole);
  for (size_t i = 0; i < kPerRank; ++i) mine[i] = element(rank, i);
  std::vector<void*> requests;
  for (size_t begin = 0; begin < whole; begin += kStep) {
    const size_t count = std::min(kStep, whole - begin);
    const size_t skipped = std::clamp(begin, first, first + kPerRank) - first;
    require(api.all_gather(comm, mine.data() + skipped, all.data() + begin, 8 * kPerRank, 8 * begin,
                           8 * count, &requests.emplace_back()) == kSuccess,
            "all_gather");
  }
  for (size_t n = 0; n < requests.size(); ++n) {
    int bytes = -1;
    require(finish(api.test, requests[n], &bytes) == kSuccess, "an all-gather ends");
    require(static_cast<size_t>(bytes) == 8 * std::min(kStep, whole - n * kStep), "its size");
  }
  for (size_t i = 0; i < whole; ++i)
    require(all[i] == element(static_cast<int>(i / kPerRank), i % kPerRank), "what was gathered");
}

void scatter_sums_in_windows(const CollNetApi& api, void* comm, int rank, int ranks) {
  const size_t whole = kPerRank * static_cast<size_t>(ranks), first = kPerRank * static_cast<size_t>(rank);
  std::vector<int32_t> in(whole), out(kPerRank, -1);
  for (size_t i = 0; i < whole; ++i) in[i] = static_cast<int32_t>(i) + rank;
  std::vector<void*> requests;
  for (size_t begin = 0; begin < whole; begin += kStep) {
    const size_t count = std::min(kStep, whole - begin);
    const size_t skipped = std::clamp(begin, first, first + kPerRank) - first;
    require(api.reduce_scatter(comm, in.data() + begin, out.data() + skipped, 4 * kPerRank, 4 * begin,
                               4 * count, kInt32, nccl::kSum, &requests.emplace_back()) == kSuccess,
            "reduce_scatter");
  }
  for (void* const request : requests)
    require(finish(api.test, request, nullptr) == kSuccess, "a reduce-scatter ends");
  for (size_t i = 0; i < kPerRank; ++i)
    require(out[i] == static_cast<int32_t>(first + i) * ranks + ranks * (ranks - 1) / 2, "its result");
}

TEST_P(NcclVersions, GathersAndScattersInWindows) {
  constexpr int kRanks = 3;
  EXPECT_THAT(run_ranks(kRanks,
                        [](Board& board, int rank) {
                          setenv("NETSUM_SHARED_MEMORY", rank == 2 ? "0" : "1", 1);
                          const CollNetApi api = load_coll_net(GetParam());
                          void* const comm = join_collective(api, board, rank, kRanks);
                          gather_in_windows(api, comm, rank, kRanks);
                          scatter_sums_in_windows(api, comm, rank, kRanks);
                          require(api.close(comm) == kSuccess, "close");
                        }),
              Each(0));
}

TEST(Nccl, MaximaAndMinima) {
  EXPECT_THAT(run_ranks(2,
                        [](Board& board, int rank) {
                          setenv("NETSUM_SHARED_MEMORY", "0", 1);
                          const CollNetApi api = load_coll_net(12);
                          void* const comm = join_collective(api, board, rank, 2);
                          for (const int op : {int{kMax}, int{kMin}}) {
                            std::vector<float> in(1000), out(1000), part(500);
                            for (size_t i = 0; i < in.size(); ++i)
                              in[i] = (rank == 0) == (i % 2 == 0) ? 1.5F : -static_cast<float>(i);
                            void* request = nullptr;
                            api.all_reduce(comm, in.data(), out.data(), in.size(), kFloat32, op, &request);
                            require(finish(api.test, request, nullptr) == kSuccess, "it ends");
                            api.reduce_scatter(comm, in.data(), part.data(), 2000, 0, 4000, kFloat32, op,
                                               &request);
                            require(finish(api.test, request, nullptr) == kSuccess, "it ends");
                            const size_t first = 500 * static_cast<size_t>(rank);
                            for (size_t i = 0; i < in.size(); ++i) {
                              const float expected = op == kMax ? 1.5F : -static_cast<float>(i);
                              require(out[i] == expected, "the all-reduce");
                              require(i < first || i >= first + 500 || part[i - first] == expected, "a part");
                            }
                          }
                          api.close(comm);
                        }),
              Each(0));
}

TEST(Nccl, WindowsThatAreNoneAreRefused) {
  EXPECT_THAT(run_ranks(2,
                        [](Board& board, int rank) {
                          const CollNetApi api = load_coll_net(12);
                          void* const comm = join_collective(api, board, rank, 2);
                          std::vector<char> in(400), out(400);
                          void* request = &in;
                          require(api.all_gather(comm, in.data(), out.data(), 100, 150, 51, &request) ==
                                      kInvalidArgument,
                                  "beyond the ranks");
                          require(request == nullptr, "no request");
                          require(api.reduce_scatter(comm, in.data(), out.data(), 100, 2, 8, kFloat32,
                                                     nccl::kSum, &request) == kInvalidArgument,
                                  "within an element");
                          require(api.reduce_scatter(comm, in.data(), out.data(), 100, 0, 8, kFloat32,
                                                     kProduct, &request) == kInvalidUsage,
                                  "an operator");
                          // They were not sent, so nobody is out of step.
                          gather_in_windows(api, comm, rank, 2);
                          api.close(comm);
                        }),
              Each(0));
}

TEST(Nccl, ARankThatDiesInACollectiveIsAnError) {
  const auto ends = run_ranks(3, [](Board& board, int rank) {
    setenv("NETSUM_SHARED_MEMORY", "0", 1);
    const CollNetApi api = load_coll_net(12);
    void* const comm = join_collective(api, board, rank, 3);
    board.meet(40, 3);
    if (rank == 2) raise(SIGKILL);
    std::vector<float> in(100000, 1), out(100000);
    void* request = nullptr;
    require(
        api.all_reduce(comm, in.data(), out.data(), in.size(), kFloat32, nccl::kSum, &request) == kSuccess,
        "all_reduce");
    require(finish(api.test, request, nullptr) == kRemoteError, "the others are told");
    require(log_text().find("rank 2") != std::string::npos, "the log names it");
    require(api.close(comm) == kSuccess, "close");
  });
  EXPECT_THAT(ends, ElementsAre(0, 0, -SIGKILL));
}

TEST(Nccl, RanksThatDifferAreErrorsOnAllOfThem) {
  EXPECT_THAT(run_ranks(2,
                        [](Board& board, int rank) {
                          setenv("NETSUM_SHARED_MEMORY", "0", 1);
                          const CollNetApi api = load_coll_net(12);
                          void* const comm = join_collective(api, board, rank, 2);
                          std::vector<float> in(1000, 1), out(1000);
                          void* request = nullptr;
                          api.all_reduce(comm, in.data(), out.data(), rank == 0 ? 1000 : 999, kFloat32,
                                         nccl::kSum, &request);
                          require(finish(api.test, request, nullptr) != kSuccess, "an error");
                          require(log_text().find("mismatch") != std::string::npos, "the log");
                          api.close(comm);
                        }),
              Each(0));
}

TEST(Nccl, ClosingWithSumsInFlight) {
  EXPECT_THAT(run_ranks(2,
                        [](Board& board, int rank) {
                          const CollNetApi api = load_coll_net(12);
                          void* const comm = join_collective(api, board, rank, 2);
                          std::vector<float> in(1 << 20, 1), out(1 << 20);
                          void* request = nullptr;
                          if (rank == 0)
                            api.all_reduce(comm, in.data(), out.data(), in.size(), kFloat32, nccl::kSum,
                                           &request);
                          require(api.close(comm) == kSuccess, "close");
                        }),
              Each(0));
}

TEST(Nccl, RanksThatCannotMeetFallBack) {
  EXPECT_THAT(
      run_ranks(2,
                [](Board& board, int rank) {
                  setenv("NETSUM_CONNECT_TIMEOUT", "1", 1);
                  setenv("NETSUM_MTU", rank == 0 ? "1500" : "9000", 1);
                  const CollNetApi api = load_coll_net(12);
                  api.init();
                  void* listener = nullptr;
                  api.listen(board.handles[0][rank], &listener);
                  board.meet(20, 2);
                  std::vector<void*> handles = {board.handles[0][0], board.handles[0][1]};
                  void* comm = &handles;
                  require(api.connect(handles.data(), 2, rank, listener, &comm) == kSystemError, "connect");
                  require(comm == nullptr, "no comm");
                  require(log_text().find("CollNet is not used: rank 1: NETSUM_MTU is \"9000\"") !=
                              std::string::npos,
                          "the log says why");
                  // A rank that does not come: an error after twice the timeout.
                  if (rank == 0)
                    require(api.connect(handles.data(), 2, rank, listener, &comm) == kSystemError, "alone");
                  api.close_listen(listener);
                }),
      Each(0));
}

// --- The rest -----------------------------------------------------------------------------------------------

TEST(Nccl, ReduceSupportIsWhatNetsumReduces) {
  const CollNetApi api = load_coll_net(12);
  for (int type = kInt8; type <= kBfloat16; ++type) {
    for (const int op : {int{nccl::kSum}, int{kProduct}, int{kMax}, int{kMin}}) {
      int supported = -1;
      EXPECT_EQ(api.reduce_support(type, op, &supported), kSuccess);
      const bool summed =
          type == kInt32 || type == kInt64 || type == kFloat16 || type == kFloat32 || type == kBfloat16;
      EXPECT_EQ(supported, summed && op != kProduct ? 1 : 0) << type << " " << op;
    }
  }
}

TEST(Nccl, PropertiesAndMemory) {
  auto* const net = static_cast<NetV11<PropertiesV12>*>(table("ncclNetPlugin_v12"));
  auto* const collectives = static_cast<CollNetV11<PropertiesV12>*>(table("ncclCollNetPlugin_v12"));
  PropertiesV12 of_net, of_collectives;
  ASSERT_EQ(net->get_properties(0, &of_net), kSuccess);
  ASSERT_EQ(collectives->get_properties(0, &of_collectives), kSuccess);
  // NCCL matches the devices of both by their names.
  EXPECT_STREQ(of_net.name, of_collectives.name);
  EXPECT_EQ(of_net.guid, of_collectives.guid);
  EXPECT_EQ(of_net.pointer_support, kPointerHost);
  EXPECT_GT(of_net.speed_mbps, 0);
  EXPECT_EQ(of_net.most_receives, 1);
  EXPECT_EQ(of_net.virtual_device.count, 1);
  EXPECT_GT(of_net.most_collective_bytes, 0u);
  EXPECT_LE(of_net.most_collective_bytes, size_t{1} << 40);  // NCCL refuses more
  EXPECT_EQ(of_net.rail_id, -1);
  EXPECT_EQ(net->get_properties(1, &of_net), kInvalidArgument);
  void* memory = nullptr;
  EXPECT_EQ(net->register_memory(nullptr, &of_net, 1, kPointerHost, &memory), kSuccess);
  EXPECT_EQ(net->register_memory(nullptr, &of_net, 1, 0x2, &memory), kInvalidUsage);
  int index = 0;
  EXPECT_EQ(net->make_virtual_device(&index, nullptr), kInvalidUsage);
}

TEST(Nccl, OldVersionsAreRefusedInTheLog) {
  for (const char* const name : {"ncclNetPlugin_v6", "ncclNetPlugin_v7"}) {
    EXPECT_NE(static_cast<RefusedPlugin*>(table(name))->init(log_line), kSuccess);
    EXPECT_THAT(log_text(), HasSubstr("this NCCL is older than 2.20"));
  }
}

TEST(Nccl, TheTunerRaisesTheChunksOfCollNetOnly) {
  auto* const tuner = static_cast<TunerV6*>(table("ncclTunerPlugin_v6"));
  void* context = &context;
  EXPECT_EQ(tuner->init(&context, 1, 8, 8, log_line, nullptr, nullptr), kSuccess);
  size_t bytes = 128 << 10;
  EXPECT_EQ(tuner->get_chunk_size(context, 4, 1 << 30, kCollNetChain, 2, 2, &bytes), kSuccess);
  EXPECT_EQ(bytes, size_t{4} << 20);
  bytes = 128 << 10;
  EXPECT_EQ(tuner->get_chunk_size(context, 4, 1 << 30, 1, 2, 2, &bytes), kSuccess);  // a ring
  EXPECT_EQ(bytes, size_t{128} << 10);
}

TEST(Nccl, InterfacesAreSelectedAsByNccl) {
  EXPECT_TRUE(selects("", "eth0"));
  EXPECT_FALSE(selects("", "docker0"));
  EXPECT_TRUE(selects("eth,ib", "eth1"));
  EXPECT_FALSE(selects("eth", "ib0"));
  EXPECT_TRUE(selects("=eth1", "eth1"));
  EXPECT_FALSE(selects("=eth1", "eth10"));
  EXPECT_FALSE(selects("^docker,lo", "docker0"));
  EXPECT_TRUE(selects("^docker,lo", "eth0"));
  EXPECT_FALSE(selects("^=eth1", "eth1"));
  EXPECT_TRUE(selects("^=eth1", "eth10"));
}

}  // namespace
}  // namespace netsum::nccl::nccl_test
