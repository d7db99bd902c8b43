#include "tools/netsum/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <spdlog/fmt/fmt.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

namespace netsum::tool {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kWaitInterval{1};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    text += word;
  }
  return text;
}

Status no_resources(const std::string& what) {
  return Status(ErrorCode::kResourceExhausted, what + ": " + std::strerror(errno));
}

struct Ending {
  std::string text;
  double cpu_seconds = 0;
  bool in_time = true;
};

// Waits for the end of a child, and kills it at the deadline.
Ending wait_for_end(pid_t pid, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  Ending ending;
  int status = 0;
  rusage usage{};
  while (wait4(pid, &status, ending.in_time ? WNOHANG : 0, &usage) != pid) {
    if (!ending.in_time) continue;  // interrupted by a signal
    if (Clock::now() >= deadline) {
      ending.in_time = false;
      kill(pid, SIGKILL);
    } else {
      std::this_thread::sleep_for(kWaitInterval);
    }
  }
  ending.cpu_seconds = cpu_seconds(usage);
  ending.text = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                    : fmt::format("exit status {}", WEXITSTATUS(status));
  return ending;
}

// posix_spawnp() gives EACCES also for a program that is nowhere, if it may not look into a folder of PATH.
bool is_in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return access(program.c_str(), F_OK) == 0;
  const char* path = getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (access((folder + "/" + program).c_str(), F_OK) == 0) return true;
  return false;
}

// A file without a name: what a child writes there can have any length, and needs no reader meanwhile.
FileDescriptor unnamed_file(const std::string& content = "") {
  FileDescriptor file(memfd_create("netsum", MFD_CLOEXEC));
  [[maybe_unused]] const ssize_t written = write(file.get(), content.data(), content.size());
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

std::string content_of(const FileDescriptor& file) {
  std::string text(static_cast<size_t>(std::max<off_t>(lseek(file.get(), 0, SEEK_END), 0)), '\0');
  const ssize_t n = pread(file.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return text;
}

}  // namespace

double cpu_seconds(const rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return cpu_seconds(usage);
}

Result<pid_t> start_process(const std::vector<std::string>& command, const Streams& streams,
                            bool own_session) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::pair<int, int> wanted[] = {
      {streams.in, STDIN_FILENO}, {streams.out, STDOUT_FILENO}, {streams.err, STDERR_FILENO}};
  for (const auto& [from, to] : wanted) {
    if (from != to) posix_spawn_file_actions_adddup2(&actions, from, to);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // This process may have blocked some (stop_signals.h).
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(
      &attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | (own_session ? POSIX_SPAWN_SETSID : 0)));
  const char* program = command.front() == "netsum" ? "/proc/self/exe" : argv[0];
  pid_t pid = 0;
  int error = posix_spawnp(&pid, program, &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  if (error == EACCES && !is_in_path(program)) error = ENOENT;
  return Status(ErrorCode::kUnsupported, "cannot run '" + command.front() + "': " + std::strerror(error) +
                                             (error == ENOENT ? "; install it, or add it to PATH" : ""));
}

Status FinishedProcess::status(const std::string& what) const {
  if (ending == "exit status 0") return Status();
  return Status(ErrorCode::kInternal, fmt::format("`{}` failed ({}): {}", what.empty() ? command : what,
                                                  ending, err.substr(0, err.find('\n'))));
}

Result<FinishedProcess> run_process(const std::vector<std::string>& command, const std::string& input,
                                    milliseconds limit) {
  const FileDescriptor in = unnamed_file(input), out = unnamed_file(), err = unnamed_file();
  if (!err.valid()) return no_resources("cannot make a file in memory");
  const Result<pid_t> pid = start_process(command, {in.get(), out.get(), err.get()});
  if (!pid.ok()) return pid.status();
  const Ending ending = wait_for_end(*pid, limit);
  if (!ending.in_time) {
    return Status(ErrorCode::kTimeout, fmt::format("`{}` did not end within {} ms and was killed",
                                                   joined(command), limit.count()));
  }
  return FinishedProcess{joined(command), content_of(out), content_of(err), ending.text};
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return no_resources("cannot open a pipe");
  FileDescriptor out(ends[0]);
  const FileDescriptor childs(ends[1]);
  std::vector<std::string> command = {"netsum", "--end-with-parent", std::to_string(getpid())};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const Result<pid_t> pid = start_process(command, {.out = childs.get()});
  if (!pid.ok()) return pid.status();
  fcntl(out.get(), F_SETFL, O_NONBLOCK);
  return std::unique_ptr<ChildProcess>(new ChildProcess(*pid, std::move(out)));
}

ChildProcess::~ChildProcess() {
  if (ending_.empty()) wait(milliseconds(0));
}

std::optional<std::string> ChildProcess::next_line() {
  const size_t end = buffer_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

void ChildProcess::signal(int number) const {
  if (ending_.empty()) kill(pid_, number);
}

std::string ChildProcess::wait(milliseconds limit) {
  if (!ending_.empty()) return ending_;
  const Ending ending = wait_for_end(pid_, limit);
  cpu_seconds_ = ending.cpu_seconds;
  ending_ = ending.in_time ? ending.text
                           : "killed, as it had not ended within " + std::to_string(limit.count()) + " ms";
  return ending_;
}

void ChildProcess::read_some() {
  char chunk[4096];
  for (;;) {
    const ssize_t n = read(out_.get(), chunk, sizeof(chunk));
    if (n > 0) {
      buffer_.append(chunk, static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    closed_ = n == 0 || errno != EAGAIN;
    return;
  }
}

bool ChildProcess::read_lines(std::span<ChildProcess* const> children, milliseconds timeout) {
  std::vector<pollfd> polled;
  std::vector<ChildProcess*> open;
  for (ChildProcess* child : children) {
    if (child->closed_) continue;
    polled.push_back({child->out_.get(), POLLIN, 0});
    open.push_back(child);
  }
  if (polled.empty()) return true;
  if (poll(polled.data(), polled.size(), static_cast<int>(timeout.count())) <= 0) return false;
  for (size_t i = 0; i < open.size(); ++i) {
    if (polled[i].revents != 0) open[i]->read_some();
  }
  return true;
}

void end_with_parent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it has ended before the line above
}

}  // namespace netsum::tool
