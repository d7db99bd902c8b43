// Messages for calls that did not reach the aggregator, which say what to do.
#ifndef NETSUM_SRC_CONTROL_CONNECTION_ERRORS_H_
#define NETSUM_SRC_CONTROL_CONNECTION_ERRORS_H_

#include <grpcpp/support/status.h>

#include <chrono>
#include <string>

#include "netsum/options.h"
#include "netsum/status.h"

namespace netsum {

enum class Retry {
  kNo,       // a retry cannot help
  kBriefly,  // a retry rarely helps: only an aggregator that is starting or stopping fails like this, briefly
  kYes,
};

inline constexpr std::chrono::milliseconds kRetryPause{100};
inline constexpr int kBriefRetries = 10;  // for Retry::kBriefly: about a second

struct ConnectionError {
  Status status;
  Retry retry = Retry::kYes;
};

// What to try if nothing answers at an address, which is that of an aggregator or of a job's rank 0.
inline constexpr const char* kStartWhatAnswers =
    ": is `netsum aggregator` running there (NETSUM_AGGREGATOR), or rank 0, if no aggregator is used?";

// `failure` is the status of a call to `address` that the aggregator has not answered.
ConnectionError explain(const std::string& address, const TlsOptions& tls, const grpc::Status& failure);

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_CONNECTION_ERRORS_H_
