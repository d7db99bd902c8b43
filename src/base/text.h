// Text from outside: checked, escaped for logs, terminals and messages, compared with secrets.
#ifndef NETSUM_SRC_BASE_TEXT_H_
#define NETSUM_SRC_BASE_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "netsum/status.h"

namespace netsum {

// True if `text` holds only printable ASCII characters and spaces.
bool is_printable(std::string_view text);

// Whether `text` is printable and not longer than `most_bytes`. The message begins with `what`, such as "the job name".
// kInvalidArgument.
Status check_text(const std::string& what, std::string_view text, size_t most_bytes);

// `text` with every other byte escaped (\n, \t, \r, \x1b), so that it cannot start a new line or control a
// terminal. Backslashes are not changed, so escaped text stays the same. A result longer than `most_bytes` (at least 3) is
// truncated and ends with "...".
std::string printable(std::string_view text, size_t most_bytes = std::string::npos);

// For secrets: takes the same time wherever the first difference is.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_TEXT_H_
