// Collectives other than all-reduce with the C++ API: the start and the end of a sharded training step. Start one process
// per rank, as in all_reduce.cc:
//
//   collectives_cc 0 2 root 127.0.0.1:5150 &
//   collectives_cc 1 2 root 127.0.0.1:5150
#include <netsum/communicator.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "arguments.h"

namespace {

// Prints the error of an operation, if there is one.
bool failed(const netsum::Work& work) {
  const netsum::Status status = work.wait();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return !status.ok();
}

bool wrong(bool right, const char* what) {
  if (!right) std::fprintf(stderr, "%s: wrong result\n", what);
  return !right;
}

// Rank 0's configuration reaches all ranks.
bool share_configuration(netsum::Communicator& communicator) {
  char text[32] = "";
  if (communicator.rank() == 0) std::strcpy(text, "learning rate 0.1");
  const netsum::BufferView buffer{text, text, sizeof text};
  if (failed(communicator.broadcast({&buffer, 1}, 0, {}))) return false;
  return !wrong(std::strcmp(text, "learning rate 0.1") == 0, "broadcast");
}

// Each rank has a shard of the weights. All-gather shows all weights to all ranks; reduce-scatter sums the gradients of all
// ranks, and each gets the sums for its own shard. The shards may differ in size.
bool step(netsum::Communicator& communicator) {
  const int ranks = communicator.world_size(), rank = communicator.rank();
  std::vector<size_t> begin = {0};
  for (int r = 0; r < ranks; ++r) begin.push_back(begin.back() + 10'000 + 7 * static_cast<size_t>(r));
  const auto own = static_cast<size_t>(rank);
  const auto count = [&](size_t r) { return begin[r + 1] - begin[r]; };

  std::vector<float> weights(begin.back());
  for (size_t i = begin[own]; i < begin[own + 1]; ++i) weights[i] = static_cast<float>(rank + 1);
  std::vector<netsum::BufferView> shards;
  for (size_t r = 0; r + 1 < begin.size(); ++r)
    shards.push_back({nullptr, &weights[begin[r]], count(r) * sizeof(float)});
  shards[own].input = &weights[begin[own]];  // in place
  if (failed(communicator.all_gather(shards, {}))) return false;
  for (size_t r = 0; r + 1 < begin.size(); ++r)
    if (wrong(weights[begin[r + 1] - 1] == static_cast<float>(r + 1), "all_gather")) return false;

  std::vector<float> gradients(begin.back(), static_cast<float>(rank + 1)), sums(count(own));
  std::vector<netsum::TensorView> parts;
  for (size_t r = 0; r + 1 < begin.size(); ++r) parts.push_back({&gradients[begin[r]], nullptr, count(r)});
  parts[own].output = sums.data();
  if (failed(communicator.reduce_scatter(parts, {}))) return false;
  return !wrong(sums.back() == static_cast<float>(ranks * (ranks + 1) / 2), "reduce_scatter");
}

// Rank 0 gets the sum of the losses, and a line of each rank.
bool report(netsum::Communicator& communicator) {
  const int ranks = communicator.world_size(), rank = communicator.rank();
  float loss = static_cast<float>(rank), sum = 0;
  const netsum::TensorView tensor{&loss, &sum, 1};
  if (failed(communicator.reduce({&tensor, 1}, 0, {}))) return false;
  std::vector<int> numbers(static_cast<size_t>(ranks), -1);
  std::vector<netsum::BufferView> parts;
  for (int& number : numbers) parts.push_back({nullptr, &number, sizeof number});
  parts[static_cast<size_t>(rank)].input = &rank;
  if (failed(communicator.gather(parts, 0, {}))) return false;
  if (rank != 0) return true;
  return !wrong(sum == static_cast<float>(ranks * (ranks - 1) / 2), "reduce") &&
         !wrong(numbers.back() == ranks - 1, "gather");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s RANK WORLD_SIZE root|aggregator HOST:PORT\n", argv[0]);
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
  auto connected = netsum::Communicator::connect(options);
  if (!connected.ok()) {
    std::fprintf(stderr, "%s\n", connected.status().to_string().c_str());
    return 1;
  }
  netsum::Communicator& communicator = *connected.value();
  if (!share_configuration(communicator) || !step(communicator) || !report(communicator)) return 1;
  std::printf("rank %d: all results are right\n", options.rank);
  // Nobody leaves before everybody has its results.
  return communicator.barrier(options.timeout).ok() ? 0 : 1;
}
