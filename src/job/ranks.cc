#include "src/job/ranks.h"

#include <algorithm>

#include "src/base/assert.h"

namespace netsum {
namespace {
constexpr size_t kRanksNamed = 8;  // a message stays readable
}  // namespace

std::string describe_ranks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t named = std::min(ranks.size(), kRanksNamed);
  for (size_t i = 0; i < named; ++i) {
    if (i > 0) text += (i + 1 == ranks.size()) ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

std::string describe_rank(int rank, const std::string& host) {
  return "rank " + std::to_string(rank) + " (" + host + ")";
}

Status disconnected(int rank, const std::string& host, bool by_aggregator) {
  constexpr char kWhy[] =
      " disconnected without leaving: its process died or hangs, or its host is unreachable";
  if (by_aggregator)
    return {ErrorCode::kAggregatorLost,
            "the aggregator by which " + describe_rank(rank, host) + " joined" + kWhy};
  return {ErrorCode::kPeerLost, describe_rank(rank, host) + kWhy, rank};
}

Status lost_with(int inside_rank, const Status& lost) {
  if (inside_rank == kNoRank || lost.code() != ErrorCode::kAggregatorLost) return lost;
  return {ErrorCode::kPeerLost,
          "rank " + std::to_string(inside_rank) + ", which sums for others, is lost: " + lost.message(),
          inside_rank};
}

std::string describe_ms(int64_t ms) {
  if (ms < 1000) return std::to_string(ms) + " ms";
  std::string text = std::to_string(ms / 1000);
  if (ms % 1000 >= 100) text += "." + std::to_string(ms % 1000 / 100);
  return text + " s";
}

Status ranks_missing(const JobSpec& job, std::span<const int> missing, int64_t waited_ms) {
  NETSUM_ASSERT(!missing.empty());
  const std::string of_job = "job '" + job.name() + "': ";
  if (job.min_members() > 0) {
    const Status few = regroup_rule(job).timed_out(missing, std::chrono::milliseconds(waited_ms));
    return {few.code(), of_job + few.message(), few.rank()};
  }
  const size_t joined = job.world_size() - missing.size();
  return {ErrorCode::kTimeout,
          of_job + std::to_string(joined) + " of " + std::to_string(job.world_size()) +
              " ranks joined within " + describe_ms(waited_ms) + "; missing: " + describe_ranks(missing) +
              ". Were they started, with the same job name and the same aggregator?",
          missing.front()};
}

}  // namespace netsum
