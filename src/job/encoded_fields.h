// The fields of an encoded protobuf message by number, including those that this release does not know. Generated code
// without descriptors gives access to neither.
#ifndef NETSUM_SRC_JOB_ENCODED_FIELDS_H_
#define NETSUM_SRC_JOB_ENCODED_FIELDS_H_

#include <google/protobuf/message_lite.h>

#include <map>
#include <string>

namespace netsum {

struct EncodedField {
  std::string bytes;
  std::string text = "0";  // for messages
};

// Fields that are 0 or empty are not encoded, so the map does not contain them.
std::map<int, EncodedField> encoded_fields(const google::protobuf::MessageLite& message);

}  // namespace netsum

#endif  // NETSUM_SRC_JOB_ENCODED_FIELDS_H_
