// Programs as packed binary files, one file for each rank: a tenth of the bytes of JSON lines, and read without a parser of text.
//
// The file is kPackedMagic and blocks (packed_block()): the first one is the header, each further one a step. The fields of a block
// follow each other as in packed.cc; numbers are LEB128, signed ones in zigzag.
#ifndef NETSUM_SRC_PROGRAM_PACKED_H_
#define NETSUM_SRC_PROGRAM_PACKED_H_

#include <iosfwd>
#include <string>
#include <string_view>

#include "netsum/status.h"
#include "src/program/program.h"

namespace netsum::program {

// No text begins so. The last byte is the version of the format.
inline constexpr std::string_view kPackedMagic = "\xffnetsum\x01";

// The length of `body`, as LEB128, `body`, and four bytes of its FNV-1a hash.
std::string packed_block(std::string_view body);

// A program that check() accepts. `name`: of the file, in messages, which name the byte where what is wrong begins as well.
// kInvalidArgument; kVersionMismatch: of another version of the format.
Result<Program> read_packed(std::istream& in, std::string_view name);

// What read_packed() reads. kInvalidArgument: what check() does not accept. kResourceExhausted: the stream does not take it.
Status write_packed(std::ostream& out, const Program& program);

// read_packed() or read_program(), by how the stream begins.
Result<Program> read_any_program(std::istream& in, std::string_view name);

}  // namespace netsum::program

#endif  // NETSUM_SRC_PROGRAM_PACKED_H_
