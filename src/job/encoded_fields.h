// The fields of a protobuf message by number, those included that this release does not know. Generated code without
// descriptors tells neither.
#ifndef NETSUM_SRC_JOB_ENCODED_FIELDS_H_
#define NETSUM_SRC_JOB_ENCODED_FIELDS_H_

#include <google/protobuf/message_lite.h>

#include <map>
#include <string>

namespace netsum {

struct EncodedField {
  std::string bytes;
  std::string text = "0";  // for people
};

// Fields that are 0 or empty are not encoded, and not in the map.
std::map<int, EncodedField> encoded_fields(const google::protobuf::MessageLite& message);

}  // namespace netsum

#endif  // NETSUM_SRC_JOB_ENCODED_FIELDS_H_
