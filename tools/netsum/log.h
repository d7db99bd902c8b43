// The command's own log: one line per event on standard error, as text or as JSON. Lines are written by a thread of their
// own, which starts with the first one, so that nobody waits for a reader that does not read.
#ifndef NETSUM_TOOLS_NETSUM_LOG_H_
#define NETSUM_TOOLS_NETSUM_LOG_H_

#include <spdlog/logger.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace netsum::tool {

using Json = nlohmann::ordered_json;

class LineWriter;

// Thread rule: any thread may call any method.
class Log {
 public:
  // Lines that wait to be written. Further ones are left out, and counted in a line of the log.
  static constexpr size_t kMostLines = 4096;

  // `level`: debug, info, warn or error; lines below it are not written.
  Log(const std::string& level, bool json);
  ~Log();  // waits until all lines are written, at most for a second

  // Waits as the destructor does.
  void flush();

  // `fields` is an object: "message key=value ..." as text, members beside "message" as JSON. Whatever they hold
  // comes out as one line of printable ASCII characters; as text, a value with spaces is quoted as in JSON.
  void debug(const std::string& message, const Json& fields = Json::object());
  void info(const std::string& message, const Json& fields = Json::object());
  void warn(const std::string& message, const Json& fields = Json::object());
  void error(const std::string& message, const Json& fields = Json::object());

 private:
  void write(spdlog::level::level_enum level, const std::string& message, const Json& fields);

  std::shared_ptr<LineWriter> writer_;
  std::shared_ptr<spdlog::logger> logger_;
  bool json_;
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_LOG_H_
