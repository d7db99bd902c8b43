// Errors as values. The library never throws. A failure is a Status whose message says what was wrong, where, and what
// to do about it.
#ifndef NETSUM_STATUS_H_
#define NETSUM_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "netsum/export.h"

namespace netsum {

// The numbers are part of the C ABI (netsum.h) and of the control protocol. Do not change or reuse them.
enum class ErrorCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,     // an argument or option is invalid; the message names it
  kUnsupported = 2,         // netsum does not implement this type, operator or combination
  kTimeout = 3,             // a deadline passed; Status::rank() is a missing rank, if known
  kPeerLost = 4,            // a rank died, left or stopped responding; Status::rank() is that rank
  kAggregatorLost = 5,      // the aggregator or its control connection was lost
  kUnreachable = 6,         // the address does not answer, or packets exceed the path MTU
  kMismatch = 7,            // ranks submitted different tensors; Status::rank() is one that differs
  kOverflow = 8,            // the exact integer sum does not fit the result type
  kPermissionDenied = 9,    // wrong token, untrusted certificate, or missing privilege
  kVersionMismatch = 10,    // the two ends use different protocol versions
  kResourceExhausted = 11,  // a limit was reached (slots, jobs, members)
  kAddressInUse = 12,       // another process listens on the port
  kAborted = 13,            // the communicator was aborted or closed
  kInternal = 14,           // a bug in netsum
  kWrongSum = 15,           // verified sums: an aggregator, or the way to it, has altered a result
};

// "ok", "timeout", ...: stable names, used in messages, JSON and the control protocol. NUL-terminated.
NETSUM_EXPORT std::string_view error_name(ErrorCode code);

inline constexpr int kNoRank = -1;

// Success, or an error code with a message.
class [[nodiscard]] NETSUM_EXPORT Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message, int rank = kNoRank)
      : code_(code), rank_(rank), message_(std::move(message)) {}

  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  // The rank that caused the error (missing, lost or different), or kNoRank.
  int rank() const { return rank_; }
  const std::string& message() const { return message_; }
  // Code and message, such as "timeout: all_reduce #12 ... waited 30 s for rank 3".
  std::string to_string() const;

 private:
  ErrorCode code_ = ErrorCode::kOk;
  int rank_ = kNoRank;
  std::string message_;
};

// A value, or the error that explains why there is none. Access to the value requires ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace netsum

#endif  // NETSUM_STATUS_H_
