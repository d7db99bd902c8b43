#include "tools/netsum/xml_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "src/base/text.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostXmlBytes = 64 << 20;

}  // namespace

XmlFile::XmlFile(const std::string& file) : file_(file) {
  std::ifstream stream(file_, std::ios::binary);
  if (!stream) throw UsageError(file_ + ": cannot be opened: " + std::strerror(errno));
  text_.resize(kMostXmlBytes + 1);
  stream.read(text_.data(), static_cast<std::streamsize>(text_.size()));
  if (stream.bad()) throw UsageError(file_ + ": cannot be read: give the path of a file");
  text_.resize(static_cast<size_t>(stream.gcount()));
  if (text_.size() > kMostXmlBytes) throw UsageError(file_ + ": is larger than 64 MiB");
  const pugi::xml_parse_result parsed = document_.load_buffer(text_.data(), text_.size());
  if (!parsed) fail(parsed.offset, std::string("this is not XML: ") + parsed.description());
}

void XmlFile::fail(const pugi::xml_node& node, const std::string& message) const {
  fail(node.offset_debug(), message);
}

void XmlFile::fail(std::ptrdiff_t offset, const std::string& message) const {
  const auto end =
      text_.begin() + std::clamp<std::ptrdiff_t>(offset, 0, static_cast<std::ptrdiff_t>(text_.size()));
  throw UsageError(file_ + ":" + std::to_string(1 + std::count(text_.begin(), end, '\n')) + ": " +
                   printable(message));
}

}  // namespace netsum::tool
