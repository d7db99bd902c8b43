// Programs of thread blocks in MSCCL's XML.
#ifndef NETSUM_TOOLS_NETSUM_MSCCL_XML_H_
#define NETSUM_TOOLS_NETSUM_MSCCL_XML_H_

#include <optional>
#include <string>

#include "src/plan/schedule.h"

namespace netsum::tool {

// In place; `name` is that of the algorithm.
std::string msccl_xml(const plan::Schedule& schedule, const std::string& name);

// An all-reduce, all-gather or reduce-scatter; nullopt if the file is XML of something else. Throws UsageError with the file and
// the line.
std::optional<plan::Schedule> load_msccl(const std::string& file);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_MSCCL_XML_H_
