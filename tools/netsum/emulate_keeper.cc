// netsum emulate-keeper: the process that waits for the end of a `netsum emulate`, which is no command for people.
#include "tools/netsum/emulate_keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "tools/netsum/exit_codes.h"
#include "tools/netsum/process.h"
#include "tools/netsum/rack_make.h"
#include "tools/netsum/rack_note.h"
#include "tools/netsum/rack_system.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kFolder[] = "netsum-emulate-", kRack[] = "emulate", kLock[] = "/run.lock";
// From SIGTERM to SIGKILL, and for a rack that another process is changing.
constexpr std::chrono::seconds kRunTermPatience{3}, kRackPatience{10};
constexpr std::chrono::seconds kKeeperPatience{60};  // a rack of 64 workers is down in ten
// A program that makes a rack's namespaces goes on for a moment without the run that has started it.
constexpr int kQuietLooks = 3;
constexpr milliseconds kLook{100}, kKeeperPoll{5};

// Makes a file that appears locked, until the descriptor is closed.
FileDescriptor lock_new_file(const std::string& path) {
  const std::string unlocked = path + ".new";
  FileDescriptor file(open(unlocked.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid() || flock(file.get(), LOCK_EX | LOCK_NB) != 0 ||
      std::rename(unlocked.c_str(), path.c_str()) != 0)
    return {};
  return file;
}

// Whether there is such a file that nobody holds.
bool is_given_up(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return file.valid() && flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

// Processes that run with the folder in their mark.
std::vector<pid_t> processes_of(const std::string& folder) {
  const std::string mark = std::string(1, '\0') + EmulationKeeper::kMark + "=" + folder + "/";
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    pid_t pid = 0;
    const auto [rest, wrong] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (wrong != std::errc() || rest != name.data() + name.size()) continue;
    std::ifstream file("/proc/" + name + "/environ", std::ios::binary);
    std::stringstream variables;
    variables << '\0' << file.rdbuf();
    if (variables.str().find(mark) != std::string::npos) found.push_back(pid);
  }
  return found;
}

void end_processes_of(const std::string& folder) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    const auto deadline = Clock::now() + kRunTermPatience;
    std::vector<pid_t> told;
    for (std::vector<pid_t> left = processes_of(folder); !left.empty(); left = processes_of(folder)) {
      if (Clock::now() >= deadline) break;
      for (const pid_t pid : left) {
        if (std::find(told.begin(), told.end(), pid) != told.end()) continue;
        kill(pid, signal);
        told.push_back(pid);
      }
      std::this_thread::sleep_for(kLook);
    }
  }
}

bool has_namespaces(const std::string& rack) {
  const std::vector<std::string> names = named_network_namespaces();
  return std::any_of(names.begin(), names.end(),
                     [&rack](const std::string& name) { return name.starts_with("netsum-" + rack + "-"); });
}

// `quiet_looks`: so many in a row must find nothing.
Status remove_rack(const std::string& rack, int quiet_looks) {
  const auto deadline = Clock::now() + kRackPatience;
  for (int quiet = 0;;) {
    Result<FileDescriptor> lock = lock_rack(rack);
    if (lock.ok()) {
      const std::optional<RackNote> note = read_note(rack);
      Status status = note ? take_down(*note) : Status();
      if (status.ok()) status = take_down_unnoted(rack);
      if (!status.ok()) return status;
      if (++quiet > quiet_looks) return {};
    }
    if (Clock::now() >= deadline)
      return lock.ok() ? Status(ErrorCode::kTimeout, "rack " + rack + " comes again and again")
                       : lock.status();
    std::this_thread::sleep_for(kLook);
    if (has_namespaces(rack)) quiet = 0;
  }
}

// What a script of a run that ended in order has left running goes on.
Status remove_all(const std::string& folder, const std::string& rack, int quiet_looks, bool was_killed) {
  if (was_killed) end_processes_of(folder);
  const Status status = rack.empty() ? Status() : remove_rack(rack, quiet_looks);
  std::error_code error;
  fs::remove_all(folder, error);
  return status;
}

bool is_own_folder(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid();
}

