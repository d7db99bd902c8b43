#include "src/control/ranks.h"

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

std::string describe_ms(int64_t ms) {
  if (ms < 1000) return std::to_string(ms) + " ms";
  std::string text = std::to_string(ms / 1000);
  if (ms % 1000 >= 100) text += "." + std::to_string(ms % 1000 / 100);
  return text + " s";
}

Status ranks_missing(const std::string& job, int world_size, std::span<const int> missing,
                     int64_t waited_ms) {
  NETSUM_ASSERT(!missing.empty());
  const int joined = world_size - static_cast<int>(missing.size());
  return {ErrorCode::kTimeout,
          "job '" + job + "': " + std::to_string(joined) + " of " + std::to_string(world_size) +
              " ranks joined within " + describe_ms(waited_ms) + "; missing: " + describe_ranks(missing) +
              ". Were they started, with the same job name and the same aggregator?",
          missing.front()};
}

}  // namespace netsum
