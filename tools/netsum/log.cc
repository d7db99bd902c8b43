#include "tools/netsum/log.h"

#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "src/base/text.h"

namespace netsum::tool {
namespace {

constexpr std::chrono::milliseconds kPollTime{100};
constexpr std::chrono::milliseconds kFlushPatience{1000};

}  // namespace

// Writes lines to standard error.
class LineWriter {
 public:
  ~LineWriter() {
    flush();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();  // it looks for stop_ while nobody reads
  }

  void push(std::string line) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= Log::kMostLines) {
      ++left_out_;
      return;
    }
    lines_.push_back(std::move(line));
    if (!thread_.joinable()) start();
    changed_.notify_all();
  }

  // How many lines have been left out since the last call; 0 while there is no room for a line that tells it.
  uint64_t take_left_out() {
    const std::lock_guard lock(mutex_);
    return lines_.size() < Log::kMostLines ? std::exchange(left_out_, 0) : 0;
  }

  void flush() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kFlushPatience, [&] { return lines_.empty(); });
  }

 private:
  // With the lock held. Without a thread, the line is written at once.
  void start() {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
      static_cast<void>(::write(STDERR_FILENO, lines_.front().data(), lines_.front().size()));
      lines_.pop_front();
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !lines_.empty(); });
      if (stop_) return;
      const std::string line = lines_.front();
      lock.unlock();
      write(line);
      lock.lock();
      lines_.pop_front();
      changed_.notify_all();
    }
  }

  bool stopped() {
    const std::lock_guard lock(mutex_);
    return stop_;
  }

  // No more at once than a pipe has room for when it can be written to.
  void write(std::string_view text) {
    while (!text.empty()) {
      pollfd ready{STDERR_FILENO, POLLOUT, 0};
      const int count = ::poll(&ready, 1, static_cast<int>(kPollTime.count()));
      if (count == 0 && stopped()) return;
      if (count <= 0) continue;
      const ssize_t written = ::write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
      if (written < 0 && errno != EINTR && errno != EAGAIN) return;  // nobody can read it any more
      if (written > 0) text.remove_prefix(static_cast<size_t>(written));
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;  // the first one is being written
  uint64_t left_out_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

namespace {

class WriterSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit WriterSink(std::shared_ptr<LineWriter> writer) : writer_(std::move(writer)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    writer_->push({line.data(), line.size()});
  }
  void flush_() override {}

  const std::shared_ptr<LineWriter> writer_;
};

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
    : writer_(std::make_shared<LineWriter>()),
      logger_(std::make_shared<spdlog::logger>("netsum", std::make_shared<WriterSink>(writer_))),
      json_(json) {
  logger_->set_level(spdlog::level::from_str(level));
  // Every line has its date and time zone, so that logs of several machines can be compared.
  logger_->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                            : "%Y-%m-%dT%H:%M:%S.%e%z %-5l %v");
}

Log::~Log() = default;

void Log::flush() {
  writer_->flush();
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
  if (const uint64_t count = writer_->take_left_out(); count > 0)
    warn(std::to_string(count) + " lines are not in this log, which was not read fast enough");
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
