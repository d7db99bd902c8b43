#include "tools/netsum/emulation.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "emulate/ghost/operation.h"
#include "emulate/ghost/player.h"
#include "tools/netsum/emulate_report.h"
#include "tools/netsum/program_files.h"
#include "tools/netsum/rack_make.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Until the other processes end as well: after a failure, of which each gets an error, and after the end of the real ranks.
constexpr std::chrono::seconds kGrace{30}, kGhostGrace{5};
constexpr milliseconds kLookInterval{50};
constexpr std::chrono::seconds kProgressInterval{2};
constexpr uint64_t kLeastStepsOnOneMachine = 30;

// Since the machine has started: how long its processors were to run something, or were idle; and of that, how long the hypervisor ran
// other machines instead. In no certain unit.
std::pair<double, double> processor_times() {
  std::ifstream stat("/proc/stat");
  std::string name;
  double all = 0, one = 0, stolen = 0;
  stat >> name;
  for (int field = 0; field < 8 && stat >> one; ++field) {
    all += one;
    if (field == 7) stolen = one;
  }
  return {all, stolen};
}

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

}  // namespace

Status Emulation::prepare(const std::string& rack_name, const std::string& aggregator) {
  plan_.job = "emulate-" + random_hex().substr(0, 8);
  Result<std::vector<program::Program>> records = read_profile(plan_);
  if (!records.ok()) return records.status();
  const auto cast = ghost::Cast::of(*records);
  if (!cast.ok()) return cast.status();
  correlation_ = ghost::correlation_of(*records);
  const auto steps = cast->steps(0, plan_.steps, plan_.seed);
  if (!steps.ok()) return steps.status();
  steps_ = steps->size();
  first_ids_ = ghost::first_ids_of(*steps);
  for (const program::Program& record : *records) {
    if (const Status status = ghost::check_contributions(plan_.contributions, record.steps); !status.ok())
      return invalid(plan_.profile + ": " + status.message());
    for (const program::Step& step : record.steps)
      for (const program::Operation& operation : step.operations)
        if (const Status status = ghost::check_supported(operation); !status.ok())
          return invalid(plan_.profile + ": step " + std::to_string(step.number) + ": " + status.message());
  }
  if (plan_.contributions == ghost::Contributions::kRecorded) {
    std::unordered_map<const program::Operation*, std::span<const uint8_t>> values;
    std::vector<std::shared_ptr<const void>> files;
    if (const Status status = read_profile_values(plan_, *records, &values, &files); !status.ok())
      return status;
    if (plan_.rack_size > 1)
      return invalid("ghost racks have no recorded values: leave out --ghost-rack, or --contributions");
  }
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    const auto groups = cast->groups(rank, plan_.job);
    if (!groups.ok()) return groups.status();
    if (plan_.rack_size > 1 && groups->size() > 1)
      return invalid(plan_.profile +
                     " has groups beside that of all ranks, in which ghost racks take no part: leave out "
                     "--ghost-rack");
    if (rank >= plan_.real || command_.empty()) continue;
    const auto own = cast->steps(rank, plan_.steps, plan_.seed);
    if (!own.ok()) return own.status();
    groups_.emplace_back();
    for (const ghost::GroupJob& group : *groups)
      groups_.back().emplace_back(group, ghost::operations_of(*own, group.id));
  }
  for (const auto& [rank, knobs] : plan_.knobs)
    if (knobs.crash && *knobs.crash >= steps_)
      return invalid("--crash " + std::to_string(rank) + ":" + std::to_string(*knobs.crash) +
                     ": the last step is " + std::to_string(steps_ - 1));
  std::error_code error;
  program_ = fs::read_symlink("/proc/self/exe", error).string();
  if (const Status status = choose_rack(rack_name, !aggregator.empty()); !status.ok()) return status;
  const bool makes_rack = in_rack_ && rack_name.empty();
  auto keeper = EmulationKeeper::start(makes_rack ? rack_.name : "");
  if (!keeper.ok()) return keeper.status();
  keeper_ = std::move(keeper).value();
  plan_.token = random_hex();
  const auto leader_groups = cast->groups(0, plan_.job);
  // Of few steps, what happened on their machine when they were recorded correlates ranks.
  const bool correlation_tells = !ghost::of_one_machine(*records) || steps_ >= kLeastStepsOnOneMachine;
  const bool follows =
      leader_groups.ok() && correlation_ > ghost::kMuchCorrelated && plan_.real > 0 && correlation_tells &&
      plan_.dilate == 1 &&
      ghost::Pace(*steps, leader_groups->front().id, 1, true).covers() > ghost::Pace::kLeastCovered;
  if (follows) {
    plan_.times_path = keeper_->folder() + "/times";
    plan_.follows = std::min(correlation_, 1.0);
    std::ofstream times(plan_.times_path);
    times.close();
    if (times.fail()) return {ErrorCode::kResourceExhausted, "cannot write " + plan_.times_path};
  }
  if (!aggregator.empty()) setenv("NETSUM_AGGREGATOR", aggregator.c_str(), 1);
  return makes_rack ? keeper_->make(rack_) : Status();
}

