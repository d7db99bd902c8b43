#include "tools/netsum/rack_system.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "tools/netsum/flags.h"

namespace netsum::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kCommandLimit{20'000};
constexpr milliseconds kTermPatience{2'000};
constexpr milliseconds kPoll{5};
constexpr int kCapNetAdmin = 12, kCapSysAdmin = 21;
constexpr char kNetnsFolder[] = "/run/netns/";

Status failed(const std::string& message) {
  return Status(ErrorCode::kInternal, message);
}

struct Finished {
  int status = 0;
  std::string out, err;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A file without a name: what a child writes there can be of any length, and needs no reader meanwhile.
int unnamed_file(const std::string& content) {
  const int fd = static_cast<int>(memfd_create("netsum-rack", MFD_CLOEXEC));
  if (fd >= 0 && !content.empty()) {
    [[maybe_unused]] const ssize_t written = write(fd, content.data(), content.size());
    lseek(fd, 0, SEEK_SET);
  }
  return fd;
}

std::string content_of(int fd) {
  std::string text;
  char chunk[4096];
  lseek(fd, 0, SEEK_SET);
  for (ssize_t n = 0; (n = read(fd, chunk, sizeof chunk)) > 0;) text.append(chunk, static_cast<size_t>(n));
  return text;
}

Result<Finished> run_command(const std::vector<std::string>& words, const std::string& input) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int in = unnamed_file(input), out = unnamed_file(""), err = unnamed_file("");
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  Finished finished;
  bool done = pid < 0, in_time = true;
  const auto deadline = Clock::now() + kCommandLimit;
  while (!done) {
    done = waitpid(pid, &finished.status, in_time ? WNOHANG : 0) == pid;
    if (done) break;
    if (Clock::now() >= deadline && in_time) {
      in_time = false;
      kill(pid, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  finished.out = content_of(out);
  finished.err = content_of(err);
  for (const int fd : {in, out, err}) close(fd);
  if (pid < 0) return failed("cannot start '" + words[0] + "': " + std::strerror(errno));
  if (!in_time) return Status(ErrorCode::kTimeout, "'" + words[0] + "' did not end within 20 s");
  if (WIFEXITED(finished.status) && WEXITSTATUS(finished.status) == 127) {
    return failed("'" + words[0] + "' is not installed: apt-get install iproute2 ethtool");
  }
  return finished;
}

bool succeeded(const Finished& finished) {
  return WIFEXITED(finished.status) && WEXITSTATUS(finished.status) == 0;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// Field 22 of /proc/PID/stat; 0 if there is no such process, or only its remains.
uint64_t start_ticks_of(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 2));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

std::string base_folder() {
  const std::string chosen = environment("NETSUM_RACK_DIR");
  return chosen.empty() ? "/run/netsum/rack" : chosen;
}

}  // namespace

std::string missing_privilege() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("CapEff:")) continue;
    const uint64_t caps = std::strtoull(line.c_str() + 7, nullptr, 16);
    std::string missing;
    if ((caps >> kCapNetAdmin & 1) == 0) missing = "CAP_NET_ADMIN (to make links)";
    if ((caps >> kCapSysAdmin & 1) == 0) {
      missing += std::string(missing.empty() ? "" : " and ") + "CAP_SYS_ADMIN (to make network namespaces)";
    }
    if (missing.empty()) return "";
    return "a virtual rack needs " + missing +
           ", which this process lacks: run it as root, e.g. with sudo. Without "
           "root, `netsum bench allreduce --workers 4` works over loopback";
  }
  return "";
}

Status run_batch(const RackBatch& batch) {
  std::vector<std::string> words = {batch.program};
  if (!batch.network_namespace.empty()) words.insert(words.end(), {"-n", batch.network_namespace});
  words.insert(words.end(), {"-batch", "-"});
  std::string input;
  for (const std::string& line : batch.lines) input += line + "\n";
  const Result<Finished> finished = run_command(words, input);
  if (!finished.ok()) return finished.status();
  if (succeeded(finished.value())) return Status();
  // "Command failed -:3" names the line.
  const std::string& err = finished.value().err;
  const size_t mark = err.rfind("-:");
  const size_t number = mark == std::string::npos ? 0 : std::strtoul(err.c_str() + mark + 2, nullptr, 10);
  const std::string line =
      number >= 1 && number <= batch.lines.size() ? batch.lines[number - 1] : batch.lines.front();
  const std::string where = batch.network_namespace.empty() ? "" : " -n " + batch.network_namespace;
  return failed("`" + batch.program + where + " " + line + "` failed: " + first_line(err));
}

Status run_ethtool(const std::string& network_namespace, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"ip", "netns", "exec", network_namespace, "ethtool"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const Result<Finished> finished = run_command(words, "");
  if (!finished.ok()) return finished.status();
  if (succeeded(finished.value())) return Status();
  return failed("ethtool in " + network_namespace + " failed: " + first_line(finished.value().err));
}

std::vector<std::string> named_network_namespaces() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kNetnsFolder, error))
    names.push_back(entry.path().filename());
  return names;
}

