// A compression as people write it: "topk,ratio=0.001,sampled=true".
#ifndef NETSUM_SRC_COMPRESS_OPTION_TEXT_H_
#define NETSUM_SRC_COMPRESS_OPTION_TEXT_H_

#include <string_view>

#include "netsum/compression.h"
#include "netsum/status.h"

namespace netsum::compress {

// A method, and options of CompressionOptions by name. kInvalidArgument says what is not known, or what is wrong with it.
Result<CompressionOptions> parse_compression(std::string_view text);

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_OPTION_TEXT_H_
