#include "src/compress/methods_page.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <vector>

#include "src/base/assert.h"
#include "src/compress/memory.h"
#include "src/compress/method.h"
#include "src/compress/option_text.h"

namespace netsum::compress {
namespace {

std::string code(std::string_view name) {
  std::string text = "`";
  text += name;
  text += '`';
  return text;
}

// A cell ends at a bar that is not escaped.
std::string row(std::initializer_list<std::string> cells) {
  std::string line = "|";
  for (const std::string& cell : cells) {
    line += ' ';
    for (const char c : cell) line += c == '|' ? "\\|" : std::string(1, c);
    line += cell.empty() ? "|" : " |";
  }
  return line + '\n';
}

void add(std::string& list, std::string_view word) {
  if (!list.empty()) list += ", ";
  list += word;
}

CompressionOptions example_of(const Method& method) {
  std::string text(method.name);
  if (!method.examples[0].empty()) {
    text += ',';
    text += method.examples[0];
  }
  const auto options = parse_compression(text);
  NETSUM_ASSERT(options.ok());
  return *options;
}

// Those that Compression::make() accepts, the method's own first.
std::string memories_of(const Method& method) {
  std::string list(method.memory);
  CompressionOptions options = example_of(method);
  for (const MemoryForm& memory : memories()) {
    options.memory = memory.name;
    if (memory.name != method.memory && Compression::make(options).ok()) add(list, memory.name);
  }
  return list;
}

std::string table_of_methods() {
  std::string text = row({"method", "sends", "bytes", "additive", "memory", "when"});
  text += "|---|---|--:|---|---|---|\n";
  for (const Method* const method : all_methods()) {
    const auto compressor = method->make(example_of(*method), method->memory != "none");
    text += row({code(method->name), std::string(method->sends), std::string(method->bytes),
                 std::string(additivity_name(compressor->traits().additivity)), memories_of(*method),
                 std::string(method->when)});
  }
  return text;
}

std::string default_of(const CompressionField& field) {
  const CompressionOptions standard;
  return std::visit(
      [&](auto member) -> std::string {
        if constexpr (std::is_same_v<decltype(member), double CompressionOptions::*>) {
          std::array<char, 32> digits{};
          const double value = standard.*member;
          return {digits.data(),
                  std::to_chars(digits.begin(), digits.end(), value).ptr};  // the fewest digits
        }
        return value_of(field, standard);
      },
      field.member);
}

struct Row {
  const Option* option;
  std::string readers;
};

// Each option once for all that read it with the same range and meaning.
std::vector<Row> rows_of(std::string_view field) {
  std::vector<Row> rows;
  const auto take = [&](const auto& options, const std::string& reader) {
    for (const Option* const option : options) {
      if (option == nullptr || option->name != field) continue;
      const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& one) {
        return one.option->help == option->help && one.option->range == option->range;
      });
      if (same == rows.end()) {
        rows.push_back({option, reader});
      } else {
        add(same->readers, reader);
      }
    }
  };
  for (const Method* const method : all_methods()) take(method->options, code(method->name));
  for (const MemoryForm& memory : memories()) take(memory.options, code(memory.name));
  return rows;
}

std::string table_of_options() {
  std::string text = row({"option", "read by", "default", "meaning"});
  text += "|---|---|--:|---|\n";
  for (const CompressionField& field : compression_fields())
    for (const Row& one : rows_of(field.name)) {
      std::string meaning(one.option->help);
      if (!one.option->range.empty()) meaning.append("; ").append(one.option->range);
      text += row({code(field.name), one.readers, default_of(field), meaning});
    }
  return text;
}

}  // namespace

std::string methods_page() {
  return table_of_methods();
}

std::string details_page() {
  std::string text = table_of_options() + "\n" + row({"method", "C(x)", "bound"});
  text += "|---|---|---|\n";
  for (const Method* const method : all_methods())
    if (!method->formula.empty())
      text += row({code(method->name), std::string(method->formula), std::string(method->bound)});
  return text;
}

}  // namespace netsum::compress
