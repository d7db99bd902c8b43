// What the files of the C ABI share: its objects, and the way from exceptions and Status to codes.
#ifndef NETSUM_API_C_API_SUPPORT_H_
#define NETSUM_API_C_API_SUPPORT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "netsum/communicator.h"
#include "netsum/compression.h"
#include "netsum/netsum.h"

struct netsum_comm {
  std::unique_ptr<netsum::Communicator> communicator;
  netsum::CompressionBuffers compression_buffers;
};
struct netsum_work {
  netsum::Work work;
  std::atomic<bool> has_callback = false;
};
struct netsum_watermarks {
  std::shared_ptr<netsum::Watermarks> watermarks;
};

namespace netsum::c_api {

inline thread_local Status last_error;

inline int finish(const Status& status) {
  last_error = status;
  return static_cast<int>(status.code());
}

// Runs `body` and converts exceptions (of memory and threads, during set-up only) to an error code.
template <typename Body>
int guarded(Body body) {
  try {
    return finish(body());
  } catch (const std::exception& error) {
    return finish(Status(ErrorCode::kInternal, error.what()));
  }
}

// The same for functions that return no code: they leave the last error alone unless they fail. False: `body` has failed.
template <typename Body>
bool succeeds(Body body) {
  const Status before = last_error;
  if (guarded(body) != 0) return false;
  last_error = before;
  return true;
}

inline Status invalid(const std::string& what, const std::string& why) {
  return Status(ErrorCode::kInvalidArgument, what + ": " + why);
}

// Reads the type and the operator of an operation, which have 8 bits in C++; 0 leaves the default. kUnsupported, for the work of
// the operation: they do not fit. The library refuses what fits and is unknown.
template <typename Options>
Status read_kind(unsigned type, unsigned op, const std::string& what, Options* out) {
  const auto unknown = [&](unsigned number, const char* of) {
    return Status(ErrorCode::kUnsupported, what + ": " + std::to_string(number) + " is none of " + of);
  };
  if (type > UINT8_MAX) return unknown(type, "netsum_dtype");
  if (op > UINT8_MAX) return unknown(op, "netsum_redop");
  if (type != 0) out->type = static_cast<DataType>(type);
  if (op != 0) out->op = static_cast<ReduceOp>(op);
  return Status();
}

// `size`: the caller's struct_size.
template <typename Struct>
Status check_size(size_t size, const std::string& what) {
  constexpr size_t kMost = 4096;  // a larger value is not a size, but uninitialised memory
  if (size > sizeof(size_t) && size <= kMost && size % alignof(Struct) == 0) return Status();
  return invalid(what, "struct_size is " + std::to_string(size) + ": set it to the size of the struct (" +
                           std::to_string(sizeof(Struct)) + " in this version of the library)");
}

// Copies a struct that begins with its size, in the caller's version of the header, to this version of it.
template <typename Struct>
Status read_struct(const Struct* given, const std::string& what, Struct* out) {
  if (given == nullptr) return invalid(what, "the options are NULL");
  const size_t size = given->struct_size;
  if (Status status = check_size<Struct>(size, what); !status.ok()) return status;
  std::memset(static_cast<void*>(out), 0, sizeof(Struct));
  std::memcpy(static_cast<void*>(out), given, std::min(size, sizeof(Struct)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return invalid(what, "struct_size is " + std::to_string(size) + ", and byte " + std::to_string(i) +
                             " is not zero: the program uses an option that this version of the library, " +
                             NETSUM_VERSION_STRING + " (" + std::to_string(sizeof(Struct)) +
                             " bytes), does not have");
  }
  return Status();
}

}  // namespace netsum::c_api

#endif  // NETSUM_API_C_API_SUPPORT_H_
