// Estimates which ranks a running job waits for, and how long, from samples of its progress. Time is a parameter.
#ifndef NETSUM_AGGREGATOR_CONTROL_JOB_WATCH_H_
#define NETSUM_AGGREGATOR_CONTROL_JOB_WATCH_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "netsum/aggregator.h"
#include "src/faults/link_watch.h"

namespace netsum {

AggregatorJobStatus::Path path_of(std::vector<int> ranks, const faults::MemberTotals& totals);

// Not thread-safe.
class JobWatch {
 public:
  JobWatch() = default;
  // By rank: its member number in the dataplane. The ranks of a rack are one member.
  explicit JobWatch(std::vector<uint16_t> member_of_rank)
      : member_of_rank_(std::move(member_of_rank)), waited_us_(member_of_rank_.size()) {}

  void look(int64_t now_us, const JobProgress& progress);
  // Paths between ranks and embedded shards: on each are the links of two ranks, to the network and from it.
  void look_at_shards(const std::vector<AggregatorJobStatus::Path>& paths);
  std::vector<AggregatorJobStatus::Fault> faults() const;
  std::vector<AggregatorJobStatus::Path> paths() const;  // of the dataplane

  const JobProgress& progress() const { return progress_; }  // as last seen
  std::vector<int> waiting_for() const;                      // ranks
  // A lower bound: the time since the first sample in which the same sum was unfinished.
  int64_t waiting_us() const { return progress_.missing == 0 ? 0 : looked_us_ - since_us_; }
  // By rank. Each sample counts for the time since the previous one, so the estimate improves with the number of
  // samples.
  const std::vector<int64_t>& waited_us() const { return waited_us_; }

 private:
  // A sample counts for no more than this: it says little about a longer pause before it.
  static constexpr int64_t kMostPerLookUs = 1'000'000;
  static constexpr uint64_t kMemory = 32'768;

  std::vector<int> ranks_of(size_t member) const;

  std::vector<uint16_t> member_of_rank_;
  faults::LinkWatch links_;
  std::vector<AggregatorJobStatus::Path> shards_,
      lately_;  // as last seen; counts of each, halved each kMemory packets
  std::vector<AggregatorJobStatus::Fault> of_shards_;
  JobProgress progress_;
  int64_t looked_us_ = -1;
  int64_t since_us_ = 0;
  std::vector<int64_t> waited_us_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_JOB_WATCH_H_
