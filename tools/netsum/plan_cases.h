// What each placement of aggregators would give in one topology: the cases that netsum plan compares.
#ifndef NETSUM_TOOLS_NETSUM_PLAN_CASES_H_
#define NETSUM_TOOLS_NETSUM_PLAN_CASES_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/plan/planner.h"

namespace netsum::tool {

inline constexpr double kGigabyte = 1e9;

struct PlanCase {
  std::string name;
  plan::Topology topology;  // the part of the whole that the case uses
  plan::Plan plan;
};

// The ring is not among them: each plan has its time. The last case uses all that there is.
std::vector<PlanCase> plan_cases(const plan::Topology& topology);

// "worker0, in", and how many more are as loaded; "-" if nothing is sent.
std::string bottleneck_text(const plan::Plan& plan);
// What to do if a ring is faster than everything, or "".
std::string plan_warning(const PlanCase& best);

nlohmann::json plan_json(const std::vector<PlanCase>& cases);
std::string plan_text(const std::vector<PlanCase>& cases);
std::string plan_html(const std::vector<PlanCase>& cases);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PLAN_CASES_H_
