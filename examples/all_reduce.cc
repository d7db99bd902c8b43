// Sums a tensor over all ranks with the C++ API. Start one process per rank, on one host or several:
//
//   all_reduce_cc 0 2 root 127.0.0.1:5150 &        # no aggregator: every rank embeds a shard of one,
//   all_reduce_cc 1 2 root 127.0.0.1:5150          # and they meet at rank 0's address
//
//   netsum aggregator &
//   all_reduce_cc 0 2 aggregator 127.0.0.1:5151 &
//   all_reduce_cc 1 2 aggregator 127.0.0.1:5151
#include <netsum/communicator.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

int fail(const netsum::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s RANK WORLD_SIZE root|aggregator HOST:PORT\n", argv[0]);
    return 2;
  }
  netsum::CommunicatorOptions options;
  options.rank = std::atoi(argv[1]);
  options.world_size = std::atoi(argv[2]);
  options.job = "example";
  if (std::string(argv[3]) == "aggregator") {
    options.aggregators = {argv[4]};
  } else {
    options.root = argv[4];
  }
  auto connected = netsum::Communicator::connect(options);
  if (!connected.ok()) return fail(connected.status());
  netsum::Communicator& communicator = *connected.value();
  std::printf("rank %d of %d: %s\n", communicator.rank(), communicator.world_size(),
              communicator.describe().c_str());

  // Each rank has other numbers; the sum is written over them.
  constexpr size_t kCount = 100'000;
  std::vector<float> gradient(kCount);
  for (size_t i = 0; i < kCount; ++i) gradient[i] = static_cast<float>((options.rank + 1) * (i % 1000));

  netsum::AllReduceOptions sum;
  sum.type = netsum::DataType::kFloat32;
  sum.op = netsum::ReduceOp::kSum;
  netsum::Work work = communicator.all_reduce({gradient.data(), gradient.data(), kCount}, sum);
  // Other work can be done here while the network sums.
  if (netsum::Status status = work.wait(); !status.ok()) return fail(status);

  const int ranks_sum = options.world_size * (options.world_size + 1) / 2;
  for (size_t i = 0; i < kCount; ++i) {
    const auto expected = static_cast<double>(ranks_sum) * static_cast<double>(i % 1000);
    if (std::fabs(gradient[i] - expected) > 1e-2) {
      std::fprintf(stderr, "element %zu is %g, expected %g\n", i, gradient[i], expected);
      return 1;
    }
  }
  std::printf("rank %d: all %zu sums are right\n", options.rank, kCount);

  // Nobody leaves before everybody has its sums.
  if (netsum::Status status = communicator.barrier(options.timeout); !status.ok()) return fail(status);
  return 0;
}
