// XML files, with the line in each message.
#ifndef NETSUM_TOOLS_NETSUM_XML_FILE_H_
#define NETSUM_TOOLS_NETSUM_XML_FILE_H_

#include <cstddef>
#include <pugixml.hpp>
#include <string>

namespace netsum::tool {

class XmlFile {
 public:
  // Throws UsageError if there is no such file, or if it is not XML or larger than 64 MiB.
  explicit XmlFile(const std::string& file);

  pugi::xml_node root() const { return document_.document_element(); }
  // Throws UsageError with the node's line.
  [[noreturn]] void fail(const pugi::xml_node& node, const std::string& message) const;
  const std::string& name() const { return file_; }

 private:
  [[noreturn]] void fail(std::ptrdiff_t offset, const std::string& message) const;

  const std::string file_;
  std::string text_;
  pugi::xml_document document_;
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_XML_FILE_H_
