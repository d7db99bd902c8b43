// Hands a file descriptor from one process to others of the same host and user.
#ifndef NETSUM_SRC_HOST_MEETING_H_
#define NETSUM_SRC_HOST_MEETING_H_

#include <chrono>
#include <functional>
#include <string>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"

namespace netsum {

struct MeetingOptions {
  std::string name;  // in the abstract name space of the network namespace; at most 100 bytes
  std::chrono::steady_clock::time_point deadline;
  std::function<Status()> interrupted;  // asked while waiting
};

// Gives `file` to `others` processes that receive() under this name, and waits until all have it.
Status hand_out(const MeetingOptions& options, int file, size_t others);
// Errors: kTimeout (nobody hands out), kPermissionDenied (somebody of another user does), kUnreachable.
Result<FileDescriptor> receive(const MeetingOptions& options);

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_MEETING_H_
