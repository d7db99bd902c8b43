// Element types and reduction operations.
#ifndef NETSUM_TYPES_H_
#define NETSUM_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "netsum/export.h"

namespace netsum {

// The numbers are part of the C ABI and of the operation signature on the wire. Do not change or reuse them.
enum class DataType : uint8_t {
  kFloat32 = 1,
  kBFloat16 = 2,
  kFloat16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kByte = 6,  // what broadcast, all-gather, gather and scatter move; no reduction takes it
};

enum class ReduceOp : uint8_t {
  kSum = 1,
  kAvg = 2,  // the sum divided by the world size; floating-point types only
  // Of floating-point numbers, NaN if one of them is NaN; -0 is below +0.
  kMin = 3,
  kMax = 4,
  kProduct = 5,  // reserved: kUnsupported
  // Integer types only.
  kBitAnd = 6,
  kBitOr = 7,
  kBitXor = 8,
};

// Bytes per element.
constexpr size_t size_of(DataType type) {
  switch (type) {
    case DataType::kFloat32:
    case DataType::kInt32:
      return 4;
    case DataType::kBFloat16:
    case DataType::kFloat16:
      return 2;
    case DataType::kInt64:
      return 8;
    case DataType::kByte:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kBFloat16 || type == DataType::kFloat16;
}

NETSUM_EXPORT std::string_view data_type_name(DataType type);  // "float32", "bfloat16", ...
NETSUM_EXPORT std::string_view reduce_op_name(ReduceOp op);    // "sum", "avg", ...

}  // namespace netsum

#endif  // NETSUM_TYPES_H_
