// A built-in method: all that netsum knows of it, in one object. methods/ has a file for each, methods/table.cc lists them, and
// docs/compression.md is written from them.
#ifndef NETSUM_SRC_COMPRESS_METHOD_H_
#define NETSUM_SRC_COMPRESS_METHOD_H_

#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

#include "netsum/compression.h"
#include "src/compress/option.h"

namespace netsum::compress {

// Elements that a method takes at a time, so that it computes with memory on the stack.
inline constexpr size_t kPiece = 1024;

using CompressorPtr = std::shared_ptr<const Compressor>;

struct Method {
  std::string_view name;
  // The memory if CompressionOptions::memory is empty; with `memory_is_fixed`, the only one.
  std::string_view memory = "none";
  bool memory_is_fixed = false;
  // Whether the memory "momentum" makes sense: what it compresses is then no gradient, and nothing remains.
  bool takes_momentum = false;
  // Null after the last.
  std::array<const Option*, 5> options{};

  // `options` are in range. `has_memory`: a residual is kept, so a method that has a biased and an unbiased form takes the biased
  // one, which is a contraction: |x - C(x)|^2 <= (1 - d) |x|^2 with d > 0, the condition under which error feedback converges
  // (Karimireddy et al., ICML 2019).
  CompressorPtr (*make)(const CompressionOptions& options, bool has_memory) = nullptr;
  // Writes one name and one value where several compute the same: ranks compare the result. Null: nothing to do.
  void (*canonical)(CompressionOptions& options) = nullptr;
  // Why options that are in range do not go together; empty if they do. Null: always.
  std::string_view (*conflict)(const CompressionOptions& options) = nullptr;

  // Options as text ("ratio=0.1,sampled=true") that benchmarks measure, the first also tests. Empty: the defaults.
  std::array<std::string_view, 3> examples{};

  // Cells of the tables of methods_page.h; docs/compression.md explains the symbols. No formula: that of another method.
  std::string_view sends, bytes, when;
  std::string_view formula, bound;
};

// In alphabetical order.
std::span<const Method* const> all_methods();
// Null: there is none of this name.
const Method* find_method(std::string_view name);

// For Method::make.
template <class T>
CompressorPtr make_compressor(const CompressionOptions& options, bool has_memory) {
  if constexpr (std::is_constructible_v<T, const CompressionOptions&, bool>) {
    return std::make_shared<T>(options, has_memory);
  } else if constexpr (std::is_constructible_v<T, const CompressionOptions&>) {
    return std::make_shared<T>(options);
  } else {
    return std::make_shared<T>();
  }
}

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_METHOD_H_
