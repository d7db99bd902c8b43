// netsum program: what is in recorded programs, and their translation.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "src/base/text.h"
#include "src/program/replay.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/program_files.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

constexpr char kProgramExamples[] =
    "Examples:\n"
    "  netsum program job                       job.0.jsonl, job.1.jsonl, ...: a summary\n"
    "  netsum program job --steps               and a line for each step\n"
    "  netsum program job --export chakra:et/job   et/job.0.et, ..., as ASTRA-sim reads them\n"
    "  netsum program chakra:et/job --export again\n"
    "  netsum program job --export packed:small    small.0.packed, ..., a tenth of the bytes\n"
    "\n"
    "docs/emulation.md says how programs are recorded.\n"
    "Exit status: 0 done; 2 a file or the command line is wrong.";

// One step in figures. Bytes and operations are those that the network carries.
struct Figures {
  int64_t duration_ns = 0, compute_ns = 0, waited_ns = 0;
  uint64_t operations = 0, bytes = 0, on_hosts = 0;
};

Figures figures_of(const program::Step& step) {
  Figures figures{.duration_ns = step.duration_ns};
  // check() has shown that it ends.
  if (const auto times = program::replay(step, program::recorded_completions(step)); times.ok()) {
    figures.compute_ns = times->compute_ns;
    figures.waited_ns = times->waited_ns;
  }
  for (const program::Operation& operation : step.operations) {
    if (operation.on_hosts) {
      ++figures.on_hosts;
      continue;
    }
    ++figures.operations;
    figures.bytes += operation.count * size_of(operation.type);
  }
  return figures;
}

// Of each figure.
Figures median_figures(std::vector<Figures> all) {
  const auto median = [&all](auto Figures::*member) {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end(),
                     [member](const Figures& a, const Figures& b) { return a.*member < b.*member; });
    return (*middle).*member;
  };
  return {median(&Figures::duration_ns), median(&Figures::compute_ns), median(&Figures::waited_ns),
          median(&Figures::operations),  median(&Figures::bytes),      median(&Figures::on_hosts)};
}

void print_row(const std::string& name, const Figures& figures) {
  const auto share = [&](int64_t ns) {
    return 100.0 * static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(figures.duration_ns, 1));
  };
  fmt::print("{:<20}{:>14.3f}{:>11.1f}{:>11.1f}{:>12}{:>16}{:>10}\n", name,
             static_cast<double>(figures.duration_ns) / 1e6, share(figures.compute_ns),
             share(figures.waited_ns), figures.operations, figures.bytes, figures.on_hosts);
}

std::string kind_of(const program::Operation& operation) {
  const bool reduces = program::reduces(operation.collective);
  return fmt::format("{} {}{}{}, group {}{}", collective_name(operation.collective),
                     data_type_name(operation.type), reduces ? " " : "",
                     reduces ? reduce_op_name(operation.op) : "", operation.group,
                     operation.on_hosts ? ", on the hosts" : "");
}

void print_operations(const program::Step& step) {
  std::map<std::string, std::pair<uint64_t, uint64_t>> kinds;  // number and bytes
  for (const program::Operation& operation : step.operations) {
    auto& [number, bytes] = kinds[kind_of(operation)];
    ++number;
    bytes += operation.count * size_of(operation.type);
  }
  fmt::print("operations of step {}:\n", step.number);
  for (const auto& [kind, counts] : kinds)
    fmt::print("  {:<52}{:>6}{:>16} bytes\n", kind, counts.first, counts.second);
}

void show(const program::Program& program, bool with_steps) {
  const program::Header& header = program.header;
  fmt::print("rank {} of {}, {} {}, {} {}{}{}\n", header.rank, header.world_size, program.steps.size(),
             program.steps.size() == 1 ? "step" : "steps", std::max<size_t>(header.groups.size(), 1),
             header.groups.size() > 1 ? "groups" : "group", header.model.empty() ? "" : ", model ",
             printable(header.model));
  if (!header.machine.empty())
    fmt::print("made on {}, netsum {}\n", printable(header.machine), printable(header.netsum));
  fmt::print("{:<20}{:>14}{:>11}{:>11}{:>12}{:>16}{:>10}\n", "step", "duration ms", "compute %", "waiting %",
             "operations", "bytes", "on hosts");
  std::vector<Figures> all;
  for (const program::Step& step : program.steps) {
    all.push_back(figures_of(step));
    const bool first = all.size() == 1;
    if (first || with_steps)
      print_row(fmt::format("{}{}", step.number, step.partial ? " (partial)" : ""), all.back());
  }
  // The first one has the set-up of the job in it.
  all.erase(all.begin());
  if (program.steps.back().partial && all.size() > 1) all.pop_back();
  if (!all.empty()) print_row(fmt::format("median of {} others", all.size()), median_figures(all));
  const size_t last = program.steps.size() - 1;
  print_operations(program.steps[program.steps[last].partial && last > 0 ? last - 1 : last]);
}

class ProgramCommand : public Subcommand {
 public:
  explicit ProgramCommand(CLI::App& root) {
    app_ = root.add_subcommand("program", "Show or translate the recorded programs of ranks");
    app_->add_option("programs", what_,
                     "A file, a prefix or folder of PREFIX.RANK.jsonl, or chakra:PREFIX or packed:PREFIX")
        ->required();
    app_->add_flag("--steps", steps_, "Show each step");
    app_->add_option(
        "--export", export_,
        "Write PREFIX.RANK.jsonl, with chakra:PREFIX traces PREFIX.RANK.et, or with packed:PREFIX binary "
        "files PREFIX.RANK.packed");
    app_->footer(kProgramExamples);
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    const std::vector<program::Program> programs = load_programs(what_);
    if (!export_.empty()) {
      export_programs(programs, export_);
      return kExitOk;
    }
    for (const program::Program& program : programs) {
      if (&program != &programs.front()) fmt::print("\n");
      show(program, steps_);
    }
    return kExitOk;
  }

 private:
  CLI::App* app_;
  std::string what_;
  bool steps_ = false;
  std::string export_;
};

}  // namespace

std::unique_ptr<Subcommand> make_program_command(CLI::App& root) {
  return std::make_unique<ProgramCommand>(root);
}

}  // namespace netsum::tool
