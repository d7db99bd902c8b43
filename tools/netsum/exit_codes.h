// What the command's exit status says. Part of the interface: scripts rely on it (docs/command.md).
#ifndef NETSUM_TOOLS_NETSUM_EXIT_CODES_H_
#define NETSUM_TOOLS_NETSUM_EXIT_CODES_H_

namespace netsum::tool {

inline constexpr int kExitOk = 0;
inline constexpr int kExitWrong = 1;   // bench, simulate: a wrong result; doctor: a check failed
inline constexpr int kExitUsage = 2;   // the command line, the environment or a named file is wrong
inline constexpr int kExitFailed = 3;  // it could not be done: port in use, nobody answers, deadline passed
inline constexpr int kExitUndrained = 4;  // aggregator: stopped while jobs were still running

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_EXIT_CODES_H_
