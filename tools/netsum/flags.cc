#include "tools/netsum/flags.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <fstream>
#include <regex>
#include <sstream>

#include "src/net/address.h"

namespace netsum::tool {
namespace {

constexpr size_t kMaxTokenBytes = 256;

std::string read_file(const std::string& flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw UsageError(flag + ": cannot read '" + path + "'; give the path of a readable file");
  return text.str();
}

std::string read_pem(const std::string& flag, const std::string& path) {
  if (path.empty()) return "";
  std::string text = read_file(flag, path);
  if (text.find("-----BEGIN") == std::string::npos) {
    throw UsageError(flag + ": '" + path + "' holds no PEM text (a line '-----BEGIN ...-----')");
  }
  return text;
}

// The table's help is Markdown: without marks of code, and of a link only its text.
std::string plain(const std::string& markdown) {
  static const std::regex kLink(R"(\[([^\]]*)\]\([^)]*\))");
  std::string text = std::regex_replace(markdown, kLink, "$1");
  std::erase(text, '`');
  const bool begins_with_a_value = text.find(':') < text.find(' ');
  if (!text.empty() && !begins_with_a_value)
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace

CLI::Option* add_setting(CLI::App& app, const std::string& flag, std::string_view row,
                         SettingValues& values) {
  const auto rows = setting_table();
  const auto info =
      std::find_if(rows.begin(), rows.end(), [&](const SettingInfo& one) { return one.name == row; });
  const auto take = [&values, flag, name = std::string(row)](const std::string& text) {
    if (Status status = set_value(name, text, &values); !status.ok())
      throw CLI::ValidationError(flag, status.message());
  };
  return app.add_option_function<std::string>(flag, take, plain(info->help) + "; expects " + info->values)
      ->default_str(info->usual)
      ->envname(info->variable);
}

Result<std::vector<std::string>> parse_addresses(std::string_view text) {
  std::vector<std::string> addresses;
  std::istringstream in{std::string(text)};
  for (std::string address; std::getline(in, address, ',');) {
    // Aggregators of a plan are at the ranks, while a job runs.
    if (address.empty() || address.starts_with("plan:")) continue;
    if (const Status status = split_host_port(address).status(); !status.ok()) return status;
    addresses.push_back(address);
  }
  return addresses;
}

CLI::Validator host_port() {
  return CLI::Validator([](std::string& text) { return split_host_port(text).status().message(); }, "",
                        "host:port");
}

CLI::Validator power_of_two() {
  return CLI::Validator(
      [](std::string& text) {
        uint32_t value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && std::has_single_bit(value)
                   ? ""
                   : "'" + text + "' is not a power of two; expected 1, 2, 4, 8, ...";
      },
      "", "power of two");
}

void TlsFlags::declare_client(CLI::App& app) {
  app.add_option("--tls-ca", ca_path, "Use TLS, and trust servers signed by this certificate (PEM file)")
      ->type_name("FILE");
  app.add_option("--tls-cert", cert_path, "Client certificate, if the aggregator requires one (PEM file)")
      ->type_name("FILE");
  app.add_option("--tls-key", key_path, "Private key of --tls-cert (PEM file)")->type_name("FILE");
}

void TlsFlags::declare_server(CLI::App& app) {
  app.add_option("--tls-cert", cert_path, "Use TLS with this certificate (PEM file)")->type_name("FILE");
  app.add_option("--tls-key", key_path, "Private key of --tls-cert (PEM file)")->type_name("FILE");
  app.add_option("--tls-ca", ca_path, "Trust clients signed by this certificate (PEM file)")
      ->type_name("FILE");
  app.add_flag("--require-client-cert", require_client_cert,
               "Refuse clients without a certificate signed by --tls-ca (mutual TLS)");
}

TlsOptions TlsFlags::load() const {
  if (cert_path.empty() != key_path.empty()) {
    throw UsageError("--tls-cert and --tls-key go together: give both or neither");
  }
  if (require_client_cert && (ca_path.empty() || cert_path.empty())) {
    throw UsageError("--require-client-cert needs --tls-cert, --tls-key and --tls-ca");
  }
  TlsOptions tls;
  tls.cert = read_pem("--tls-cert", cert_path);
  tls.private_key = read_pem("--tls-key", key_path);
  tls.ca_cert = read_pem("--tls-ca", ca_path);
  tls.require_client_cert = require_client_cert;
  return tls;
}

void TokenFlag::declare(CLI::App& app, const std::string& what) {
  app.add_option(flag, path, what + " (its first line); default: the variable " + variable)
      ->type_name("FILE");
}

std::string TokenFlag::load() const {
  std::string token = environment(variable.c_str());
  std::string source = variable;
  if (!path.empty()) {
    token = read_file(flag, path);
    token = token.substr(0, token.find_first_of("\r\n"));
    source = flag;
    if (token.empty())
      throw UsageError(flag + ": the first line of '" + path + "' is empty; put the token there");
  }
  if (token.size() > kMaxTokenBytes) {
    throw UsageError(source + ": the token has " + std::to_string(token.size()) + " bytes; at most " +
                     std::to_string(kMaxTokenBytes) + " are allowed");
  }
  return token;
}

void declare_inject_flags(CLI::App& app, InjectedFaults& faults, const std::string& variable) {
  CLI::Option* option =
      add_parsed(app, "--inject-loss", faults.loss, parse_probability,
                 "Fault injection, for tests: share of received packets to drop, such as 0.01 or 1%")
          ->default_str("0");
  if (!variable.empty()) option->envname(variable);
  app.add_option("--inject-seed", faults.seed, "Seed of injected faults (no effect with xdp)")
      ->capture_default_str();
}

}  // namespace netsum::tool
