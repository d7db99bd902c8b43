// The command's own log: one line per event on standard error, as text or as JSON.
#ifndef NETSUM_TOOLS_NETSUM_LOG_H_
#define NETSUM_TOOLS_NETSUM_LOG_H_

#include <spdlog/logger.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace netsum::tool {

using Json = nlohmann::ordered_json;

// Thread rule: any thread may call any method.
class Log {
 public:
  // `level`: debug, info, warn or error; lines below it are not written.
  Log(const std::string& level, bool json);

  // `fields` is an object: "message key=value ..." as text, members beside "message" as JSON. Whatever they hold
  // comes out as one line of printable ASCII characters; as text, a value with spaces is quoted as in JSON.
  void debug(const std::string& message, const Json& fields = Json::object());
  void info(const std::string& message, const Json& fields = Json::object());
  void warn(const std::string& message, const Json& fields = Json::object());
  void error(const std::string& message, const Json& fields = Json::object());

 private:
  void write(spdlog::level::level_enum level, const std::string& message, const Json& fields);

  std::shared_ptr<spdlog::logger> logger_;
  bool json_;
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_LOG_H_
