// What a recorded rank has contributed to the operations of its program: a file beside it, which ghosts send from.
//
// kValuesMagic, fingerprint() of the program as 8 bytes (all numbers are little endian), the number of operations as 8 bytes, and of each
// operation, in the order of the program, the number of its bytes as 8 bytes; then these bytes, in the same order. None: not recorded.
#ifndef NETSUM_SRC_PROGRAM_VALUES_H_
#define NETSUM_SRC_PROGRAM_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <string_view>
#include <vector>

#include "netsum/status.h"
#include "src/program/program.h"

namespace netsum::program {

// The last byte is the version of the format.
inline constexpr std::string_view kValuesMagic = "\xffnsvals\x02";

// How many elements rank `rank` of a group of `size` ranks contributes to an operation, and before which one the first of them is.
struct Contributed {
  uint64_t begin = 0, count = 0;
};
Contributed contributed_by(const Operation& operation, int rank, int size);

// The ranks of a group of a checked program, in the order of their ranks in it.
std::vector<int> ranks_of(const Header& header, int group);

// Of its ranks, sizes and times, which all forms of a file keep: it tells records of the same operations apart.
uint64_t fingerprint(const Program& program);

// kResourceExhausted: the stream does not take it.
Status write_values(std::ostream& out, const Program& program,
                    std::span<const std::vector<uint8_t>> of_operations);

// The bytes of each operation of a program, within `file`. kInvalidArgument: it is not such a file, or not one of that program;
// kVersionMismatch: of another version of the format.
Result<std::vector<std::span<const uint8_t>>> read_values(std::span<const uint8_t> file,
                                                          const Program& program, std::string_view name);

}  // namespace netsum::program

#endif  // NETSUM_SRC_PROGRAM_VALUES_H_
