// Programs as files: JSON lines, one file for each rank. The first line is the header, each further one a step.
#ifndef NETSUM_SRC_PROGRAM_JSON_LINES_H_
#define NETSUM_SRC_PROGRAM_JSON_LINES_H_

#include <iosfwd>
#include <string_view>

#include "netsum/status.h"
#include "src/program/program.h"

namespace netsum::program {

// What to do about a truncated or garbled file.
inline constexpr char kCure[] = ": copy it again, whole, or record again";

// A program that check() accepts. `name`: of the file, in messages, which name the line as well. kInvalidArgument;
// kVersionMismatch: of another version of the format.
Result<Program> read_program(std::istream& in, std::string_view name);

// What read_program() reads. kInvalidArgument: what check() does not accept. kResourceExhausted: the stream does not take it.
Status write_program(std::ostream& out, const Program& program);

}  // namespace netsum::program

#endif  // NETSUM_SRC_PROGRAM_JSON_LINES_H_
