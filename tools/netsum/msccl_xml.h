// Programs of thread blocks in MSCCL's XML.
#ifndef NETSUM_TOOLS_NETSUM_MSCCL_XML_H_
#define NETSUM_TOOLS_NETSUM_MSCCL_XML_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "src/plan/schedule.h"

namespace netsum::tool {

// What the files of MSCCL and MSCCL++ call buffers and collectives, by plan's enumerations.
inline constexpr std::array<std::string_view, 3> kScheduleBuffers = {"i", "o", "s"};
inline constexpr std::array<std::string_view, 3> kScheduleCollectives = {"allreduce", "allgather",
                                                                         "reducescatter"};
inline constexpr unsigned kMostScheduleNumber = 1 << 20;

// In place; `name` is that of the algorithm.
std::string msccl_xml(const plan::Schedule& schedule, const std::string& name);

// An all-reduce, all-gather or reduce-scatter; nullopt if the file is XML of something else. Throws UsageError with the file and
// the line.
std::optional<plan::Schedule> load_msccl(const std::string& file);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_MSCCL_XML_H_
