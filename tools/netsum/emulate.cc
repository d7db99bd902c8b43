// netsum emulate: a job of many ranks, of which few are real.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "emulate/ghost/cast.h"
#include "emulate/ghost/operation.h"
#include "tools/netsum/emulate_check.h"
#include "tools/netsum/emulate_plan.h"
#include "tools/netsum/emulate_report.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/process.h"
#include "tools/netsum/quantity.h"
#include "tools/netsum/rack_make.h"
#include "tools/netsum/stop_signals.h"
#include "tools/netsum/subcommand.h"
#include "wire/ids.h"

namespace netsum::tool {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kExamples[] =
    "Examples:\n"
    "  netsum emulate --ranks 8 --profile run/p -- python train.py    one real rank and 7 ghosts\n"
    "  netsum emulate --ranks 8 --profile run/p --rate 1gbit -- torchrun --nproc-per-node 1 train.py\n"
    "  netsum emulate --ranks 64 --other-size --profile run/p --rate 10gbit -- python train.py\n"
    "  netsum emulate --ranks 8 --profile run/p --straggler 3=1.2:10:50 -- python train.py\n"
    "  netsum emulate --ranks 8 --profile run/p --crash 3:20 -- python train.py\n"
    "  netsum emulate --ranks 8 --real 8 --profile run/p              8 real ranks without PyTorch, which "
    "sleep\n"
    "  netsum emulate --ranks 8 --profile run/p --rate 100mbit --check 7     are ghosts as real ranks here?\n"
    "  netsum emulate --ranks 4 --real 0 --profile run/p --aggregator 10.0.0.9:5151\n"
    "\n"
    "The profile is what netsum.torch.record() has written in a run of the script: PREFIX.RANK.jsonl.\n"
    "Ghosts send zeros in full packets when their record says; results of the real ranks are scaled as\n"
    "if each ghost had their data. Without --aggregator the job runs in a virtual rack, which needs root.\n"
    "Exit status: 0 valid; 1 void, as ghosts were late, or --check failed; 2 bad flags or a bad profile; 3 "
    "failed.";

// Until the other processes end as well: after a failure, of which each gets an error, and after the end of the real ranks.
constexpr seconds kGrace{30}, kGhostGrace{5};
constexpr milliseconds kLook{50};
constexpr seconds kProgressInterval{2};

Status invalid(const std::string& message) {
  return {ErrorCode::kInvalidArgument, message};
}

template <typename T>
bool parse_number(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value >= T{0};
}

// "3=1.2:10:50": a rank, and what follows it, divided by colons.
using RankValue = std::pair<int, std::vector<std::string>>;

Result<RankValue> parse_rank_value(const std::string& text, size_t values, const std::string& form) {
  RankValue parsed;
  const size_t end = text.find_first_of("=:");
  const Status wrong = invalid("'" + text + "' is not " + form);
  if (end == std::string::npos || !parse_number(std::string_view(text).substr(0, end), &parsed.first))
    return wrong;
  for (size_t begin = end + 1; begin <= text.size();) {
    const size_t next = std::min(text.find(':', begin), text.size());
    parsed.second.push_back(text.substr(begin, next - begin));
    begin = next + 1;
  }
  if (parsed.second.size() != values) return wrong;
  return parsed;
}

// A process of this binary that plays a part.
struct Part {
  std::unique_ptr<ChildProcess> process;
  std::string result_path;
  std::vector<int> ranks;
  bool is_real = false, ended = false;
  std::string failure;  // why; empty: it has not failed
  std::string code;     // of the failure
};

// The user's script as a real rank.
struct Script {
  pid_t pid = 0;
  int rank = 0;
  std::string trace_path;
  std::optional<int> status;  // of wait4()
  rusage usage{};
};

std::string ending_of(int status) {
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                             : "exit status " + std::to_string(WEXITSTATUS(status));
}

std::string random_hex() {
  std::random_device device;
  char text[33];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", device(), device(), device(), device());
  return text;
}

class Emulation {
 public:
  Emulation(EmulatePlan plan, RackOptions rack, std::vector<std::string> command)
      : plan_(std::move(plan)), rack_(std::move(rack)), command_(std::move(command)) {}
  ~Emulation() { tear_down(); }
  Emulation(const Emulation&) = delete;
  Emulation& operator=(const Emulation&) = delete;

