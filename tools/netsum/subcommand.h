// How a subcommand presents itself to main(): its flags are declared on construction, and main() runs the one
// that was named.
#ifndef NETSUM_TOOLS_NETSUM_SUBCOMMAND_H_
#define NETSUM_TOOLS_NETSUM_SUBCOMMAND_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace netsum::tool {

class Subcommand {
 public:
  virtual ~Subcommand() = default;
  // Whether the command line named this subcommand; valid after parsing.
  virtual bool chosen() const = 0;
  // Returns the exit code. Throws UsageError (flags.h) for flags that do not go together.
  virtual int run() = 0;
};

std::unique_ptr<Subcommand> make_aggregator_command(CLI::App& root);
std::unique_ptr<Subcommand> make_bench_command(CLI::App& root, std::string command_line);
std::unique_ptr<Subcommand> make_bursts_command(CLI::App& root);
std::unique_ptr<Subcommand> make_compression_command(CLI::App& root);
std::unique_ptr<Subcommand> make_doctor_command(CLI::App& root);
std::unique_ptr<Subcommand> make_emulate_command(CLI::App& root);
std::unique_ptr<Subcommand> make_emulate_role_command(CLI::App& root);
std::unique_ptr<Subcommand> make_place_command(CLI::App& root);
std::unique_ptr<Subcommand> make_plan_command(CLI::App& root);
std::unique_ptr<Subcommand> make_program_command(CLI::App& root);
std::unique_ptr<Subcommand> make_rack_command(CLI::App& root);
std::unique_ptr<Subcommand> make_simulate_command(CLI::App& root);
std::unique_ptr<Subcommand> make_status_command(CLI::App& root);
std::unique_ptr<Subcommand> make_version_command(CLI::App& root);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_SUBCOMMAND_H_