Status Emulation::choose_rack(const std::string& name, bool has_aggregator) {
  if (has_aggregator) return {};
  if (const std::string missing = missing_privilege(); !missing.empty())
    return {ErrorCode::kPermissionDenied,
            missing + ". Or give --aggregator HOST:PORT, beside which ghosts need no virtual rack"};
  in_rack_ = true;
  if (name.empty()) {
    rack_.name = "emulate" + std::to_string(getpid());
    rack_.workers = plan_.members();
    rack_.rate_bits = static_cast<uint64_t>(static_cast<double>(rack_.rate_bits) / plan_.dilate);
    return {};
  }
  const std::optional<RackNote> note = read_note(name);
  if (!note) return invalid("rack '" + name + "' is not up: leave out --rack, or `netsum rack up` first");
  if (note->options.workers < plan_.members())
    return invalid("rack '" + name + "' has " + std::to_string(note->options.workers) +
                   " workers, but the job needs " + std::to_string(plan_.members()));
  if (note->options.racks > 1)
    return invalid("rack '" + name + "' has " + std::to_string(note->options.racks) +
                   " switches below a spine, and ghosts need one: `netsum rack up` without --racks");
  rack_ = note->options;
  return {};
}

std::vector<std::string> Emulation::in_place_of(int worker, std::vector<std::string> command) const {
  if (!in_rack_) return command;
  std::vector<std::string> inside = {"rack", "exec", "--name", rack_.name, std::to_string(worker), "--"};
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
      keeper_->folder() + "/result-" + std::to_string(plan.own_ranks.front()) + ".json";
  if (in_rack_) {
    const RackPlan rack(rack_);
    for (const int rank : plan.own_ranks)
      plan.network_namespaces[rank] =
          rack.find("w" + std::to_string(plan_.member_of(rank)))->network_namespace;
  }
  const std::string path = keeper_->folder() + "/plan-" + std::to_string(plan.own_ranks.front()) + ".json";
  std::ofstream out(path);
  out << to_json(plan).dump() << "\n";
  out.close();
  if (out.fail()) return {ErrorCode::kResourceExhausted, "cannot write " + path};
  std::vector<std::string> command = {"emulate-role", path};
  if (in_rack_) command.insert(command.begin(), program_);
  auto started =
      ChildProcess::start(in_place_of(plan_.member_of(plan.own_ranks.front()), std::move(command)));
  if (!started.ok()) return started.status();
  part.process = std::move(started).value();
  parts_.push_back(std::move(part));
  return {};
}

