// The check field of packets (wire/codec.h), with the fast NH, which packets without a tag do not need.
#ifndef NETSUM_SRC_KERNELS_PACKET_CHECK_H_
#define NETSUM_SRC_KERNELS_PACKET_CHECK_H_

#include "src/kernels/kernels.h"
#include "wire/codec.h"

namespace netsum::kernels {

inline uint64_t payload_nh(const uint8_t* frame, const netsum_fields& fields, const wire::PacketKey& key) {
  return key.tags(fields.type) ? nh(frame + NETSUM_HEADER_BYTES, fields.payload_bytes, key.table()) : 0;
}

// Writes the header before the payload that `frame` already holds. Returns the size of the datagram.
inline uint32_t write_header(const netsum_fields& fields, const wire::PacketKey& key, uint8_t* frame) {
  return wire::write_header(fields, key, payload_nh(frame, fields, key), frame);
}

inline bool check_is_right(const uint8_t* frame, const netsum_fields& fields, const wire::PacketKey& key) {
  return wire::check_is_right(frame, fields, key, payload_nh(frame, fields, key));
}

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_PACKET_CHECK_H_
