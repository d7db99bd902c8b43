#include "src/encoding/encoding.h"

#include "src/base/assert.h"
#include "src/encoding/fixed_point.h"

namespace netsum {

std::unique_ptr<const Encoding> make_encoding(const EncodingOptions& options, DataType type, ReduceOp op,
                                              int members) {
  std::unique_ptr<const Encoding> encoding;
  switch (options.kind) {
    case EncodingKind::kFixedPoint:
      encoding = std::make_unique<FixedPoint>(type, op, members, options.lane_bits);
      break;
  }
  NETSUM_ASSERT(encoding != nullptr && members <= encoding->max_members());
  return encoding;
}

}  // namespace netsum
