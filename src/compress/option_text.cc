#include "src/compress/option_text.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <type_traits>

#include "src/compress/option.h"

namespace netsum::compress {
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
    const auto fields = compression_fields().subspan(1);  // without the method
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const auto& one) { return one.name == name; });
    if (field == fields.end()) {
      std::string known;
      for (const CompressionField& other : fields)
        known += (known.empty() ? "" : ", ") + std::string(other.name);
      return invalid("'" + name + "' is no option of a compression; there are " + known);
    }
    const bool is_value =
        equals != std::string_view::npos &&
        std::visit([&](auto member) { return read(part.substr(equals + 1), &(options.*member)); },
                   field->member);
    if (!is_value)
      return invalid("'" + std::string(part) + "' is not " + name + "=VALUE, with a value of its type");
  }
  if (const auto made = Compression::make(options); !made.ok()) return made.status();
  return options;
}

}  // namespace netsum::compress
