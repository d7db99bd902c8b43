// What sources without flags need to read and write the files that a command line names. Separate from flags.h, because CLI11's
// header costs three seconds of compilation.
#ifndef NETSUM_TOOLS_NETSUM_USAGE_H_
#define NETSUM_TOOLS_NETSUM_USAGE_H_

#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "netsum/options.h"
#include "netsum/status.h"

namespace netsum::tool {

// A command line (or environment, or file named there) that cannot be served; what() says what to change.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// `message`: what is wrong, and what to change.
inline Status invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

// Of --verify.
inline const std::map<std::string, Verify> kVerifyModes = {
    {"packet", Verify::kPacket}, {"both", Verify::kBoth}, {"sum", Verify::kSum}};

std::string environment(const char* name);  // "" if it is not set

// Writes a file that a flag names. Returns the exit status, and reports a failure on standard error.
int write_file(const std::string& path, const std::string& text);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_USAGE_H_
