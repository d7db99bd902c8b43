// Lines of Python's logger "netsum".
#ifndef NETSUM_TORCH_SRC_LOG_H_
#define NETSUM_TORCH_SRC_LOG_H_

#include <string>

namespace netsum::torch_backend {

enum class LogLevel { kInfo, kWarning };

// Takes Python's lock: the caller must hold no lock that a thread may wait for while it has Python's.
void log(LogLevel level, const std::string& text);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_LOG_H_
