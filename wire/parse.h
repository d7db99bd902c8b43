/* Reads a packet's header and names the first rule that it breaks. C11, C++20 and BPF C. */
#ifndef NETSUM_WIRE_PARSE_H_
#define NETSUM_WIRE_PARSE_H_

#include "wire/packet.h"

/* The header in host byte order. */
struct netsum_fields {
  uint8_t type;
  uint8_t format;
  uint8_t flags;
  uint16_t job;
  uint16_t epoch;
  uint16_t slot;
  uint16_t member;
  uint32_t round;
  uint32_t chunk;
  uint32_t signature;
  uint64_t check;
  uint32_t payload_bytes;
  uint32_t absent_bytes; /* EMPTY: of the lanes that are left out */
};

/* The bytes of lanes that the packet stands for. */
NETSUM_INLINE uint32_t netsum_full_bytes(const struct netsum_fields* f) {
  return f->flags & NETSUM_FLAG_EMPTY ? f->absent_bytes : f->payload_bytes;
}
/* absent_bytes of a packet with EMPTY, from its payload; a number that is too large for any job, if it is. */
NETSUM_INLINE uint32_t netsum_absent_bytes(const void* payload) {
  const uint64_t bytes = netsum_get64(*(const netsum_be64*)payload);
  return bytes > NETSUM_MAX_PAYLOAD ? 0xFFFFFFFFu : (uint32_t)bytes;
}

/* Payload lengths that a type may have. */
NETSUM_INLINE int netsum_length_fits_type(uint8_t type, uint8_t flags, uint32_t payload_bytes) {
  switch (type) {
    case NETSUM_TYPE_CONTRIBUTION:
    case NETSUM_TYPE_RESULT:
      return flags & NETSUM_FLAG_EMPTY ? payload_bytes == NETSUM_EMPTY_BYTES : payload_bytes > 0;
    case NETSUM_TYPE_PROBE:
      return payload_bytes == NETSUM_PROBE_BYTES;
    case NETSUM_TYPE_STATUS:
      return payload_bytes == NETSUM_STATUS_BYTES;
    case NETSUM_TYPE_ERROR:
      return payload_bytes == NETSUM_ERROR_BYTES;
    default: /* HELLO, WELCOME: padding */
      return 1;
  }
}

/* Whether the payload has values of elements, and not lanes. There is no mean of integers. */
NETSUM_INLINE int netsum_is_values(uint8_t format) {
  const uint8_t op = format >> 4;
  const uint8_t value = format & 15;
  if (op == NETSUM_OP_SUM_VALUES) return value == NETSUM_VALUE_I32 || value == NETSUM_VALUE_I64;
  return (op == NETSUM_OP_SUM_FLOATS || op == NETSUM_OP_AVG_FLOATS) && value >= NETSUM_FLOAT_F32 &&
         value <= NETSUM_FLOAT_F16;
}

/* Of these, elements of floating-point types. */
NETSUM_INLINE int netsum_is_floats(uint8_t format) {
  return netsum_is_values(format) && format >> 4 != NETSUM_OP_SUM_VALUES;
}

/* Values cannot be left out, because zeros are not neutral: -0 + 0 is 0. But a member may need no sum of floats. */
NETSUM_INLINE int netsum_flags_fit_values(uint8_t type, uint8_t format, uint8_t flags) {
  if (flags & NETSUM_FLAG_EMPTY) return type == NETSUM_TYPE_RESULT && netsum_is_floats(format);
  return !(flags & NETSUM_FLAG_NO_RESULT) || netsum_is_floats(format);
}

/* Whether the lanes are unsigned words: maxima of 16 bits and more, OR and XOR. Not every dataplane of this version can
 * combine these. */
NETSUM_INLINE int netsum_is_words(uint8_t format) {
  return format == NETSUM_FORMAT_MAX_U16 || format == NETSUM_FORMAT_MAX_U32 ||
         format == NETSUM_FORMAT_MAX_U64 || format == NETSUM_FORMAT_OR_U64 || format == NETSUM_FORMAT_XOR_U64;
}

