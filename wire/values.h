// The formats in which packets have values of elements instead of lanes: which type and lane width each stands for.
#ifndef NETSUM_WIRE_VALUES_H_
#define NETSUM_WIRE_VALUES_H_

#include <cstdint>

#include "netsum/types.h"
#include "wire/ids.h"

namespace netsum::wire {

struct ValueType {
  DataType type;
  int lane_bits;  // narrow lanes, in which the ranks would send the values
};

inline constexpr struct {
  uint8_t value;  // the low nibble of a format
  ValueType is;
} kValueTypes[] = {
    {NETSUM_VALUE_F32, {DataType::kFloat32, 32}},      {NETSUM_VALUE_BF16_16, {DataType::kBFloat16, 16}},
    {NETSUM_VALUE_BF16_32, {DataType::kBFloat16, 32}}, {NETSUM_VALUE_F16_16, {DataType::kFloat16, 16}},
    {NETSUM_VALUE_F16_32, {DataType::kFloat16, 32}},   {NETSUM_VALUE_I32, {DataType::kInt32, 32}},
    {NETSUM_VALUE_I64, {DataType::kInt64, 64}},
};

// The format in which an aggregator sums values of this type; NETSUM_FORMAT_NONE if there is none.
constexpr uint8_t format_of_values(ValueType value, bool average) {
  for (const auto& row : kValueTypes)
    if (row.is.type == value.type && row.is.lane_bits == value.lane_bits)
      return NETSUM_FORMAT(average ? NETSUM_OP_AVG_VALUES : NETSUM_OP_SUM_VALUES, row.value);
  return NETSUM_FORMAT_NONE;
}

// The reverse, for a format that netsum_is_values().
constexpr ValueType value_type_of(uint8_t format) {
  for (const auto& row : kValueTypes)
    if (row.value == (format & 15)) return row.is;
  return {};
}
constexpr bool is_average_of_values(uint8_t format) {
  return format >> 4 == NETSUM_OP_AVG_VALUES;
}

}  // namespace netsum::wire

#endif  // NETSUM_WIRE_VALUES_H_
