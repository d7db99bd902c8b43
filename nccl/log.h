// NCCL's log, which prints warnings always and information with NCCL_DEBUG=INFO.
#ifndef NETSUM_NCCL_LOG_H_
#define NETSUM_NCCL_LOG_H_

#include <string>

#include "nccl/abi.h"

namespace netsum::nccl {

// NCCL passes the same function to every init().
void set_logger(Logger logger);
void warn(const std::string& text);
void inform(const std::string& text);

}  // namespace netsum::nccl

#endif  // NETSUM_NCCL_LOG_H_
