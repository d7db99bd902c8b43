// Chakra execution traces of a schedule, for simulators of networks.
#ifndef NETSUM_TOOLS_NETSUM_CHAKRA_H_
#define NETSUM_TOOLS_NETSUM_CHAKRA_H_

#include <cstdint>
#include <string>

#include "src/plan/schedule.h"

namespace netsum::tool {

inline constexpr char kChakraVersion[] = "0.0.4";  // of the schema

// Writes <prefix>.<rank>.et for each rank, with the messages and additions of a tensor of so many bytes. Additions take no
// time by themselves: simulators have a rate for them. Returns the exit status; if a file cannot be written, those that were
// written before it stay.
int write_chakra(const plan::Schedule& schedule, const std::string& prefix, uint64_t bytes);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_CHAKRA_H_
