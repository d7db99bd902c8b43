#include "src/encoding/encoding.h"

#include <map>
#include <memory>
#include <tuple>

#include "src/base/assert.h"
#include "src/encoding/bytes.h"
#include "src/encoding/fixed_point.h"
#include "src/encoding/floats.h"
#include "src/encoding/without_tensors.h"
#include "src/encoding/word_lanes.h"
#include "src/kernels/kernels.h"

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

namespace {

// 8-bit lanes are chosen for their bytes. So are 16-bit lanes, beside which float32 would take twice as many.
bool travels_as_floats(const EncodingOptions& options, DataType type, ReduceOp op, int members) {
  if (options.fixed_floats || !is_floating(type) || travels_as_words(op)) return false;
  const int lane_bits = kernels::narrow_lane_bits(type, members, options.lane_bits);
  if (options.floats == FloatSums::kInFloat32) return lane_bits == 32;
  return options.floats == FloatSums::kAsTheyAre && lane_bits != 8;
}

}  // namespace

std::unique_ptr<const Encoding> make_encoding(const EncodingOptions& options, DataType type, ReduceOp op,
                                              int members) {
  if (options.without_tensors) {
    EncodingOptions others = options;
    others.without_tensors = false;
    return std::make_unique<WithoutTensors>(make_encoding(others, type, op, members), type);
  }
  if (type == DataType::kByte) return std::make_unique<Bytes>();
  std::unique_ptr<const Encoding> encoding;
  switch (options.kind) {
    case EncodingKind::kFixedPoint:
      if (travels_as_words(op)) {
        encoding = std::make_unique<WordLanes>(type, op);
      } else if (travels_as_floats(options, type, op, members)) {
        encoding = std::make_unique<Floats>(options.floats, type, op, members);
      } else {
        encoding = std::make_unique<FixedPoint>(type, op, members, options.lane_bits, options.one_tensor,
                                                options.fixed_floats);
      }
      break;
  }
  NETSUM_ASSERT(encoding != nullptr && members <= encoding->max_members());
  return encoding;
}

std::shared_ptr<const Encoding> shared_encoding(const EncodingOptions& options, DataType type, ReduceOp op,
                                                int members) {
  // An encoding is immutable, and a job uses few.
  static thread_local std::map<std::tuple<EncodingOptions, DataType, ReduceOp, int>,
                               std::shared_ptr<const Encoding>>
      known;
  std::shared_ptr<const Encoding>& encoding = known[{options, type, op, members}];
  if (encoding == nullptr) encoding = make_encoding(options, type, op, members);
  return encoding;
}

}  // namespace netsum
