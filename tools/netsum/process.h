// Child processes: programs such as iproute2's, run to their end, and processes of this very binary.
#ifndef NETSUM_TOOLS_NETSUM_PROCESS_H_
#define NETSUM_TOOLS_NETSUM_PROCESS_H_

#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"

namespace netsum::tool {

// The descriptors that a child gets as its standard streams.
struct Streams {
  int in = STDIN_FILENO;
  int out = STDOUT_FILENO;
  int err = STDERR_FILENO;
};

// Starts `command`. Its first word is a program found by PATH, or "netsum" for this very binary. With
// `own_session` no signal of the terminal reaches the child. Error: kUnsupported if the program cannot be run.
Result<pid_t> start_process(const std::vector<std::string>& command, const Streams& streams,
                            bool own_session = false);

struct FinishedProcess {
  std::string command;
  std::string out, err;
  std::string ending;  // "exit status 2", "signal 9"

  // Error: kInternal, with `what` (or the command), the ending and the first line of `err`.
  Status status(const std::string& what = "") const;
};
// Runs `command` with `input` as its standard input. Errors: kUnsupported if it cannot be run; kTimeout if it
// has not ended within `limit`, and was killed.
Result<FinishedProcess> run_process(const std::vector<std::string>& command, const std::string& input,
                                    std::chrono::milliseconds limit);

// A child of this very binary that is killed when this process ends, with what it prints read line by line.
class ChildProcess {
 public:
  static Result<std::unique_ptr<ChildProcess>> start(const std::vector<std::string>& arguments);
  ~ChildProcess();  // kills it, if it still runs, and waits for its end
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next whole line that has arrived, without waiting; read_lines() brings more.
  std::optional<std::string> next_line();
  // True once the child has closed its end and all its lines were taken.
  bool at_end() const { return closed_ && buffer_.find('\n') == std::string::npos; }

  void signal(int number) const;
  // Waits for the end; kills the child if that has not come within `limit`. Returns "exit status 3",
  // "signal 9", or that it was killed.
  std::string wait(std::chrono::milliseconds limit);
  double cpu_seconds() const { return cpu_seconds_; }  // after wait()

  // Waits until any of `children` has something to read or has closed, or `timeout` has passed. Reads it.
  // Returns false on timeout.
  static bool read_lines(std::span<ChildProcess* const> children, std::chrono::milliseconds timeout);

 private:
  ChildProcess(pid_t pid, FileDescriptor out) : pid_(pid), out_(std::move(out)) {}
  void read_some();

  pid_t pid_;
  FileDescriptor out_;
  bool closed_ = false;
  std::string ending_;  // empty: it has not been waited for
  double cpu_seconds_ = 0;
  std::string buffer_;
};

// For the child: asks the kernel to kill this process when `parent`, which has started it, ends.
void end_with_parent(pid_t parent);

// Processor time, of the user and of the system: of a process that has ended, and of this one.
double cpu_seconds(const rusage& usage);
double cpu_seconds();

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PROCESS_H_
