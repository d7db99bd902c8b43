#include "tools/netsum/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <string_view>

#include "src/base/text.h"

namespace netsum::tool {
namespace {

// Control characters, those above ASCII among them, are escaped.
std::string to_ascii(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

// Whether the value is unambiguous without quotes.
bool is_plain(std::string_view text) {
  return !text.empty() && is_printable(text) && text.find_first_of(" =\"\\") == text.npos;
}

}  // namespace

Log::Log(const std::string& level, bool json)
    : logger_(std::make_shared<spdlog::logger>("netsum", std::make_shared<spdlog::sinks::stderr_sink_mt>())),
      json_(json) {
  logger_->set_level(spdlog::level::from_str(level));
  logger_->flush_on(spdlog::level::debug);
  // Every line has its date and time zone, so that logs of several machines can be compared.
  logger_->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                            : "%Y-%m-%dT%H:%M:%S.%e%z %-5l %v");
}

void Log::debug(const std::string& message, const Json& fields) {
  write(spdlog::level::debug, message, fields);
}
void Log::info(const std::string& message, const Json& fields) {
  write(spdlog::level::info, message, fields);
}
void Log::warn(const std::string& message, const Json& fields) {
  write(spdlog::level::warn, message, fields);
}
void Log::error(const std::string& message, const Json& fields) {
  write(spdlog::level::err, message, fields);
}

void Log::write(spdlog::level::level_enum level, const std::string& message, const Json& fields) {
  if (!logger_->should_log(level)) return;
  std::string line;
  if (json_) {
    Json object = {{"message", message}};
    object.update(fields);
    // The pattern supplies the outer braces.
    line = to_ascii(object);
    line = line.substr(1, line.size() - 2);
  } else {
    line = printable(message);
    for (const auto& [key, value] : fields.items()) {
      const std::string* text = value.get_ptr<const std::string*>();
      line += " " + key + "=" + (text != nullptr && is_plain(*text) ? *text : to_ascii(value));
    }
  }
  logger_->log(level, "{}", line);
}

}  // namespace netsum::tool
