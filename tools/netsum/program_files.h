// Programs of ranks as files on disk.
#ifndef NETSUM_TOOLS_NETSUM_PROGRAM_FILES_H_
#define NETSUM_TOOLS_NETSUM_PROGRAM_FILES_H_

#include <string>
#include <vector>

#include "src/program/program.h"

namespace netsum::tool {

// Of one or more ranks, by rank. `what`: a file; a folder or a prefix, which name all files PREFIX.RANK.jsonl; chakra:PREFIX, the
// traces PREFIX.RANK.et; or packed:PREFIX, the binary files PREFIX.RANK.packed. Throws UsageError (flags.h), also if the programs are not of one job.
std::vector<program::Program> load_programs(const std::string& what);

// Of each of them, the file of what its rank has contributed (src/program/values.h): PREFIX.RANK.values. Throws UsageError.
std::vector<std::string> value_files(const std::string& what);

// Writes `to`, PREFIX, chakra:PREFIX or packed:PREFIX, with a file for each rank. Throws UsageError; files that were written before it stay.
void export_programs(const std::vector<program::Program>& programs, const std::string& to);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PROGRAM_FILES_H_
