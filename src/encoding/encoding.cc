#include "src/encoding/encoding.h"

#include "src/base/assert.h"
#include "src/encoding/bytes.h"
#include "src/encoding/fixed_point.h"
#include "src/encoding/word_lanes.h"

namespace netsum {

bool travels_as_words(ReduceOp op) {
  return op == ReduceOp::kMin || op == ReduceOp::kMax || op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr ||
         op == ReduceOp::kBitXor;
}

bool is_reducible(DataType type, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return true;
    case ReduceOp::kAvg:
      return is_floating(type);
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return type == DataType::kInt32 || type == DataType::kInt64;
    default:
      return false;
  }
}

std::unique_ptr<const Encoding> make_encoding(const EncodingOptions& options, DataType type, ReduceOp op,
                                              int members) {
  if (type == DataType::kByte) return std::make_unique<Bytes>();
  std::unique_ptr<const Encoding> encoding;
  switch (options.kind) {
    case EncodingKind::kFixedPoint:
      if (travels_as_words(op)) {
        encoding = std::make_unique<WordLanes>(type, op);
      } else {
        encoding = std::make_unique<FixedPoint>(type, op, members, options.lane_bits, options.one_tensor,
                                                options.fixed_floats);
      }
      break;
  }
  NETSUM_ASSERT(encoding != nullptr && members <= encoding->max_members());
  return encoding;
}

}  // namespace netsum
