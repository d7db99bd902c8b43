// Starts threads without exceptions.
#ifndef NETSUM_SRC_BASE_THREAD_H_
#define NETSUM_SRC_BASE_THREAD_H_

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "netsum/status.h"

namespace netsum {

// Runs `body` on a thread, which becomes `*thread`. kResourceExhausted: there is none to be had, and nothing has changed.
// `purpose`, for the message: "to send and receive".
template <typename Body>
Status start_thread(const char* purpose, Body body, std::thread* thread) {
  try {
    *thread = std::thread(std::move(body));
    return {};
  } catch (const std::system_error& error) {
    return {
        ErrorCode::kResourceExhausted,
        "cannot start a thread " + std::string(purpose) + " (" + error.code().message() +
            "): raise the limit on processes and threads of this user (ulimit -u) or container (pids.max)"};
  }
}

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_THREAD_H_
