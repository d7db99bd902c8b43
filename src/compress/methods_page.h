// The tables of docs/compression.md.
#ifndef NETSUM_SRC_COMPRESS_METHODS_PAGE_H_
#define NETSUM_SRC_COMPRESS_METHODS_PAGE_H_

#include <string>

namespace netsum::compress {

// Markdown: methods, options, formulas.
std::string methods_page();

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_METHODS_PAGE_H_
