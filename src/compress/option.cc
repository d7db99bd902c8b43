#include "src/compress/option.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <type_traits>

#include "src/base/assert.h"

namespace netsum {
namespace {

using O = CompressionOptions;

// In the order in which Compression::describe() has them: ranks of all versions compare it.
const std::array kFields = {
    CompressionField{"method", &O::method},
    CompressionField{"memory", &O::memory},
    CompressionField{"path", &O::path},
    CompressionField{"ratio", &O::ratio},
    CompressionField{"k", &O::k},
    CompressionField{"sampled", &O::sampled},
    CompressionField{"block", &O::block},
    CompressionField{"rotated", &O::rotated},
    CompressionField{"count_senders", &O::count_senders},
    CompressionField{"rank", &O::rank},
    CompressionField{"fit", &O::fit},
    CompressionField{"threshold", &O::threshold},
    CompressionField{"warmup_steps", &O::warmup_steps},
    CompressionField{"levels", &O::levels},
    CompressionField{"error_bound", &O::error_bound},
    CompressionField{"buckets", &O::buckets},
    CompressionField{"seed", &O::seed},
    CompressionField{"decay", &O::decay},
    CompressionField{"momentum", &O::momentum},
    CompressionField{"clip_norm", &O::clip_norm},
};

std::string text_of(const std::string& value) {
  return value;
}
std::string text_of(bool value) {
  return value ? "true" : "false";
}
std::string text_of(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}
std::string text_of(uint64_t value) {
  return std::to_string(value);
}
std::string text_of(uint32_t value) {
  return std::to_string(value);
}

}  // namespace

std::span<const CompressionField> compression_fields() {
  return kFields;
}

namespace compress {

std::string value_of(const CompressionField& field, const CompressionOptions& options) {
  return std::visit([&](auto member) { return text_of(options.*member); }, field.member);
}

std::string value_of(std::string_view name, const CompressionOptions& options) {
  const auto* const field =
      std::find_if(kFields.begin(), kFields.end(), [&](const auto& one) { return one.name == name; });
  NETSUM_ASSERT(field != kFields.end());
  return value_of(*field, options);
}

Status check_range(const Option& option, const CompressionOptions& options) {
  if (option.allows == nullptr || option.allows(options)) return {};
  return {ErrorCode::kInvalidArgument, std::string(option.name) + " is " + value_of(option.name, options) +
                                           "; it must be " + std::string(option.range)};
}

}  // namespace compress
}  // namespace netsum
