// Tokens of aggregators inside ranks, which also name the plan that they run. Ranks and aggregators of another plan, for example
// of an older topology, are refused by name. Aggregators outside ranks have no plan, and take ranks of any.
#ifndef NETSUM_SRC_JOB_PLAN_TOKEN_H_
#define NETSUM_SRC_JOB_PLAN_TOKEN_H_

#include <string>

#include "netsum/status.h"

namespace netsum {

// `plan` is printable.
std::string with_plan(const std::string& token, const std::string& plan);
std::string without_plan(const std::string& token);
// Whether `presented` opens an aggregator whose token is `own`, which is empty or the same, whatever plans they name.
bool opens(const std::string& own, const std::string& presented);
// kInvalidArgument, if both name a plan and these differ.
Status check_plans(const std::string& own, const std::string& presented);

}  // namespace netsum

#endif  // NETSUM_SRC_JOB_PLAN_TOKEN_H_
