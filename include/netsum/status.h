// Errors as values. The engine never throws; every failure is a Status that says what was wrong, where, and
// what to do about it.
#ifndef NETSUM_STATUS_H_
#define NETSUM_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "netsum/export.h"

namespace netsum {

// The numbers are part of the C ABI (netsum.h) and of the control protocol: never reuse one.
enum class ErrorCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,     // the caller's input cannot be served: the message names the argument
  kUnsupported = 2,         // this type or operation is not summed in the network
  kTimeout = 3,             // a deadline passed; Status::rank() names a rank that was waited for, if known
  kPeerLost = 4,            // a member of the job died or left; Status::rank() names it
  kAggregatorLost = 5,      // the aggregator (or its control connection) went away
  kUnreachable = 6,         // nothing answers at the address, or packets do not fit the path
  kMismatch = 7,            // ranks submitted different tensors; Status::rank() names one that differs
  kOverflow = 8,            // the exact integer sum does not fit the result type
  kPermissionDenied = 9,    // wrong job token, or a certificate that is not trusted
  kVersionMismatch = 10,    // the two ends speak different protocol versions
  kResourceExhausted = 11,  // a stated limit was reached (slots, jobs, members)
  kAddressInUse = 12,       // another process listens on that port
  kAborted = 13,            // the communicator was aborted or closed
  kInternal = 14,           // a bug in netsum
};

// "ok", "timeout", ...: stable names, used in messages, JSON and the control protocol.
NETSUM_EXPORT std::string_view error_name(ErrorCode code);

inline constexpr int kNoRank = -1;

class [[nodiscard]] NETSUM_EXPORT Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message, int rank = kNoRank)
      : code_(code), rank_(rank), message_(std::move(message)) {}

  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  // The rank that the error is about (missing, lost or different), or kNoRank.
  int rank() const { return rank_; }
  const std::string& message() const { return message_; }
  // "timeout: all_reduce #12 ... waited 30 s for rank 3"
  std::string to_string() const;

 private:
  ErrorCode code_ = ErrorCode::kOk;
  int rank_ = kNoRank;
  std::string message_;
};

// A value or the Status that says why there is none.
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
