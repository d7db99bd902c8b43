// The tables of docs/compression.md, and the formulas.
#ifndef NETSUM_SRC_COMPRESS_METHODS_PAGE_H_
#define NETSUM_SRC_COMPRESS_METHODS_PAGE_H_

#include <string>

namespace netsum::compress {

// Markdown: methods and options.
std::string methods_page();
// Markdown: what each method sends of a tensor, and how far that is from the tensor at most.
std::string formulas_page();

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_METHODS_PAGE_H_
