// Programs of thread blocks in MSCCL++'s JSON (execution plans).
#ifndef NETSUM_TOOLS_NETSUM_MSCCLPP_JSON_H_
#define NETSUM_TOOLS_NETSUM_MSCCLPP_JSON_H_

#include <optional>
#include <string>

#include "src/plan/schedule.h"

namespace netsum::tool {

// Of a schedule of puts and signals (plan::one_sided()). Blocks that wait for each other become one. By ports, which reach ranks
// of other hosts, too.
std::string mscclpp_json(const plan::Schedule& schedule, const std::string& name);

// An all-reduce, all-gather or reduce-scatter; nullopt if the file does not begin with "{". Throws UsageError with the file and
// the line, also for operations that netsum does not judge: those on packets, switches and semaphores, and reads of other ranks.
std::optional<plan::Schedule> load_mscclpp(const std::string& file);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_MSCCLPP_JSON_H_
