// A compression as people write it: "topk,ratio=0.001,sampled=true".
#ifndef NETSUM_TOOLS_NETSUM_COMPRESSION_TEXT_H_
#define NETSUM_TOOLS_NETSUM_COMPRESSION_TEXT_H_

#include <string_view>

#include "netsum/compression.h"
#include "netsum/status.h"

namespace netsum::tool {

// A method, and options of CompressionOptions by name. kInvalidArgument says what is not known, or what is wrong with it.
Result<CompressionOptions> parse_compression(std::string_view text);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_COMPRESSION_TEXT_H_
