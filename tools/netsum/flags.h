// Flags that several subcommands share, and the checks on their values.
#ifndef NETSUM_TOOLS_NETSUM_FLAGS_H_
#define NETSUM_TOOLS_NETSUM_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "netsum/options.h"
#include "netsum/status.h"

namespace netsum::tool {

// A command line (or environment, or file named there) that cannot be served; what() says what to change.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "64M" (10^6), "64Mi" (2^20), "64MiB", "4096". Error: kInvalidArgument.
Result<uint64_t> parse_bytes(std::string_view text);
// "1.5s", "200ms", "30" (seconds) -> milliseconds. Error: kInvalidArgument.
Result<int64_t> parse_duration_ms(std::string_view text);

// "0.01", "1%": a probability from 0 to 1. Error: kInvalidArgument.
Result<double> parse_probability(std::string_view text);
std::string format_percent(double probability);  // "1 %"

// Validators for CLI11 options: they return "" or a sentence saying what form is expected.
CLI::Validator host_port_list();  // "host:port[,host:port...]"
CLI::Validator host_port();       // "host:port" or "[v6]:port"
CLI::Validator byte_count();
CLI::Validator duration();
CLI::Validator power_of_two();
CLI::Validator probability();

std::vector<std::string> split_list(const std::string& comma_separated);

// --tls-cert, --tls-key, --tls-ca [--require-client-cert]: paths here, contents in TlsOptions.
struct TlsFlags {
  std::string cert_path;
  std::string key_path;
  std::string ca_path;
  bool require_client_cert = false;

  void declare_server(CLI::App& app);
  void declare_client(CLI::App& app);
  // Reads the files. Throws UsageError.
  TlsOptions load() const;
};

// --token-file or the environment variable `variable`; declared under `flag`.
struct TokenFlag {
  std::string flag;
  std::string variable;
  std::string path;

  void declare(CLI::App& app, const std::string& what);
  // The file's first line, else the variable, else "". Throws UsageError.
  std::string load() const;
};

// --inject-loss and --inject-seed.
struct InjectFlags {
  std::string loss = "0";
  uint64_t seed = 1;

  void declare(CLI::App& app, const std::string& variable = "");  // an environment variable for the loss
  InjectedFaults load() const;
};

std::string environment(const char* name);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_FLAGS_H_