  // `rack_name`: of one that is up; empty: none. `aggregator`: empty: of the rack.
  Status prepare(const std::string& rack_name, const std::string& aggregator);
  Status run(bool output_to_stderr);
  Result<Json> report();

 private:
  Status make_own_rack();
  Status start(std::vector<int> ranks, bool is_real);
  Status start_scripts(bool output_to_stderr);
  Status watch();
  void take_events(Part* part);
  void reap_scripts();
  void show_progress(uint64_t step);
  void end_scripts();
  void tear_down();
  bool real_ended() const;
  bool all_ended() const;
  std::string why_failed() const;
  std::vector<std::string> in_place_of(int rank, std::vector<std::string> command) const;

  EmulatePlan plan_;
  RackOptions rack_;
  const std::vector<std::string> command_;
  const StopSignals stop_;  // before any thread
  bool in_rack_ = false, owns_rack_ = false;
  std::string folder_;  // of files that this run needs
  std::string program_;
  std::vector<Part> parts_;
  std::vector<Script> scripts_;
  uint64_t steps_ = 0;
  std::vector<uint64_t> first_ids_;  // of each step, the number of its first operation
  Clock::time_point shown_;
};

Status Emulation::prepare(const std::string& rack_name, const std::string& aggregator) {
  Result<std::vector<program::Program>> records = read_profile(plan_);
  if (!records.ok()) return records.status();
  const auto cast = ghost::Cast::of(*records);
  if (!cast.ok()) return cast.status();
  const auto steps = cast->steps(0, plan_.steps, plan_.seed);  // the operations of all ranks are the same
  if (!steps.ok()) return steps.status();
  steps_ = steps->size();
  uint64_t operations = 0;
  for (const program::Step* step : *steps) {
    first_ids_.push_back(operations);
    operations += step->operations.size();
    for (const program::Operation& operation : step->operations)
      if (const Status status = ghost::check_supported(operation); !status.ok())
        return invalid(plan_.profile + ": step " + std::to_string(step->number) + ": " + status.message());
  }
  for (const auto& [rank, knobs] : plan_.knobs)
    if (knobs.crash && *knobs.crash >= steps_)
      return invalid("--crash " + std::to_string(rank) + ":" + std::to_string(*knobs.crash) +
                     ": the last step is " + std::to_string(steps_ - 1));
  std::error_code error;
  program_ = fs::read_symlink("/proc/self/exe", error).string();
  std::string name = fs::temp_directory_path(error).string() + "/netsum-emulate-XXXXXX";
  if (mkdtemp(name.data()) == nullptr)
    return {ErrorCode::kResourceExhausted, "cannot make a folder " + name + ": " + std::strerror(errno)};
  folder_ = name;
  plan_.job = "emulate-" + random_hex().substr(0, 8);
  plan_.token = random_hex();
  if (!aggregator.empty()) {
    setenv("NETSUM_AGGREGATOR", aggregator.c_str(), 1);
    return {};
  }
  if (const std::string missing = missing_privilege(); !missing.empty())
    return {ErrorCode::kPermissionDenied,
            missing + ". Or give --aggregator HOST:PORT, beside which ghosts need no virtual rack"};
  in_rack_ = true;
  if (rack_name.empty()) return make_own_rack();
  const std::optional<RackNote> note = read_note(rack_name);
  if (!note)
    return invalid("rack '" + rack_name + "' is not up: leave out --rack, or `netsum rack up` first");
  if (note->options.workers < plan_.ranks)
    return invalid("rack '" + rack_name + "' has " + std::to_string(note->options.workers) +
                   " workers, fewer than --ranks " + std::to_string(plan_.ranks));
  if (note->options.racks > 1)
    return invalid("rack '" + rack_name + "' has " + std::to_string(note->options.racks) +
                   " switches below a spine, and ghosts need one: `netsum rack up` without --racks");
  rack_ = note->options;
  return {};
}

Status Emulation::make_own_rack() {
  rack_.name = "emulate" + std::to_string(getpid());
  rack_.workers = plan_.ranks;
  const Result<FileDescriptor> lock = lock_rack(rack_.name);
  if (!lock.ok()) return lock.status();
  owns_rack_ = true;
  return make_rack(rack_);
}

std::vector<std::string> Emulation::in_place_of(int rank, std::vector<std::string> command) const {
  if (!in_rack_) return command;
  std::vector<std::string> inside = {"rack", "exec", "--name", rack_.name, std::to_string(rank), "--"};
  inside.insert(inside.end(), command.begin(), command.end());
  return inside;
}

Status Emulation::start(std::vector<int> ranks, bool is_real) {
  Part part;
  part.ranks = ranks;
  part.is_real = is_real;
  EmulatePlan plan = plan_;
  plan.own_ranks = std::move(ranks);
  plan.is_real = is_real;
  plan.result_path = part.result_path =
      folder_ + "/result-" + std::to_string(plan.own_ranks.front()) + ".json";
  if (in_rack_) {
    const RackPlan rack(rack_);
    for (const int rank : plan.own_ranks)
      plan.network_namespaces[rank] = rack.find("w" + std::to_string(rank))->network_namespace;
  }
  const std::string path = folder_ + "/plan-" + std::to_string(plan.own_ranks.front()) + ".json";
  std::ofstream out(path);
  out << to_json(plan).dump() << "\n";
  out.close();
  if (out.fail()) return {ErrorCode::kResourceExhausted, "cannot write " + path};
  std::vector<std::string> command = {"emulate-role", path};
  if (in_rack_) command.insert(command.begin(), program_);
  auto started = ChildProcess::start(in_place_of(plan.own_ranks.front(), std::move(command)));
  if (!started.ok()) return started.status();
  part.process = std::move(started).value();
  parts_.push_back(std::move(part));
  return {};
}

Status Emulation::start_scripts(bool output_to_stderr) {
  for (int rank = 0; rank < plan_.real; ++rank) {
    const std::string trace = folder_ + "/trace.json";
    const Json emulation = {{"ranks", plan_.ranks},
                            {"real", plan_.real},
                            {"rank", rank},
                            {"job", plan_.job},
                            {"token", plan_.token}};
    const std::string timeout = std::to_string(plan_.connect_timeout.count() / 1000);
    const std::map<std::string, std::string> variables = {{"NETSUM_EMULATION", emulation.dump()},
                                                          {"NETSUM_TRACE", trace},
                                                          {"NETSUM_SHARED_MEMORY", "0"},
                                                          {"NETSUM_CONNECT_TIMEOUT", timeout},
                                                          {"RANK", std::to_string(rank)},
                                                          {"LOCAL_RANK", "0"},
                                                          {"LOCAL_WORLD_SIZE", "1"},
                                                          {"WORLD_SIZE", std::to_string(plan_.ranks)}};
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 0);
    setenv("MASTER_PORT", "29500", 0);
    std::vector<std::string> command = in_place_of(rank, command_);
    if (in_rack_) command.insert(command.begin(), {"netsum", "--end-with-parent", std::to_string(getpid())});
    const Result<pid_t> pid =
        start_process(command, {.out = output_to_stderr ? STDERR_FILENO : STDOUT_FILENO}, true);
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
    if (!pid.ok()) return pid.status();
    scripts_.push_back(
        {*pid, rank, folder_ + "/trace-" + plan_.job + "-rank" + std::to_string(rank) + ".json", {}});
  }
  return {};
}

