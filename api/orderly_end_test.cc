// Ranks that end in order while results are lost: no other rank misses its last one.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "session/job_testing.h"
#include "wire/ids.h"
#include "wire/packet.h"

namespace netsum::orderly_end_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRanks = 4;

// While it exists, the kernel drops results at all UDP sockets of this process. A rank and its own shard need none.
class LostResults {
 public:
  LostResults() {
    constexpr uint32_t kUdpHeaderBytes = 8;
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kUdpHeaderBytes + offsetof(netsum_header, version_type)),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x0f),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NETSUM_TYPE_RESULT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    const sock_fprog program = {static_cast<unsigned short>(std::size(code)), code};
    EXPECT_GE(set(SO_ATTACH_FILTER, &program, sizeof program), 2 * kRanks) << "of shards and of ranks";
  }
  ~LostResults() {
    const int unused = 0;
    set(SO_DETACH_FILTER, &unused, sizeof unused);
  }
  LostResults(const LostResults&) = delete;
  LostResults& operator=(const LostResults&) = delete;

 private:
  // Returns for how many sockets.
  static int set(int option, const void* value, socklen_t size) {
    int sockets = 0;
    for (int file = 0; file < 4096; ++file) {
      int type = 0;
      socklen_t type_size = sizeof type;
      if (getsockopt(file, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 || type != SOCK_DGRAM) continue;
      if (setsockopt(file, SOL_SOCKET, option, value, size) == 0) ++sockets;
    }
    return sockets;
  }
};

// Barriers before the last one. Shards take turns: at 2, the last one is in that of rank 0, where the ranks meet.
class OrderlyEnd : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Shards, OrderlyEnd, testing::Values(0, 2));

// The rank in whose shard the last sum is ends first, and the others get it only after a while.
TEST_P(OrderlyEnd, ARankThatHasLeftServesLostResults) {
  CommunicatorOptions options;
  options.job = "orderly end";
  options.root = "127.0.0.1:0";
  options.shared_memory = false;
  options.timeout = options.connect_timeout = options.liveness_timeout = seconds(60);  // a busy machine
  std::optional<LostResults> lost;
  std::barrier summed(kRanks, [&]() noexcept { lost.emplace(); });
  std::promise<void> ended;
  std::atomic<int> ends = 0;
  std::thread repair([&] {
    ended.get_future().wait();
    std::this_thread::sleep_for(milliseconds(1500));  // more than some probes
    lost.reset();
  });
  run_ranks(kRanks, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    sum_and_check(*communicator, 10'000);
    for (int i = 0; i < GetParam(); ++i) ASSERT_TRUE(communicator->barrier(seconds(60)).ok());
    summed.arrive_and_wait();
    const Status last = communicator->barrier(seconds(60));
    EXPECT_TRUE(last.ok()) << "rank " << rank << ": " << last.to_string();
    if (ends++ == 0) ended.set_value();
    communicator.reset();
  });
  repair.join();
}

}  // namespace
}  // namespace netsum::orderly_end_test