/* Formats that a type may have. */
NETSUM_INLINE int netsum_format_fits_type(uint8_t type, uint8_t format) {
  if (type == NETSUM_TYPE_CONTRIBUTION || type == NETSUM_TYPE_RESULT) {
    return format == NETSUM_FORMAT_SUM_I8 || format == NETSUM_FORMAT_SUM_I16 ||
           format == NETSUM_FORMAT_SUM_I32 || format == NETSUM_FORMAT_SUM_I64 ||
           format == NETSUM_FORMAT_MAX_U8 || netsum_is_words(format) || netsum_is_values(format);
  }
  return format == NETSUM_FORMAT_NONE;
}

/* Everything that can be said of a packet without knowing its job. `size` is the datagram's length.
 * Returns NETSUM_DROP_NONE and fills `out`, or the reason. The check is left to the caller, who has the key. In BPF also
 * absent_bytes, because only the header may be read here.
 */
NETSUM_INLINE int netsum_parse(const void* data, uint32_t size, struct netsum_fields* out) {
  const struct netsum_header* h = (const struct netsum_header*)data;
  if (size < NETSUM_HEADER_BYTES) return NETSUM_DROP_TOO_SHORT;
  if (h->magic != NETSUM_MAGIC) return NETSUM_DROP_BAD_MAGIC;
  if (h->version_type >> 4 != NETSUM_VERSION) return NETSUM_DROP_BAD_VERSION;
  out->type = h->version_type & 15;
  if (out->type < NETSUM_TYPE_CONTRIBUTION || out->type > NETSUM_TYPE_WELCOME) return NETSUM_DROP_BAD_TYPE;
  out->flags = h->flags;
  if (out->flags & ~NETSUM_FLAGS_KNOWN) return NETSUM_DROP_BAD_FLAGS;
  const int has_lanes = out->type == NETSUM_TYPE_CONTRIBUTION || out->type == NETSUM_TYPE_RESULT;
  if ((out->flags & NETSUM_FLAG_EMPTY) && !has_lanes) return NETSUM_DROP_BAD_FLAGS;
  if ((out->flags & NETSUM_FLAG_NO_RESULT) && out->type != NETSUM_TYPE_CONTRIBUTION)
    return NETSUM_DROP_BAD_FLAGS;
  out->payload_bytes = size - NETSUM_HEADER_BYTES;
  if (out->payload_bytes > NETSUM_MAX_PAYLOAD || out->payload_bytes % NETSUM_PAYLOAD_MULTIPLE != 0 ||
      !netsum_length_fits_type(out->type, out->flags, out->payload_bytes)) {
    return NETSUM_DROP_BAD_LENGTH;
  }
  out->format = h->format;
  if (!netsum_format_fits_type(out->type, out->format)) return NETSUM_DROP_BAD_FORMAT;
  if (netsum_is_values(out->format) && !netsum_flags_fit_values(out->type, out->format, out->flags))
    return NETSUM_DROP_BAD_FORMAT;
  out->absent_bytes = 0;
#ifndef __bpf__
  if (out->flags & NETSUM_FLAG_EMPTY)
    out->absent_bytes = netsum_absent_bytes((const uint8_t*)data + NETSUM_HEADER_BYTES);
#endif
  out->job = netsum_get16(h->job);
  out->epoch = netsum_get16(h->epoch);
  out->slot = netsum_get16(h->slot);
  out->member = netsum_get16(h->member);
  out->round = netsum_get32(h->round);
  out->chunk = netsum_get32(h->chunk);
  out->signature = netsum_get32(h->signature);
  out->check = netsum_get64(h->check);
  return NETSUM_DROP_NONE;
}

#endif /* NETSUM_WIRE_PARSE_H_ */
