// The formats in which packets have values of elements instead of lanes.
#ifndef NETSUM_WIRE_VALUES_H_
#define NETSUM_WIRE_VALUES_H_

#include <cstdint>

#include "netsum/types.h"
#include "wire/ids.h"

namespace netsum::wire {

// The format in which an aggregator sums values of this type; NETSUM_FORMAT_NONE if there is none.
constexpr uint8_t format_of_values(DataType type, bool average) {
  const int op = average ? NETSUM_OP_AVG_FLOATS : NETSUM_OP_SUM_FLOATS;
  switch (type) {
    case DataType::kFloat32:
      return static_cast<uint8_t>(NETSUM_FORMAT(op, NETSUM_FLOAT_F32));
    case DataType::kBFloat16:
      return static_cast<uint8_t>(NETSUM_FORMAT(op, NETSUM_FLOAT_BF16));
    case DataType::kFloat16:
      return static_cast<uint8_t>(NETSUM_FORMAT(op, NETSUM_FLOAT_F16));
    case DataType::kInt32:
      return NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I32);
    case DataType::kInt64:
      return NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I64);
    case DataType::kByte:
      break;
  }
  return NETSUM_FORMAT_NONE;
}

// The reverse, for a format that netsum_is_values().
constexpr DataType value_type_of(uint8_t format) {
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16, DataType::kInt32})
    if ((format_of_values(type, true) == format) || format_of_values(type, false) == format) return type;
  return DataType::kInt64;
}
constexpr bool is_average_of_values(uint8_t format) {
  return format >> 4 == NETSUM_OP_AVG_FLOATS;
}

}  // namespace netsum::wire

#endif  // NETSUM_WIRE_VALUES_H_
