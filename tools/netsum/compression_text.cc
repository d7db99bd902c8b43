#include "tools/netsum/compression_text.h"

#include <charconv>
#include <functional>
#include <map>
#include <string>
#include <type_traits>

namespace netsum::tool {
namespace {

// Whether all of `text` is a value.
template <typename T>
bool read(std::string_view text, T* value) {
  if constexpr (std::is_same_v<T, bool>) {
    *value = text == "true";
    return text == "true" || text == "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    *value = text;
    return true;
  } else {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return error == std::errc() && end == text.data() + text.size();
  }
}

using Reader = std::function<bool(std::string_view, CompressionOptions*)>;

template <typename T>
Reader into(T CompressionOptions::*field) {
  return
      [field](std::string_view text, CompressionOptions* options) { return read(text, &(options->*field)); };
}

const std::map<std::string_view, Reader>& readers() {
  static const std::map<std::string_view, Reader> all = {
      {"block", into(&CompressionOptions::block)},
      {"buckets", into(&CompressionOptions::buckets)},
      {"clip_norm", into(&CompressionOptions::clip_norm)},
      {"count_senders", into(&CompressionOptions::count_senders)},
      {"decay", into(&CompressionOptions::decay)},
      {"error_bound", into(&CompressionOptions::error_bound)},
      {"fit", into(&CompressionOptions::fit)},
      {"k", into(&CompressionOptions::k)},
      {"levels", into(&CompressionOptions::levels)},
      {"memory", into(&CompressionOptions::memory)},
      {"momentum", into(&CompressionOptions::momentum)},
      {"path", into(&CompressionOptions::path)},
      {"rank", into(&CompressionOptions::rank)},
      {"ratio", into(&CompressionOptions::ratio)},
      {"rotated", into(&CompressionOptions::rotated)},
      {"sampled", into(&CompressionOptions::sampled)},
      {"seed", into(&CompressionOptions::seed)},
      {"threshold", into(&CompressionOptions::threshold)},
      {"warmup_steps", into(&CompressionOptions::warmup_steps)},
  };
  return all;
}

Status invalid(const std::string& message) {
  return {ErrorCode::kInvalidArgument, message};
}

}  // namespace

Result<CompressionOptions> parse_compression(std::string_view text) {
  CompressionOptions options;
  size_t end = text.find(',');
  options.method = text.substr(0, end);
  while (end != std::string_view::npos) {
    text.remove_prefix(end + 1);
    end = text.find(',');
    const std::string_view part = text.substr(0, end);
    const size_t equals = part.find('=');
    const std::string name(part.substr(0, equals));
    const auto found = readers().find(name);
    if (found == readers().end()) {
      std::string known;
      for (const auto& [other, reader] : readers()) known += (known.empty() ? "" : ", ") + std::string(other);
      return invalid("'" + name + "' is no option of a compression; there are " + known);
    }
    if (equals == std::string_view::npos || !found->second(part.substr(equals + 1), &options))
      return invalid("'" + std::string(part) + "' is not " + name + "=VALUE, with a value of its type");
  }
  if (const auto made = Compression::make(options); !made.ok()) return made.status();
  return options;
}

}  // namespace netsum::tool