Status Emulation::run(bool output_to_stderr) {
  std::vector<int> together;
  for (int rank = plan_.real; rank < plan_.ranks; ++rank) {
    const auto knobs = plan_.knobs.find(rank);
    // A crash ends the process.
    if (knobs == plan_.knobs.end() || !knobs->second.crash) {
      together.push_back(rank);
    } else if (const Status status = start({rank}, false); !status.ok()) {
      return status;
    }
  }
  if (!together.empty())
    if (const Status status = start(std::move(together), false); !status.ok()) return status;
  if (!command_.empty()) {
    if (const Status status = start_scripts(output_to_stderr); !status.ok()) return status;
  } else {
    for (int rank = 0; rank < plan_.real; ++rank)
      if (const Status status = start({rank}, true); !status.ok()) return status;
  }
  return watch();
}

void Emulation::show_progress(uint64_t step) {
  const auto now = Clock::now();
  if (now - shown_ < kProgressInterval) return;
  shown_ = now;
  std::fprintf(stderr, "netsum emulate: step %llu of %llu\n", static_cast<unsigned long long>(step + 1),
               static_cast<unsigned long long>(steps_));
}

void Emulation::take_events(Part* part) {
  while (const std::optional<std::string> line = part->process->next_line()) {
    const Json event = Json::parse(*line, nullptr, false);
    if (!event.is_object() || !event.contains("event")) continue;
    const std::string what = event.at("event");
    if (what == "step") {
      show_progress(event.at("step"));
    } else if (what == "failed") {
      part->code = event.at("code");
      part->failure = event.at("message");
    } else if (what == "crash") {
      std::fprintf(stderr, "netsum emulate: rank %d crashes\n", event.at("rank").get<int>());
      part->failure = "crashed, as asked for";
      part->code = "crash";
    }
  }
  if (part->ended || !part->process->at_end()) return;
  part->ended = true;
  const std::string how = part->process->wait(kGhostGrace);
  if (how != "exit status 0" && part->failure.empty()) part->failure = "its process ended: " + how;
}

