// Flags that several subcommands share, and the checks on their values.
#ifndef NETSUM_TOOLS_NETSUM_FLAGS_H_
#define NETSUM_TOOLS_NETSUM_FLAGS_H_

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "netsum/options.h"
#include "netsum/settings.h"
#include "netsum/status.h"
#include "tools/netsum/quantity.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {

// Declares an option whose text `parse` turns into `value`. `parse` returns a Result; its error becomes the message.
template <typename T, typename Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& flag, T& value, Parse parse,
                        const std::string& what) {
  const auto take = [&value, parse, flag](const std::string& text) {
    auto parsed = parse(text);
    if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
    value = std::move(parsed).value();
  };
  return app.add_option_function<std::string>(flag, take, what);
}

// Declares an option that takes one of `names`; the default is the name that `value` has.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, T& value,
                        const std::map<std::string, T>& names, const std::string& what) {
  std::string all, now;
  for (const auto& [name, named] : names) {
    all += (all.empty() ? "" : ", ") + name;
    if (named == value) now = name;
  }
  const auto parse = [names, all](const std::string& text) -> Result<T> {
    if (const auto found = names.find(text); found != names.end()) return found->second;
    return Status(ErrorCode::kInvalidArgument, "'" + text + "' is not one of " + all);
  };
  return add_parsed(app, flag, value, parse, what + ": " + all)->default_str(now);
}

// Declares an option of a communicator by its row in the table of settings: with its help, what is allowed, its default and its
// variable of the environment.
CLI::Option* add_setting(CLI::App& app, const std::string& flag, std::string_view row, SettingValues& values);

// "host:port[,host:port...]"; empty parts are left out.
Result<std::vector<std::string>> parse_addresses(std::string_view text);

CLI::Validator host_port();  // "host:port" or "[v6]:port"
CLI::Validator power_of_two();

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

// --inject-loss and --inject-seed; `variable`: an environment variable for the loss.
void declare_inject_flags(CLI::App& app, InjectedFaults& faults, const std::string& variable = "");

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_FLAGS_H_
