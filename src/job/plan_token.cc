#include "src/job/plan_token.h"

#include <string_view>

#include "src/base/text.h"

namespace netsum {
namespace {

// Not in a plan's name, and not in tokens that people choose.
constexpr std::string_view kBefore = "\nplan ";
constexpr size_t kMostBytes = 160;  // of a name in messages

std::string plan_of(const std::string& token) {
  const size_t mark = token.rfind(kBefore);
  return mark == std::string::npos ? "" : token.substr(mark + kBefore.size());
}

}  // namespace

std::string with_plan(const std::string& token, const std::string& plan) {
  return token + std::string(kBefore) + plan;
}

std::string without_plan(const std::string& token) {
  return token.substr(0, token.rfind(kBefore));
}

bool opens(const std::string& own, const std::string& presented) {
  const std::string token = without_plan(own);
  return token.empty() || equal_in_constant_time(token, without_plan(presented));
}

Status check_plans(const std::string& own, const std::string& presented) {
  const std::string ours = plan_of(own), theirs = plan_of(presented);
  if (ours.empty() || theirs.empty() || ours == theirs) return {};
  return {ErrorCode::kInvalidArgument, "this aggregator is inside a rank that runs the plan " +
                                           printable(ours, kMostBytes) + ", and the plan here is " +
                                           printable(theirs, kMostBytes) + ": give all ranks the same file"};
}

}  // namespace netsum