void Emulation::reap_scripts() {
  for (Script& script : scripts_) {
    int status = 0;
    if (!script.status && wait4(script.pid, &status, WNOHANG, &script.usage) == script.pid)
      script.status = status;
  }
}

bool Emulation::real_ended() const {
  return std::all_of(scripts_.begin(), scripts_.end(),
                     [](const Script& one) { return one.status.has_value(); }) &&
         std::all_of(parts_.begin(), parts_.end(), [](const Part& one) { return !one.is_real || one.ended; });
}

bool Emulation::all_ended() const {
  return real_ended() && std::all_of(parts_.begin(), parts_.end(), [](const Part& one) { return one.ended; });
}

// A real rank that has ended in order is no failure of ghosts that are left behind: their record goes on longer.
std::string Emulation::why_failed() const {
  std::string why;
  for (const Script& script : scripts_)
    if (script.status.value_or(0) != 0)
      why += "\n  rank " + std::to_string(script.rank) + ": `" + command_.front() + "` ended with " +
             ending_of(*script.status);
  for (const Part& part : parts_) {
    if (!part.is_real || part.failure.empty()) continue;
    why += "\n  rank " + std::to_string(part.ranks.front()) + ": " + part.failure;
  }
  const bool all_is_done = plan_.real > 0 && real_ended() && why.empty();
  for (const Part& part : parts_) {
    if (part.is_real || part.failure.empty()) continue;
    if (all_is_done && part.code == error_name(ErrorCode::kPeerLost)) continue;
    const std::string first = std::to_string(part.ranks.front()), last = std::to_string(part.ranks.back());
    why +=
        "\n  " + (first == last ? "ghost " + first : "ghosts " + first + " to " + last) + ": " + part.failure;
  }
  return why;
}

Status Emulation::watch() {
  std::optional<Clock::time_point> failed_at, real_ended_at;
  while (!all_ended()) {
    if (const int signal = stop_.wait(milliseconds(0)); signal != 0)
      return {ErrorCode::kAborted, "stopped by signal " + std::to_string(signal)};
    std::vector<ChildProcess*> processes;
    for (const Part& part : parts_)
      if (!part.ended) processes.push_back(part.process.get());
    if (processes.empty()) {
      usleep(static_cast<useconds_t>(std::chrono::microseconds(kLook).count()));
    } else {
      ChildProcess::read_lines(processes, kLook);
    }
    for (Part& part : parts_) take_events(&part);
    reap_scripts();
    const auto now = Clock::now();
    if (!failed_at && !why_failed().empty()) failed_at = now;
    if (!real_ended_at && plan_.real > 0 && real_ended()) real_ended_at = now;
    if ((failed_at && now - *failed_at > kGrace) || (real_ended_at && now - *real_ended_at > kGhostGrace))
      break;
  }
  if (const std::string why = why_failed(); !why.empty())
    return {ErrorCode::kInternal,
            "the emulated job of " + std::to_string(plan_.ranks) + " ranks failed:" + why};
  return {};
}

