// A child process made from this very binary, with what it prints read back line by line.
//
// The parent must still have a single thread when it starts one: gRPC and the engine's threads do not
// survive a fork.
#ifndef NETSUM_TOOLS_NETSUM_PROCESS_H_
#define NETSUM_TOOLS_NETSUM_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum::tool {

class Process {
 public:
  // Runs this binary with `arguments`; its standard output becomes a pipe. It is killed if this process dies.
  static Result<std::unique_ptr<Process>> start_self(const std::vector<std::string>& arguments);
  ~Process();  // kills it, if it still runs, and waits for its end
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // The next whole line that has arrived, without waiting; read_lines() brings more.
  std::optional<std::string> next_line();
  // True once the child has closed its end and all its lines were taken.
  bool at_end() const { return closed_ && buffer_.find('\n') == std::string::npos; }

  void signal(int number) const;
  // Waits at most `limit`, then kills it. Returns how it ended ("exit status 3", "signal 9") and keeps the
  // CPU time that it used.
  std::string wait(std::chrono::milliseconds limit);
  double cpu_seconds() const { return cpu_seconds_; }  // after wait()

  // Waits until any of `processes` has something to read or has closed, or `timeout` has passed. Reads it.
  // Returns false on timeout.
  static bool read_lines(std::span<Process* const> processes, std::chrono::milliseconds timeout);

 private:
  Process(pid_t pid, int read_fd) : pid_(pid), read_fd_(read_fd) {}
  void read_some();
  bool reap(bool block);

  pid_t pid_;
  int read_fd_;
  bool closed_ = false;
  bool reaped_ = false;
  int wait_status_ = 0;
  double cpu_seconds_ = 0;
  std::string buffer_;
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PROCESS_H_
