#include "src/worker/mismatch.h"

#include <algorithm>
#include <map>
#include <string>

namespace netsum {

size_t first_unusual(std::span<const uint64_t> calls) {
  std::map<uint64_t, size_t> votes;
  for (const uint64_t call : calls) ++votes[call];
  const auto usual = std::max_element(votes.begin(), votes.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto differs =
      std::find_if(calls.begin(), calls.end(), [&](uint64_t call) { return call != usual->first; });
  return static_cast<size_t>(differs - calls.begin());
}

Status mismatch(const Operation& own, int self, int other) {
  const std::string text =
      "rank " + std::to_string(self) + " is in " + own.describe() + "; " +
      (other == self ? "other ranks are in another operation"
                     : "rank " + std::to_string(other) +
                           " is not, or differs in root, count, type, operation or lane width");
  return {ErrorCode::kMismatch, text + ": all ranks must call the same collectives in the same order", other};
}

}  // namespace netsum