Result<Json> Emulation::report() {
  // Ghosts write their results when they end.
  EmulateReport report(plan_, first_ids_);
  std::error_code error;
  for (const Part& part : parts_) {
    if (!fs::exists(part.result_path, error)) continue;
    if (const Status status = report.add_result(part.result_path); !status.ok()) return status;
  }
  for (const Script& script : scripts_) {
    report.add_cost(cpu_seconds(script.usage), static_cast<uint64_t>(script.usage.ru_maxrss) * 1024);
    if (!fs::exists(script.trace_path, error)) continue;
    if (const Status status = report.add_trace(script.rank, script.trace_path); !status.ok()) return status;
  }
  return report.to_json();
}

void Emulation::end_scripts() {
  for (const int signal : {SIGTERM, SIGKILL}) {
    for (const Script& script : scripts_)
      if (!script.status) kill(-script.pid, signal);
    const auto limit = Clock::now() + seconds(5);
    const auto all_reaped = [this] {
      reap_scripts();
      return std::all_of(scripts_.begin(), scripts_.end(),
                         [](const Script& one) { return one.status.has_value(); });
    };
    while (!all_reaped() && Clock::now() < limit) usleep(10'000);
  }
}

void Emulation::tear_down() {
  end_scripts();
  for (Part& part : parts_)
    if (!part.ended) part.process->signal(SIGTERM);
  for (Part& part : parts_)
    if (!part.ended) part.process->wait(seconds(5));
  if (owns_rack_) {
    const Result<FileDescriptor> lock = lock_rack(rack_.name);
    const std::optional<RackNote> note = read_note(rack_.name);
    if (lock.ok() && note) {
      if (const Status status = take_down(*note); !status.ok())
        std::fprintf(stderr, "netsum emulate: %s\n", status.message().c_str());
    }
    owns_rack_ = false;
  }
  std::error_code error;
  if (!folder_.empty()) fs::remove_all(folder_, error);
}

class EmulateCommand : public Subcommand {
 public:
  explicit EmulateCommand(CLI::App& root);
  bool chosen() const override { return app_->parsed(); }
  int run() override;

 private:
  // Throws UsageError.
  void check() const;
  void add_knobs();
  // *report stays null if nothing was measured.
  Status emulate(int real, Json* report) const;
  Status check_ghosts(Json* report) const;

  CLI::App* app_;
  EmulatePlan plan_;
  RackOptions rack_;
  std::string rack_name_, aggregator_, html_;
  bool json_ = false;
  int rounds_ = 0;  // of --check
  std::vector<std::string> command_;
};

EmulateCommand::EmulateCommand(CLI::App& root) {
  app_ = root.add_subcommand("emulate",
                             "Run few ranks of a job for real, and the others as ghosts that send and wait");
  app_->footer(kExamples);
  plan_.real = 1;
  app_->add_option("--ranks", plan_.ranks, "Ranks of the job, real ones and ghosts")
      ->required()
      ->check(CLI::Range(1, NETSUM_MAX_MEMBERS));
  app_->add_option("--real", plan_.real, "How many of them are real, from rank 0 on")
      ->check(CLI::Range(0, NETSUM_MAX_MEMBERS))
      ->capture_default_str();
  app_->add_option("--profile", plan_.profile,
                   "PREFIX of PREFIX.RANK.jsonl, a folder of such files, or chakra:PREFIX")
      ->required();
  app_->add_flag("--other-size", plan_.other_size,
                 "Take a profile of a job of another size: each rank has as many elements as there");
  app_->add_option("--steps", plan_.steps,
                   "Whole steps, if the script makes more or fewer than the profile has");
  app_->add_option("--seed", plan_.seed, "Of the steps of ranks that were not recorded")
      ->capture_default_str();
  add_parsed(*app_, "--rate", rack_.rate_bits, parse_rate, "Rate of every link of the rack: 100mbit, none")
      ->default_str("none");
  auto* rack =
      app_->add_option("--rack", rack_name_, "A rack that is up (netsum rack), in place of a new one");
  app_->add_option("--aggregator", aggregator_, "An aggregator, in place of a rack: ghosts run on this host")
      ->check(host_port())
      ->excludes(rack);
  add_parsed(*app_, "--connect-timeout", plan_.connect_timeout, parse_duration,
             "How long ranks wait until all have joined")
      ->default_str("2m");
  add_knobs();
  app_->add_option("--check", rounds_,
                   "Compare the job with one in which all ranks are real, in this many rounds of three runs")
      ->check(CLI::Range(1, 100));
  app_->add_option("--html", html_, "Also write the report as a page to this file");
  app_->add_flag("--json", json_, "Print the report as JSON; what the script prints goes to standard error");
  app_->add_option(
      "COMMAND", command_,
      "Script of the real ranks, after `--`. Without: they are processes that sleep where they compute");
}

void EmulateCommand::add_knobs() {
  const auto add = [this](const std::string& flag, const std::string& form, size_t values, auto take,
                          const std::string& what) {
    const auto parse = [=, this](const std::vector<std::string>& texts) {
      for (const std::string& text : texts) {
        const Result<RankValue> parsed = parse_rank_value(text, values, form);
        if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
        if (!take(&plan_, *parsed)) throw CLI::ValidationError(flag, "'" + text + "' is not " + form);
      }
    };
    app_->add_option_function<std::vector<std::string>>(flag, parse, what + ": " + form)->delimiter(',');
  };
  add(
      "--speed", "RANK=FACTOR, such as 3=0.5", 1,
      [](EmulatePlan* plan, const RankValue& value) {
        double& speed = plan->knobs[value.first].speed;
        return parse_number(value.second[0], &speed) && speed > 0;
      },
      "A rank computes this many times as fast");
  add(
      "--straggler", "RANK=FACTOR:FROM:TO, such as 3=1.2:10:50", 3,
      [](EmulatePlan* plan, const RankValue& value) {
        ghost::Knobs::Straggler one;
        const bool fits = parse_number(value.second[0], &one.factor) &&
                          parse_number(value.second[1], &one.from) &&
                          parse_number(value.second[2], &one.to) && one.factor > 0 && one.from < one.to;
        plan->knobs[value.first].stragglers.push_back(one);
        return fits;
      },
      "A rank's computing takes FACTOR times as long in steps FROM to before TO");
  add(
      "--pause", "RANK=STEP:TIME, such as 3=20:1.5s", 2,
      [](EmulatePlan* plan, const RankValue& value) {
        uint64_t step = 0;
        const Result<milliseconds> time = parse_duration(value.second[1]);
        if (!parse_number(value.second[0], &step) || !time.ok()) return false;
        plan->knobs[value.first].pauses_ns[step] = std::chrono::nanoseconds(*time).count();
        return true;
      },
      "A rank pauses before a step");
  add(
      "--crash", "RANK:STEP, such as 3:20", 1,
      [](EmulatePlan* plan, const RankValue& value) {
        return parse_number(value.second[0], &plan->knobs[value.first].crash.emplace());
      },
      "The process of a ghost is killed before a step");
  add(
      "--late", "RANK=TIME, such as 3=5s", 1,
      [](EmulatePlan* plan, const RankValue& value) {
        const Result<milliseconds> time = parse_duration(value.second[0]);
        if (time.ok()) plan->late[value.first] = *time;
        return time.ok();
      },
      "A ghost joins this much later");
}

void EmulateCommand::check() const {
  if (rounds_ > 0 && !html_.empty()) throw UsageError("--check has no page: leave out --html");
  if (plan_.real > plan_.ranks)
    throw UsageError("--real is " + std::to_string(plan_.real) + ", more than --ranks " +
                     std::to_string(plan_.ranks));
  if (!command_.empty() && plan_.real == 0)
    throw UsageError("with --real 0 no rank runs '" + command_.front() + "': give --real 1, or no command");
  const auto check_rank = [this](int rank, const char* flag, bool ghosts_only) {
    if (rank >= plan_.ranks)
      throw UsageError(std::string(flag) + " names rank " + std::to_string(rank) +
                       ", but the ranks are 0 to " + std::to_string(plan_.ranks - 1));
    if (rank < plan_.real && (ghosts_only || !command_.empty()))
      throw UsageError(std::string(flag) + " names rank " + std::to_string(rank) +
                       ", which is real: give the number of a ghost, from " + std::to_string(plan_.real) +
                       " on");
  };
  const bool ends_badly =
      !plan_.late.empty() || std::any_of(plan_.knobs.begin(), plan_.knobs.end(),
                                         [](const auto& of) { return of.second.crash.has_value(); });
  if (rounds_ > 0 && (ends_badly || (!command_.empty() && !plan_.knobs.empty())))
    throw UsageError(
        "--check compares with real ranks, which do not have what --crash and --late ask for, and with a "
        "script not what --speed, --straggler and --pause ask for: leave them out");
  for (const auto& [rank, knobs] : plan_.knobs)
    check_rank(rank, knobs.crash ? "--crash" : "--speed, --straggler or --pause", knobs.crash.has_value());
  for (const auto& [rank, time] : plan_.late) check_rank(rank, "--late", true);
}

Status EmulateCommand::emulate(int real, Json* report) const {
  EmulatePlan plan = plan_;
  plan.real = real;
  Emulation emulation(plan, rack_, command_);
  if (const Status status = emulation.prepare(rack_name_, aggregator_); !status.ok()) return status;
  const Status ran = emulation.run(json_ || rounds_ > 0);
  // Of a job that has failed as well: what was measured before.
  Result<Json> made = emulation.report();
  if (made.ok()) *report = std::move(made).value();
  return ran.ok() ? made.status() : ran;
}

Status EmulateCommand::check_ghosts(Json* report) const {
  std::vector<CheckRound> rounds(static_cast<size_t>(rounds_));
  for (CheckRound& round : rounds) {
    for (const auto& [real, into] :
         {std::pair(plan_.ranks, &round.real), std::pair(plan_.real, &round.ghosts),
          std::pair(plan_.ranks, &round.real_again)}) {
      if (const Status status = emulate(real, into); !status.ok()) return status;
      if (into->at("steps").empty()) return {ErrorCode::kInternal, into->at("why_void").get<std::string>()};
    }
  }
  *report = check_report(rounds);
  return {};
}

int EmulateCommand::run() {
  check();
  Json report;
  const bool checks = rounds_ > 0;
  const Status status = checks ? check_ghosts(&report) : emulate(plan_.real, &report);
  if (!status.ok()) std::fprintf(stderr, "netsum emulate: %s\n", status.message().c_str());
  if (!report.is_null())
    std::printf("%s", (json_    ? report.dump(1) + "\n"
                       : checks ? check_text(report)
                                : report_text(report))
                          .c_str());
  if (!html_.empty() && !report.is_null()) {
    if (const int written = write_file(html_, report_page(report)); written != kExitOk) return written;
  }
  if (!status.ok()) {
    const bool is_input = status.code() == ErrorCode::kInvalidArgument ||
                          status.code() == ErrorCode::kVersionMismatch ||
                          status.code() == ErrorCode::kUnsupported;
    return is_input ? kExitUsage : kExitFailed;
  }
  return report.at("verdict") == (checks ? "same" : "valid") ? kExitOk : kExitWrong;
}

}  // namespace

std::unique_ptr<Subcommand> make_emulate_command(CLI::App& root) {
  return std::make_unique<EmulateCommand>(root);
}

}  // namespace netsum::tool
