#include "src/job/encoded_fields.h"

#include <google/protobuf/io/coded_stream.h>

namespace netsum {

std::map<int, EncodedField> encoded_fields(const google::protobuf::MessageLite& message) {
  using google::protobuf::io::CodedInputStream;
  const std::string bytes = message.SerializeAsString();
  CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  std::map<int, EncodedField> fields;
  while (const uint32_t tag = stream.ReadTag()) {
    const int begin = stream.CurrentPosition();
    EncodedField& field = fields[static_cast<int>(tag >> 3)];
    uint64_t word = 0;
    uint32_t half = 0;
    switch (tag & 7) {  // the wire types of protobuf
      case 0:
        stream.ReadVarint64(&word);
        field.text = std::to_string(word);
        break;
      case 1:
        stream.ReadLittleEndian64(&word);
        field.text = std::to_string(word);
        break;
      case 2:
        stream.ReadVarint32(&half);
        stream.Skip(static_cast<int>(half));
        field.text = "other values";
        break;
      case 5:
        stream.ReadLittleEndian32(&half);
        field.text = std::to_string(half);
        break;
      default:  // protobuf's own parser has refused these
        return fields;
    }
    const auto size = static_cast<size_t>(stream.CurrentPosition() - begin);
    field.bytes.append(bytes, static_cast<size_t>(begin), size);
  }
  return fields;
}

}  // namespace netsum
