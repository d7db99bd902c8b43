#include "tools/netsum/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace netsum::tool {
namespace {

constexpr std::chrono::milliseconds kReapInterval{10};

[[noreturn]] void become_child(int write_fd, pid_t parent, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above.
  if (getppid() != parent) _exit(1);
  dup2(write_fd, STDOUT_FILENO);
  execv("/proc/self/exe", argv);
  _exit(127);
}

}  // namespace

Result<std::unique_ptr<Process>> Process::start_self(const std::vector<std::string>& arguments) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return Status(ErrorCode::kResourceExhausted, std::string("cannot open a pipe: ") + std::strerror(errno));
  }
  std::vector<char*> argv = {const_cast<char*>("netsum")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) become_child(fds[1], parent, argv.data());
  close(fds[1]);
  if (pid < 0) {
    close(fds[0]);
    return Status(ErrorCode::kResourceExhausted,
                  std::string("cannot start a process: ") + std::strerror(errno));
  }
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return std::unique_ptr<Process>(new Process(pid, fds[0]));
}

Process::~Process() {
  if (!reaped_) {
    kill(pid_, SIGKILL);
    reap(true);
  }
  close(read_fd_);
}

std::optional<std::string> Process::next_line() {
  const size_t end = buffer_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

void Process::signal(int number) const {
  if (!reaped_) kill(pid_, number);
}

bool Process::reap(bool block) {
  rusage usage{};
  if (wait4(pid_, &wait_status_, block ? 0 : WNOHANG, &usage) != pid_) return false;
  reaped_ = true;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  cpu_seconds_ = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return true;
}

std::string Process::wait(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!reaped_ && !reap(false)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      kill(pid_, SIGKILL);
      reap(true);
      return "no end within " + std::to_string(limit.count()) + " ms, killed";
    }
    std::this_thread::sleep_for(kReapInterval);
  }
  if (WIFSIGNALED(wait_status_)) return "signal " + std::to_string(WTERMSIG(wait_status_));
  return "exit status " + std::to_string(WEXITSTATUS(wait_status_));
}

void Process::read_some() {
  char chunk[4096];
  for (;;) {
    const ssize_t n = read(read_fd_, chunk, sizeof(chunk));
    if (n > 0) {
      buffer_.append(chunk, static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    closed_ = n == 0 || errno != EAGAIN;
    return;
  }
}

bool Process::read_lines(std::span<Process* const> processes, std::chrono::milliseconds timeout) {
  std::vector<pollfd> polled;
  std::vector<Process*> open;
  for (Process* process : processes) {
    if (process->closed_) continue;
    polled.push_back({process->read_fd_, POLLIN, 0});
    open.push_back(process);
  }
  if (polled.empty()) return true;
  if (poll(polled.data(), polled.size(), static_cast<int>(timeout.count())) <= 0) return false;
  for (size_t i = 0; i < open.size(); ++i) {
    if (polled[i].revents != 0) open[i]->read_some();
  }
  return true;
}

}  // namespace netsum::tool