Status Emulation::start_scripts(bool output_to_stderr) {
  for (int rank = 0; rank < plan_.real; ++rank) {
    const std::string trace = keeper_->folder() + "/trace.json";
    Json groups = Json::array();
    for (const auto& [group, operations] : groups_[static_cast<size_t>(rank)])
      if (group.job != plan_.job) groups.push_back({{"ranks", group.ranks}, {"job", group.job}});
    const Json emulation = {{"ranks", plan_.ranks},
                            {"real", plan_.real},
                            {"rank", rank},
                            {"job", plan_.job},
                            {"token", plan_.token},
                            {"groups", groups},
                            {"have_values", plan_.contributions == ghost::Contributions::kRecorded}};
    const std::string timeout = std::to_string(plan_.connect_timeout.count() / 1000);
    std::map<std::string, std::string> variables = {
        {"NETSUM_EMULATION", emulation.dump()},
        {"NETSUM_EMULATION_TIMES", rank == 0 ? plan_.times_path : ""},
        {EmulationKeeper::kMark, trace},
        {"NETSUM_SHARED_MEMORY", "0"},
        {"NETSUM_CONNECT_TIMEOUT", timeout},
        {"RANK", std::to_string(rank)},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "1"},
        {"WORLD_SIZE", std::to_string(plan_.ranks)}};
    if (!record_path_.empty()) {
      variables["NETSUM_RECORD"] = record_path_;
      const bool of_values = plan_.contributions == ghost::Contributions::kRecorded;
      if (plan_.contributions != ghost::Contributions::kZeros)
        variables[of_values ? "NETSUM_RECORD_VALUES" : "NETSUM_RECORD_SCALES"] = of_values ? "1024" : "1";
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 0);
    setenv("MASTER_PORT", "29500", 0);
    std::vector<std::string> command = in_place_of(rank, command_);
    if (in_rack_) command.insert(command.begin(), {"netsum", "--end-with-parent", std::to_string(getpid())});
    const Result<pid_t> pid =
        start_process(command, {.out = output_to_stderr ? STDERR_FILENO : STDOUT_FILENO}, true);
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
    if (!pid.ok()) return pid.status();
    scripts_.push_back({*pid, rank, {}});
  }
  return {};
}

Status Emulation::run(bool output_to_stderr) {
  times_before_ = processor_times();
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
      usleep(static_cast<useconds_t>(std::chrono::microseconds(kLookInterval).count()));
    } else {
      ChildProcess::read_lines(processes, kLookInterval);
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
  // Scripts that were recorded have made the steps that their records say, and not those of a program without a cluster.
  std::vector<uint64_t> first_ids = first_ids_;
  if (!record_path_.empty()) {
    try {
      std::vector<const program::Step*> steps;
      const std::vector<program::Program> records = load_programs(record_path_);
      for (const program::Step& step : records.front().steps) steps.push_back(&step);
      first_ids = ghost::first_ids_of(steps);
    } catch (const UsageError& error) {
      return invalid(std::string("the script has left no record: ") + error.what());
    }
  }
  // Ghosts write their results when they end.
  EmulateReport report(plan_, first_ids);
  report.set_correlation(correlation_);
  const auto [all, stolen] = processor_times();
  if (all > times_before_.first)
    report.set_stolen_share((stolen - times_before_.second) / (all - times_before_.first));
  std::error_code error;
  for (const Part& part : parts_) {
    if (!fs::exists(part.result_path, error)) continue;
    if (const Status status = report.add_result(part.result_path); !status.ok()) return status;
  }
  for (const Script& script : scripts_) {
    report.add_cost(cpu_seconds(script.usage), static_cast<uint64_t>(script.usage.ru_maxrss) * 1024);
    for (const auto& [group, operations] : groups_[static_cast<size_t>(script.rank)]) {
      const std::string trace = keeper_->folder() + "/trace-" + group.job + "-rank" +
                                std::to_string(group.rank_of(script.rank)) + ".json";
      if (!fs::exists(trace, error)) continue;
      const bool is_of_all = group.job == plan_.job;
      if (const Status status = report.add_trace(script.rank, trace, operations, is_of_all); !status.ok())
        return status;
    }
  }
  return report.to_json();
}

void Emulation::end_scripts() {
  for (const int signal : {SIGTERM, SIGKILL}) {
    for (const Script& script : scripts_)
      if (!script.status) kill(-script.pid, signal);
    const auto limit = Clock::now() + std::chrono::seconds(5);
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
    if (!part.ended) part.process->wait(std::chrono::seconds(5));
  keeper_.reset();
}

}  // namespace netsum::tool
