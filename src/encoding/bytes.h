// Bytes that are moved, not summed: each comes from one rank at most, and the others add zeros to it. They travel as they
// are, eight to a 64-bit lane, so the sum is exact, and no lane can overflow. The ranks need not agree on anything first.
#ifndef NETSUM_SRC_ENCODING_BYTES_H_
#define NETSUM_SRC_ENCODING_BYTES_H_

#include <string>

#include "src/encoding/encoding.h"

namespace netsum {

class Bytes final : public Encoding {
 public:
  uint16_t signature() const override;
  std::string describe() const override { return ""; }
  int max_members() const override;
  size_t chunk_elements(uint32_t payload_bytes) const override { return payload_bytes; }
  uint8_t value_format() const override;
  bool separates_tensors() const override { return false; }
  bool agrees() const override { return false; }
  size_t agreed_bytes(const Elements&) const override { return 0; }
  size_t scan(const Elements&, uint8_t*) const override { return 0; }
  ChunkPlan plan(const Elements& chunk, const uint8_t* agreed, uint32_t payload_bytes) const override;
  void decode_zeros(const Elements& chunk) const override;
  void encode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
              uint8_t* payload) const override;
  bool decode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
              const Payloads& payloads) const override;
};

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_BYTES_H_
