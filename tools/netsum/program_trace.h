// Programs of ranks as execution traces of Chakra.
#ifndef NETSUM_TOOLS_NETSUM_PROGRAM_TRACE_H_
#define NETSUM_TOOLS_NETSUM_PROGRAM_TRACE_H_

#include <iosfwd>
#include <string>

#include "netsum/status.h"
#include "src/program/program.h"

namespace netsum::tool {

// A node for each computation and each operation; a node depends on what its thread has done and waited for before. Attributes
// named netsum.* have what the format lacks, so that trace_program() gives the same program, but for waits for what the thread has
// waited for before. Simulators ignore them.
std::string program_trace(const program::Program& program);

// Also of traces that netsum has not written: these become one step of one thread, which computes in the order of the nodes and
// waits for an operation where a node depends on it. `name`: in messages. `rank`, `world_size`: of a trace that does not have them.
// kInvalidArgument.
Result<program::Program> trace_program(std::istream& in, const std::string& name, int rank, int world_size);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PROGRAM_TRACE_H_
