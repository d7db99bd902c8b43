// Text in pages.
#ifndef NETSUM_TOOLS_NETSUM_HTML_H_
#define NETSUM_TOOLS_NETSUM_HTML_H_

#include <string>
#include <string_view>

namespace netsum::tool {

inline std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_HTML_H_
