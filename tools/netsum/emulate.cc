// netsum emulate: a job of many ranks, of which few are real.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "tools/netsum/emulate_check.h"
#include "tools/netsum/emulate_plan.h"
#include "tools/netsum/emulate_report.h"
#include "tools/netsum/emulation.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/quantity.h"
#include "tools/netsum/subcommand.h"
#include "wire/ids.h"

namespace netsum::tool {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr char kEmulateExamples[] =
    "Examples:\n"
    "  netsum emulate --ranks 8 --profile run/p -- python train.py    one real rank and 7 ghosts\n"
    "  netsum emulate --ranks 8 --profile run/p --rate 1gbit -- torchrun --nproc-per-node 1 train.py\n"
    "  netsum emulate --ranks 64 --other-size --profile run/p --rate 10gbit -- python train.py\n"
    "  netsum emulate --ranks 8 --profile run/p --straggler 3=1.2:10:50 -- python train.py\n"
    "  netsum emulate --ranks 8 --profile run/p --crash 3:20 -- python train.py\n"
    "  netsum emulate --ranks 512 --ghost-rack 64 --other-size --profile run/p -- python train.py\n"
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

constexpr int kMostRanks = 512;  // of a job
// More, and times of the protocol that are not dilated, such as its timeouts, would count.
constexpr double kMostDilation = 4;

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
  // `record`: where scripts are recorded; empty: they are not.
  Status emulate(const EmulatePlan& plan, const std::string& record, Json* report) const;
  Status check_rounds(const std::string& folder, std::vector<CheckRound>* rounds) const;
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
  app_->footer(kEmulateExamples);
  plan_.real = 1;
  app_->add_option("--ranks", plan_.ranks, "Ranks of the job, real ones and ghosts")
      ->required()
      ->check(CLI::Range(1, kMostRanks));
  app_->add_option("--ghost-rack", plan_.rack_size,
                   "So many ghosts sum before they send, as ranks below an aggregator of their own do")
      ->check(CLI::Range(2, NETSUM_MAX_MEMBERS));
  app_->add_option("--real", plan_.real, "How many of them are real, from rank 0 on")
      ->check(CLI::Range(0, NETSUM_MAX_MEMBERS))
      ->capture_default_str();
  app_->add_option("--profile", plan_.profile,
                   "PREFIX of PREFIX.RANK.jsonl, a folder of such files, chakra:PREFIX or packed:PREFIX")
      ->required();
  app_->add_flag("--other-size", plan_.other_size,
                 "Take a profile of a job of another size: each rank has as many elements as there");
  app_->add_option("--steps", plan_.steps,
                   "Whole steps, if the script makes more or fewer than the profile has");
  app_->add_option("--seed", plan_.seed, "Of the steps of ranks that were not recorded")
      ->capture_default_str();
  const auto take_contributions = [this](const std::string& name) {
    plan_.contributions = name == "noise"      ? ghost::Contributions::kNoise
                          : name == "scales"   ? ghost::Contributions::kScales
                          : name == "recorded" ? ghost::Contributions::kRecorded
                                               : ghost::Contributions::kZeros;
  };
  app_->add_option_function<std::string>(
          "--contributions", take_contributions,
          "What ghosts contribute: zeros; zeros or noise of the recorded scales; the recorded values")
      ->check(CLI::IsMember({"zeros", "scales", "noise", "recorded"}))
      ->default_str("zeros");
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
  app_->add_option(
          "--dilate", plan_.dilate,
          "So many times as slow, for links that this machine is too slow for; reported times are divided")
      ->check(CLI::Range(1.0, kMostDilation))
      ->default_str("1");
  add_knobs();
  app_->add_option(
          "--check", rounds_,
          "Compare the job with one in which all ranks are real: one run of it, and this many pairs of both")
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
  if (const int members = rounds_ > 0 ? plan_.ranks : plan_.members(); members > NETSUM_MAX_MEMBERS)
    throw UsageError(
        "the job has " + std::to_string(members) + " members at one aggregator, which serves at most " +
        std::to_string(NETSUM_MAX_MEMBERS) + ": make ghosts racks (--ghost-rack 64), or use fewer --ranks");
  const bool crashes = std::any_of(plan_.knobs.begin(), plan_.knobs.end(),
                                   [](const auto& of) { return of.second.crash.has_value(); });
  if (plan_.dilate > 1 && !command_.empty())
    throw UsageError("--dilate cannot slow the computing of '" + command_.front() +
                     "': leave out one of them");
  if (plan_.dilate > 1 && (rack_.rate_bits == 0 || !rack_name_.empty() || !aggregator_.empty()))
    throw UsageError(
        "--dilate slows the links of a rack of its own: give their --rate, and no --rack or --aggregator");
  if (plan_.rack_size > 1 && crashes)
    throw UsageError("--crash is of one ghost, not of a rack: leave out --ghost-rack");
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

Status EmulateCommand::emulate(const EmulatePlan& plan, const std::string& record, Json* report) const {
  Emulation emulation(plan, rack_, command_);
  if (!record.empty()) emulation.record_scripts(record);
  if (const Status status = emulation.prepare(rack_name_, aggregator_); !status.ok()) return status;
  const Status ran = emulation.run(json_ || rounds_ > 0);
  // Of a job that has failed as well: what was measured before.
  Result<Json> made = emulation.report();
  if (made.ok()) *report = std::move(made).value();
  return ran.ok() ? made.status() : ran;
}

// Scripts are recorded in each run, and ghosts play what the real ranks have done in the run before: what one record has by chance
// would be the same in all rounds.
Status EmulateCommand::check_rounds(const std::string& folder, std::vector<CheckRound>* rounds) const {
  const bool records = !command_.empty();
  const auto measure = [&](bool with_ghosts, Json* into) -> Status {
    EmulatePlan plan = plan_;
    if (!with_ghosts) plan.real = plan.ranks;
    if (with_ghosts && records) {
      plan.profile = folder + "/real";
      plan.other_size = false;
      plan.steps = 0;
    }
    const std::string record = folder + (with_ghosts ? "/ghosts/" : "/real/");
    if (const Status status = emulate(plan, records ? record : "", into); !status.ok()) return status;
    if (into->at("steps").empty()) return {ErrorCode::kInternal, into->at("why_void").get<std::string>()};
    return {};
  };
  if (const Status status = measure(false, &rounds->front().real); !status.ok()) return status;
  for (size_t i = 0; i < rounds->size(); ++i) {
    CheckRound& round = (*rounds)[i];
    // The real ranks of a round are those that ended the one before.
    if (i > 0) round.real = (*rounds)[i - 1].real_again;
    if (const Status status = measure(true, &round.ghosts); !status.ok()) return status;
    if (const Status status = measure(false, &round.real_again); !status.ok()) return status;
    round.replays_real = records;
  }
  return {};
}

Status EmulateCommand::check_ghosts(Json* report) const {
  const auto keeper = EmulationKeeper::start("");
  if (!keeper.ok()) return keeper.status();
  std::vector<CheckRound> rounds(static_cast<size_t>(rounds_));
  const Status status = check_rounds((*keeper)->folder(), &rounds);
  if (status.ok()) *report = check_report(rounds);
  return status;
}

int EmulateCommand::run() {
  check();
  Json report;
  const bool checks = rounds_ > 0;
  const Status status = checks ? check_ghosts(&report) : emulate(plan_, "", &report);
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
