// Options of methods and memories: fields of CompressionOptions with their ranges.
#ifndef NETSUM_SRC_COMPRESS_OPTION_H_
#define NETSUM_SRC_COMPRESS_OPTION_H_

#include <string>
#include <string_view>
#include <utility>

#include "netsum/compression.h"

namespace netsum::compress {

struct Option {
  std::string_view name;   // of the field
  std::string_view range;  // what is allowed, after "must be"; empty with `allows` null
  std::string_view help;
  bool (*allows)(const CompressionOptions& options) = nullptr;  // null: every value of the type
};

// The value of a field, as text; numbers with as many digits as tell them apart.
std::string value_of(const CompressionField& field, const CompressionOptions& options);
std::string value_of(std::string_view name, const CompressionOptions& options);

inline Status invalid(std::string why) {
  return {ErrorCode::kInvalidArgument, std::move(why)};
}

// kInvalidArgument with the name, the value and the range.
Status check_range(const Option& option, const CompressionOptions& options);

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_OPTION_H_
