// Lists of hosts as Slurm writes them: "tux[0-3,12],login1".
#ifndef NETSUM_TOOLS_NETSUM_HOSTLIST_H_
#define NETSUM_TOOLS_NETSUM_HOSTLIST_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "netsum/status.h"

namespace netsum::tool {

inline constexpr size_t kMostListed = 200'000;

// Zeros in front of numbers are kept. Errors: kInvalidArgument with the part that is wrong; kResourceExhausted.
Result<std::vector<std::string>> parse_hostlist(std::string_view text);

// In the same order. parse_hostlist() gives the names again.
std::string format_hostlist(const std::vector<std::string>& names);

// Whether it has only letters, digits, '-', '_', '.' and ':', so that it needs no quotes in a shell or a list.
bool is_plain_name(std::string_view name);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_HOSTLIST_H_