void remove_what_killed_runs_have_left(const fs::path& temporary) {
  const auto tell = [](const std::string& what, const Status& status) {
    std::fprintf(stderr, "netsum emulate: a run that was killed has left %s: %s\n", what.c_str(),
                 status.ok() ? "removed" : status.message().c_str());
  };
  std::vector<std::string> folders;
  std::error_code error;
  for (fs::directory_iterator it(temporary, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(kFolder)) folders.push_back(it->path());
  for (const std::string& folder : folders)
    if (is_own_folder(folder) && is_given_up(folder + kLock)) tell(folder, remove_all(folder, "", 0, true));
  if (!missing_privilege().empty()) return;
  for (const std::string& rack : noted_racks())
    if (rack.starts_with(kRack) && is_given_up(rack_folder(rack) + kLock))
      tell("rack " + rack, remove_rack(rack, 0));
}

class KeeperCommand : public Subcommand {
 public:
  explicit KeeperCommand(CLI::App& root) {
    app_ = root.add_subcommand("emulate-keeper", "Removes what a `netsum emulate` leaves")->group("");
    app_->add_option("FOLDER", folder_)->required();
    app_->add_option("RACK", rack_);
  }
  bool chosen() const override { return app_->parsed(); }
  // Reads until the run ends: it has no deadline, as the run has none.
  int run() override {
    if (!fs::path(folder_).filename().string().starts_with(kFolder) || !is_own_folder(folder_) ||
        !(rack_.empty() || rack_.starts_with(kRack)))
      throw UsageError("only `netsum emulate` starts it, with what it has made");
    char ended_in_order = 0;
    while (read(STDIN_FILENO, &ended_in_order, 1) < 0 && errno == EINTR) continue;
    const bool was_killed = ended_in_order == 0;
    const Status status = remove_all(folder_, rack_, was_killed ? kQuietLooks : 0, was_killed);
    if (!status.ok()) std::fprintf(stderr, "netsum emulate: %s\n", status.message().c_str());
    return status.ok() ? kExitOk : kExitFailed;
  }

 private:
  CLI::App* app_;
  std::string folder_, rack_;
};

}  // namespace

Result<std::unique_ptr<EmulationKeeper>> EmulationKeeper::start(const std::string& rack) {
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error)
    return Status(ErrorCode::kInvalidArgument,
                  "no folder for temporary files, " + error.message() + ": set TMPDIR to one");
  remove_what_killed_runs_have_left(temporary);
  if (!rack.empty() && (read_note(rack) || has_namespaces(rack)))
    return Status(ErrorCode::kAddressInUse, "there are network namespaces netsum-" + rack +
                                                "-* of something else: delete them, or give --rack");
  const auto failed = [](const std::string& what) {
    return Status(ErrorCode::kResourceExhausted, what + ": " + std::strerror(errno));
  };
  std::unique_ptr<EmulationKeeper> keeper(new EmulationKeeper(rack));
  std::string folder = temporary / (std::string(kFolder) + "XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return failed("cannot make a folder " + folder);
  keeper->folder_ = folder;
  keeper->folder_lock_ = lock_new_file(folder + kLock);
  if (!keeper->folder_lock_.valid()) return failed("cannot lock " + folder + kLock);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return failed("cannot open a pair of sockets");
  const FileDescriptor keepers(ends[0]);
  keeper->until_ = FileDescriptor(ends[1]);
  std::vector<std::string> command = {"netsum", "emulate-keeper", folder};
  if (!rack.empty()) command.push_back(rack);
  // A session of its own: no signal of the terminal ends it.
  const Result<pid_t> pid = start_process(command, {keepers.get(), STDERR_FILENO, STDERR_FILENO}, true);
  if (!pid.ok()) return pid.status();
  keeper->pid_ = *pid;
  return keeper;
}

EmulationKeeper::~EmulationKeeper() {
  if (folder_.empty()) return;
  bool is_removed = false;
  if (pid_ != 0) {
    const char in_order = 1;
    static_cast<void>(send(until_.get(), &in_order, 1, MSG_NOSIGNAL));
    until_ = {};
    const auto deadline = Clock::now() + kKeeperPatience;
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(pid_, &status, WNOHANG)) == 0) {
      if (Clock::now() >= deadline) kill(pid_, SIGKILL);
      std::this_thread::sleep_for(kKeeperPoll);
    }
    is_removed = ended == pid_ && WIFEXITED(status);  // it has said what went wrong
  }
  if (is_removed) return;
  if (const Status status = remove_all(folder_, rack_, 0, false); !status.ok())
    std::fprintf(stderr, "netsum emulate: %s\n", status.message().c_str());
}

Status EmulationKeeper::make(const RackOptions& options) {
  const Result<FileDescriptor> lock = lock_rack(options.name);
  if (!lock.ok()) return lock.status();
  rack_lock_ = lock_new_file(rack_folder(options.name) + kLock);
  if (!rack_lock_.valid())
    return {ErrorCode::kResourceExhausted,
            "cannot lock " + rack_folder(options.name) + kLock + ": " + std::strerror(errno)};
  return make_rack(options);
}

std::unique_ptr<Subcommand> make_emulate_keeper_command(CLI::App& root) {
  return std::make_unique<KeeperCommand>(root);
}

}  // namespace netsum::tool
