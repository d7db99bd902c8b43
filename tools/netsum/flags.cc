#include "tools/netsum/flags.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "src/net/address.h"

namespace netsum::tool {
namespace {

constexpr size_t kMaxTokenBytes = 256;

// Splits "64Mi" into 64 and "Mi".
bool split_number(std::string_view text, double* number, std::string_view* unit) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || *number < 0) return false;
  *unit = text.substr(static_cast<size_t>(end - text.data()));
  return true;
}

Status bad_bytes(std::string_view text) {
  return {ErrorCode::kInvalidArgument,
          "'" + std::string(text) +
              "' is not a size; expected a number with K, M, G (powers of 1000) or "
              "Ki, Mi, Gi (powers of 1024), e.g. 64Mi"};
}

Status bad_duration(std::string_view text) {
  return {ErrorCode::kInvalidArgument,
          "'" + std::string(text) + "' is not a duration; expected a number with ms, s or m, e.g. 30s"};
}

CLI::Validator make_validator(const char* type, std::function<Status(const std::string&)> check) {
  return CLI::Validator(
      [check = std::move(check)](std::string& text) {
        const Status status = check(text);
        return status.ok() ? std::string() : status.message();
      },
      type);
}

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

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  std::string_view unit;
  if (!split_number(text, &number, &unit)) return bad_bytes(text);
  if (!unit.empty() && unit.back() == 'B') unit.remove_suffix(1);
  double factor = 1;
  if (!unit.empty()) {
    const bool binary = unit.size() == 2 && unit[1] == 'i';
    if (unit.size() > 1 && !binary) return bad_bytes(text);
    const size_t power = std::string_view("KMGT").find(unit[0] == 'k' ? 'K' : unit[0]);
    if (power == std::string_view::npos) return bad_bytes(text);
    for (size_t i = 0; i <= power; ++i) factor *= binary ? 1024 : 1000;
  }
  const double bytes = number * factor;
  // 2^53: beyond it a double no longer counts single bytes.
  if (bytes > 0x1.0p53 || bytes != static_cast<double>(static_cast<uint64_t>(bytes))) return bad_bytes(text);
  return static_cast<uint64_t>(bytes);
}

Result<double> parse_probability(std::string_view text) {
  const bool percent = text.ends_with('%');
  const std::string_view number = percent ? text.substr(0, text.size() - 1) : text;
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (percent) value /= 100;
  if (error == std::errc() && end == number.data() + number.size() && value >= 0 && value <= 1) return value;
  return Status(ErrorCode::kInvalidArgument,
                "'" + std::string(text) + "' is no probability: use 0 to 1, e.g. 0.01, or 0% to 100%");
}

std::string format_percent(double probability) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g %%", probability * 100);
  return text;
}

Result<int64_t> parse_duration_ms(std::string_view text) {
  double number = 0;
  std::string_view unit;
  if (!split_number(text, &number, &unit)) return bad_duration(text);
  double factor = 1000;
  if (unit == "ms") {
    factor = 1;
  } else if (unit == "m") {
    factor = 60'000;
  } else if (!unit.empty() && unit != "s") {
    return bad_duration(text);
  }
  const double ms = number * factor;
  if (!(ms >= 1 && ms <= 1e9)) return bad_duration(text);
  return static_cast<int64_t>(ms);
}

std::vector<std::string> split_list(const std::string& comma_separated) {
  std::vector<std::string> parts;
  std::istringstream in(comma_separated);
  for (std::string part; std::getline(in, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

CLI::Validator host_port() {
  return make_validator("host:port", [](const std::string& text) { return split_host_port(text).status(); });
}

CLI::Validator host_port_list() {
  return make_validator("host:port,...", [](const std::string& text) {
    for (const std::string& part : split_list(text)) {
      if (const Status status = split_host_port(part).status(); !status.ok()) return status;
    }
    return Status();
  });
}

CLI::Validator byte_count() {
  return make_validator("size", [](const std::string& text) { return parse_bytes(text).status(); });
}

CLI::Validator duration() {
  return make_validator("duration", [](const std::string& text) { return parse_duration_ms(text).status(); });
}

CLI::Validator probability() {
  return make_validator("P", [](const std::string& text) { return parse_probability(text).status(); });
}

CLI::Validator power_of_two() {
  return make_validator("2^n", [](const std::string& text) {
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc() && end == text.data() + text.size();
    if (number && value > 0 && (value & (value - 1)) == 0) return Status();
    return Status(ErrorCode::kInvalidArgument,
                  "'" + text + "' is not a power of two; expected 1, 2, 4, 8, ...");
  });
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

void InjectFlags::declare(CLI::App& app, const std::string& variable) {
  CLI::Option* option =
      app.add_option("--inject-loss", loss,
                     "Fault injection, for tests: share of received packets to drop, such as 0.01 or 1%")
          ->check(probability())
          ->capture_default_str();
  if (!variable.empty()) option->envname(variable);
  app.add_option("--inject-seed", seed, "Seed of --inject-loss (no effect with xdp)")->capture_default_str();
}

InjectedFaults InjectFlags::load() const {
  return {.loss = parse_probability(loss).value(), .seed = seed};
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace netsum::tool
