// Passes a file descriptor from one process to others of the same host and user.
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
  std::function<Status()> interrupted;  // called while waiting; an error ends the wait
};

// Passes `file` to `others` processes that call receive() with this name, and waits until all have it.
Status hand_out(const MeetingOptions& options, int file, size_t others);
// Errors: kTimeout (no process offers the file), kPermissionDenied (a process of another user does), kUnreachable.
Result<FileDescriptor> receive(const MeetingOptions& options);

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_MEETING_H_
