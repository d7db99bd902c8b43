// The packet parser: any bytes. What it accepts keeps the promises of PROTOCOL.md, and written again is the
// same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "wire/codec.h"
#include "wire/parse.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Exactly as long as the datagram, so that a read past its end is seen.
  const std::vector<uint8_t> datagram(data, data + size);
  netsum_fields fields{};
  const int reason = netsum_parse(datagram.data(), static_cast<uint32_t>(size), &fields);
  require(reason >= 0 && reason < NETSUM_DROP_COUNT);
  if (reason != NETSUM_DROP_NONE) return 0;
  require(fields.payload_bytes == size - NETSUM_HEADER_BYTES);
  require(fields.payload_bytes <= NETSUM_MAX_PAYLOAD && fields.payload_bytes % NETSUM_PAYLOAD_MULTIPLE == 0);
  require(fields.type >= NETSUM_TYPE_CONTRIBUTION && fields.type <= NETSUM_TYPE_WELCOME);
  require((fields.flags & ~NETSUM_FLAGS_KNOWN) == 0);
  // Lanes or values come from members and, as results, from aggregators above and below; nothing else has any.
  const bool is_floats =
      (fields.format >= 0x71 && fields.format <= 0x73) || (fields.format >= 0x81 && fields.format <= 0x83);
  const bool is_values = is_floats || fields.format == 0x36 || fields.format == 0x37;
  const bool is_words =
      (fields.format >= 0x26 && fields.format <= 0x28) || fields.format == 0x57 || fields.format == 0x67;
  const bool has_lanes = fields.type == NETSUM_TYPE_CONTRIBUTION || fields.type == NETSUM_TYPE_RESULT;
  require(has_lanes == (fields.format == NETSUM_FORMAT_SUM_I8 || fields.format == NETSUM_FORMAT_SUM_I16 ||
                        fields.format == NETSUM_FORMAT_SUM_I32 || fields.format == NETSUM_FORMAT_SUM_I64 ||
                        fields.format == NETSUM_FORMAT_MAX_U8 || is_words || is_values));
  require(has_lanes || fields.format == NETSUM_FORMAT_NONE);
  require(!has_lanes || fields.payload_bytes > 0);
  const bool no_lanes = (fields.flags & NETSUM_FLAG_EMPTY) != 0;
  const bool may_be_empty = !is_values || (is_floats && fields.type == NETSUM_TYPE_RESULT);
  require(!no_lanes || (has_lanes && may_be_empty && fields.payload_bytes == NETSUM_EMPTY_BYTES));
  require(no_lanes || fields.absent_bytes == 0);
  require(!netsum::wire::describe(fields).empty());
  std::vector<uint8_t> again(size);
  constexpr size_t kBeforeCheck = 24;
  require(netsum::wire::write_header(fields, netsum::wire::PacketKey(), /*payload_nh=*/2, again.data()) ==
          size);
  require(std::memcmp(again.data(), datagram.data(), kBeforeCheck) == 0);
  return 0;
}
