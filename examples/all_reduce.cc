// Sums two tensors at a time over all ranks with the C++ API, and goes on without a rank that is lost. Start one process for
// each rank, on one host or several:
//
//   all_reduce_cc 0 2 root 127.0.0.1:5150 &        # no aggregator: every rank embeds a shard of one,
//   all_reduce_cc 1 2 root 127.0.0.1:5150          # and they meet at rank 0's address
//
//   netsum aggregator &
//   all_reduce_cc 0 2 aggregator 127.0.0.1:5151 &
//   all_reduce_cc 1 2 aggregator 127.0.0.1:5151
//
// A fifth argument is the number of a rank that ends after the first step without a word, as one that crashes.
#include <netsum/communicator.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "arguments.h"

namespace {

constexpr int kSteps = 2;
constexpr size_t kCount = 100'000;
constexpr size_t kFewer = 1'000;

int fail(const netsum::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

// Two sums in flight, in place: the network sums the second while this rank waits for the first.
netsum::Status sum_both(netsum::Communicator& communicator, std::vector<float>& gradient,
                        std::vector<int64_t>& counts) {
  gradient.resize(kCount);
  counts.resize(kFewer);
  for (size_t i = 0; i < kCount; ++i)
    gradient[i] = static_cast<float>((communicator.rank() + 1) * (i % 1000));
  for (size_t i = 0; i < kFewer; ++i) counts[i] = static_cast<int64_t>(i);
  netsum::Work first = communicator.all_reduce({gradient.data(), gradient.data(), kCount},
                                               {.type = netsum::DataType::kFloat32});
  netsum::Work second =
      communicator.all_reduce({counts.data(), counts.data(), kFewer}, {.type = netsum::DataType::kInt64});
  // Other work can be done here.
  const netsum::Status status = first.wait();
  const netsum::Status other = second.wait();
  return status.ok() ? other : status;
}

bool right(int world_size, const std::vector<float>& gradient, const std::vector<int64_t>& counts) {
  const int ranks_sum = world_size * (world_size + 1) / 2;
  for (size_t i = 0; i < kCount; ++i) {
    const auto expected = static_cast<double>(ranks_sum) * static_cast<double>(i % 1000);
    if (std::fabs(gradient[i] - expected) > 1e-2) return false;
  }
  for (size_t i = 0; i < kFewer; ++i) {
    if (counts[i] != world_size * static_cast<int64_t>(i)) return false;
  }
  return true;
}

// The ranks that are left form a new job with numbers from 0 on. What was in flight must be summed again.
netsum::Status go_on_without(netsum::Communicator& communicator, const netsum::Status& lost) {
  std::printf("rank %d: lost rank %d\n  %s\n", communicator.rank(), lost.rank(), lost.to_string().c_str());
  const auto regrouped = communicator.regroup({});
  if (!regrouped.ok()) return regrouped.status();
  std::printf("rank %d is rank %d of %d now\n", regrouped->former_ranks[regrouped->rank], regrouped->rank,
              regrouped->world_size);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5 || argc > 6) {
    std::fprintf(stderr, "usage: %s RANK WORLD_SIZE root|aggregator HOST:PORT [RANK_THAT_ENDS]\n", argv[0]);
    return 2;
  }
  netsum::CommunicatorOptions options;
  int by_root = 0;
  if (read_arguments(argv, INT_MAX, &options.rank, &options.world_size, &by_root) == 0) return 2;
  options.job = "example";
  if (by_root != 0) {
    options.root = argv[4];
  } else {
    options.aggregators = {argv[4]};
  }
  int rank_that_ends = netsum::kNoRank;
  if (argc == 6 && read_number(argv[5], "RANK_THAT_ENDS", 0, options.world_size - 1, &rank_that_ends) == 0)
    return 2;
  auto connected = netsum::Communicator::connect(options);
  if (!connected.ok()) return fail(connected.status());
  netsum::Communicator& communicator = *connected.value();
  std::printf("rank %d of %d: %s\n", communicator.rank(), communicator.world_size(),
              communicator.describe().c_str());

  std::vector<float> gradient;
  std::vector<int64_t> counts;
  for (int step = 0; step < kSteps; ++step) {
    if (step > 0 && options.rank == rank_that_ends) std::_Exit(0);
    netsum::Status status = sum_both(communicator, gradient, counts);
    while (status.code() == netsum::ErrorCode::kPeerLost) {
      status = go_on_without(communicator, status);
      if (status.ok()) status = sum_both(communicator, gradient, counts);
    }
    if (!status.ok()) return fail(status);
    if (!right(communicator.world_size(), gradient, counts)) {
      std::fprintf(stderr, "rank %d: wrong sums\n", communicator.rank());
      return 1;
    }
    std::printf("rank %d: all sums of step %d are right\n", communicator.rank(), step);
  }

  // Nobody leaves before everybody has its sums.
  if (netsum::Status status = communicator.barrier(options.timeout); !status.ok()) return fail(status);
  return 0;
}
