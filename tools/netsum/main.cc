// The netsum command. Only code under tools/ reads flags, files and the environment; the rest is passed options.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "netsum/version.h"
#include "tools/netsum/emulate_keeper.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/process.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

std::string command_line(int argc, char** argv) {
  std::string line = "netsum";
  for (int i = 1; i < argc; ++i) line += std::string(" ") + argv[i];
  return line;
}

// "netsum bench allreduce": the deepest subcommand named so far, whose --help is the one to read.
const CLI::App* innermost(const CLI::App* app, std::string* name) {
  *name = app->get_name();
  for (auto named = app->get_subcommands(); !named.empty(); named = app->get_subcommands()) {
    app = named.front();
    *name += " " + app->get_name();
  }
  return app;
}

int report(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  std::string name;
  innermost(&app, &name);
  std::string message = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    // CLI11 lists unknown arguments in reverse order; users expect the first one.
    const std::string rest = message.substr(message.find(':') + 1);
    message = "unknown flag or argument:" + rest;
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !app.remaining(true).empty()) {
    message = "unknown subcommand or flag '" + app.remaining(true).front() + "'; " + message;
  }
  std::fprintf(stderr, "%s: %s\nSee: %s --help\n", name.c_str(), message.c_str(), name.c_str());
  return kExitUsage;
}

int run(int argc, char** argv) {
  CLI::App app("Sums gradients of data-parallel training in the network.", "netsum");
  app.set_version_flag("--version", "netsum " NETSUM_VERSION_STRING);
  app.require_subcommand(1);
  pid_t parent = 0;
  app.add_option("--end-with-parent", parent)->group("");  // internal: process.h
  app.footer(
      "Examples:\n"
      "  netsum aggregator --listen 10.0.0.9:5151\n"
      "  netsum bench allreduce --workers 4\n"
      "  netsum doctor --aggregator 10.0.0.9:5151\n"
      "\n"
      "Exit status: 0 success; 1 a wrong result or a failed check; 2 the command line is invalid;\n"
      "3 the operation failed (the message says why); 4 aggregator stopped with jobs still running.\n"
      "Each subcommand has --help with examples.");
  std::vector<std::unique_ptr<Subcommand>> commands;
  commands.push_back(make_aggregator_command(app));
  commands.push_back(make_bench_command(app, command_line(argc, argv)));
  commands.push_back(make_bursts_command(app));
  commands.push_back(make_compression_command(app));
  commands.push_back(make_doctor_command(app));
  commands.push_back(make_emulate_command(app));
  commands.push_back(make_emulate_keeper_command(app));
  commands.push_back(make_emulate_role_command(app));
  commands.push_back(make_place_command(app));
  commands.push_back(make_plan_command(app));
  commands.push_back(make_program_command(app));
  commands.push_back(make_rack_command(app));
  commands.push_back(make_simulate_command(app));
  commands.push_back(make_status_command(app));
  commands.push_back(make_version_command(app));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report(app, error);
  }
  if (parent != 0) end_with_parent(parent);
  for (const auto& command : commands) {
    if (!command->chosen()) continue;
    try {
      return command->run();
    } catch (const UsageError& error) {
      std::string name;
      innermost(&app, &name);
      std::fprintf(stderr, "%s: %s\nSee: %s --help\n", name.c_str(), error.what(), name.c_str());
      return kExitUsage;
    }
  }
  return kExitUsage;
}

// The exit status: output that is lost, such as on a full disk, is no success.
int end_output(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "netsum: cannot write to standard output: %s\n", std::strerror(errno));
  return status == kExitOk ? kExitFailed : status;
}

}  // namespace
}  // namespace netsum::tool

int main(int argc, char** argv) {
  try {
    return netsum::tool::end_output(netsum::tool::run(argc, argv));
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "netsum: no memory for this: ask for less, such as fewer bytes or workers\n");
    return netsum::tool::kExitFailed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "netsum: %s\n", error.what());
    return netsum::tool::kExitFailed;
  }
}
