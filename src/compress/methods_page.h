// The table of docs/compression.md, and what is too long for it.
#ifndef NETSUM_SRC_COMPRESS_METHODS_PAGE_H_
#define NETSUM_SRC_COMPRESS_METHODS_PAGE_H_

#include <string>

namespace netsum::compress {

// Markdown: the methods.
std::string methods_page();
// Markdown: the options; what each method sends of a tensor, and how far that is from the tensor at most.
std::string details_page();

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_METHODS_PAGE_H_
