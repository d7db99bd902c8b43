#include "session/job_stripes.h"

#include <string>

namespace netsum {

Result<std::vector<JobStripe>> job_stripes(std::span<const Membership* const> memberships) {
  std::vector<JobStripe> stripes;
  for (const bool embedded : {false, true}) {
    for (size_t i = 0; i < memberships.size(); ++i) {
      const std::vector<StripeInfo>& all = memberships[i]->stripes;
      for (size_t number = 0; number < all.size(); ++number) {
        if (all[number].embedded == embedded) stripes.push_back({i, number});
      }
    }
  }
  const auto& weights = memberships.front()->plan.weights();
  if (weights.empty()) return stripes;
  if (static_cast<size_t>(weights.size()) != stripes.size())
    return Status(ErrorCode::kInvalidArgument,
                  "the job's plan has " + std::to_string(weights.size()) +
                      " shares, and its aggregators and " + "shards have " + std::to_string(stripes.size()) +
                      " stripes: was an aggregator restarted meanwhile? Start the job again");
  for (size_t i = 0; i < stripes.size(); ++i) stripes[i].weight = weights[static_cast<int>(i)];
  std::erase_if(stripes, [](const JobStripe& stripe) { return stripe.weight == 0; });
  if (stripes.empty())
    return Status(ErrorCode::kInvalidArgument, "the job's plan gives no stripe a share: start the job again");
  return stripes;
}

}  // namespace netsum
