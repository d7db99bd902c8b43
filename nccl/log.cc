#include "nccl/log.h"

#include <atomic>

namespace netsum::nccl {
namespace {

std::atomic<Logger> logger = nullptr;

void log(int level, const std::string& text) {
  const Logger function = logger;
  if (function != nullptr) function(level, kLogInit | kLogNet, "netsum", 0, "netsum: %s", text.c_str());
}

}  // namespace

void set_logger(Logger function) {
  logger = function;
}

void warn(const std::string& text) {
  log(kLogWarning, text);
}

void inform(const std::string& text) {
  log(kLogInfo, text);
}

}  // namespace netsum::nccl