Status delete_network_namespace(const std::string& name) {
  if (!fs::exists(kNetnsFolder + name)) return Status();
  const auto pids = [&] {
    std::vector<ProcessMark> marks;
    const Result<Finished> listed = run_command({"ip", "netns", "pids", name}, "");
    if (!listed.ok()) return marks;
    std::istringstream numbers(listed.value().out);
    for (pid_t pid = 0; numbers >> pid;) marks.push_back({pid, start_ticks_of(pid)});
    return marks;
  };
  for (const ProcessMark& mark : pids()) end_process(mark);
  // The namespace itself lives until the kernel has forgotten it; its links must not.
  const Result<Finished> links = run_command({"ip", "-n", name, "-o", "link", "show"}, "");
  if (links.ok()) {
    std::istringstream lines(links.value().out);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, link;
      words >> number >> link;
      link = link.substr(0, link.find_first_of("@:"));
      if (link != "lo" && !link.empty())
        static_cast<void>(run_command({"ip", "-n", name, "link", "del", link}, ""));
    }
  }
  const Result<Finished> deleted = run_command({"ip", "netns", "del", name}, "");
  if (!deleted.ok()) return deleted.status();
  if (succeeded(deleted.value()) || !fs::exists(kNetnsFolder + name)) return Status();
  return failed("cannot delete network namespace " + name + ": " + first_line(deleted.value().err));
}

Status enter_network_namespace(const std::string& name) {
  const int fd = open((kNetnsFolder + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return failed("there is no network namespace " + name + ": is the rack up? See `netsum rack status`");
  const int error = setns(fd, CLONE_NEWNET) == 0 ? 0 : errno;
  close(fd);
  if (error != 0) return failed("cannot enter network namespace " + name + ": " + std::strerror(error));
  return Status();
}

bool is_alive(const ProcessMark& mark) {
  return mark.pid > 0 && mark.start_ticks != 0 && start_ticks_of(mark.pid) == mark.start_ticks;
}

Result<ProcessMark> start_detached(const std::string& network_namespace,
                                   const std::vector<std::string>& arguments, const std::string& log) {
  std::vector<char*> argv = {const_cast<char*>("netsum")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (out < 0) return failed("cannot write " + log + ": " + std::strerror(errno));
  const pid_t pid = fork();
  if (pid == 0) {
    setsid();
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    const Status entered = enter_network_namespace(network_namespace);
    if (!entered.ok()) {
      std::fprintf(stderr, "%s\n", entered.message().c_str());
      std::fflush(stderr);
      _exit(1);
    }
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(out);
  if (pid < 0) return failed(std::string("cannot start a process: ") + std::strerror(errno));
  return ProcessMark{pid, start_ticks_of(pid)};
}

void end_process(const ProcessMark& mark) {
  if (!is_alive(mark)) return;
  kill(mark.pid, SIGTERM);
  const auto deadline = Clock::now() + kTermPatience;
  while (is_alive(mark) && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
  if (!is_alive(mark)) return;
  kill(mark.pid, SIGKILL);
  const auto last = Clock::now() + kTermPatience;
  while (is_alive(mark) && Clock::now() < last) std::this_thread::sleep_for(kPoll);
}

std::string rack_folder(const std::string& name) {
  return base_folder() + "/" + name;
}

std::vector<std::string> noted_racks() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(base_folder(), error)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<RackNote> read_note(const std::string& name) {
  const std::string text = read_file(rack_folder(name) + "/rack.json");
  if (text.empty()) return std::nullopt;
  try {
    const auto json = nlohmann::ordered_json::parse(text);
    RackNote note{.options = rack_options_from_json(json.at("options")),
                  .complete = json.at("complete"),
                  .aggregators = {},
                  .links = {}};
    for (const auto& one : json.at("aggregators")) {
      note.aggregators.push_back(
          {one.at("node"), {one.at("pid").get<pid_t>(), one.at("start_ticks").get<uint64_t>()}});
    }
    for (const auto& [id, link] : json.at("links").items()) {
      note.links[id] = {.rate_bits = link.at("rate_bits"), .loss = link.at("loss"), .up = link.at("up")};
    }
    return note;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

Status write_note(const RackNote& note) {
  nlohmann::ordered_json json = {{"options", to_json(note.options)},
                                 {"complete", note.complete},
                                 {"aggregators", nlohmann::ordered_json::array()},
                                 {"links", nlohmann::ordered_json::object()}};
  for (const RackAggregator& one : note.aggregators) {
    json["aggregators"].push_back(
        {{"node", one.node}, {"pid", one.process.pid}, {"start_ticks", one.process.start_ticks}});
  }
  for (const auto& [id, link] : note.links) {
    json["links"][id] = {{"rate_bits", link.rate_bits}, {"loss", link.loss}, {"up", link.up}};
  }
  const std::string folder = rack_folder(note.options.name), path = folder + "/rack.json";
  std::error_code error;
  fs::create_directories(folder, error);
  // Renamed into place: a reader, or a crash, never meets half of it.
  std::ofstream file(path + ".new");
  file << json.dump(1) << "\n";
  file.close();
  if (!file) return failed("cannot write " + path + ": choose a writable folder with NETSUM_RACK_DIR");
  fs::rename(path + ".new", path, error);
  return error ? failed("cannot write " + path + ": " + error.message()) : Status();
}

void delete_folder(const std::string& name) {
  std::error_code error;
  fs::remove_all(rack_folder(name), error);
  fs::remove(base_folder(), error);  // if it was the last
}

Result<RackLock> RackLock::take(const std::string& name) {
  std::error_code error;
  fs::create_directories(rack_folder(name), error);
  const std::string path = rack_folder(name) + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return failed("cannot write " + path + ": " + std::strerror(errno));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return Status(ErrorCode::kAddressInUse,
                  "another `netsum rack` is at work on '" + name + "': wait for its end");
  }
  return RackLock(fd);
}

RackLock::~RackLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace netsum::tool
